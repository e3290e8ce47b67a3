//! A page in the browser, and the actions of a user.

use std::{
    fs,
    path::PathBuf,
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use base64::{Engine, engine::general_purpose::STANDARD};
use hyper::Method;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::{
    Outcome,
    driver::{Driver, PATIENCE},
    folder,
};

pub(crate) const TAB: char = '\u{e004}';
pub(crate) const ENTER: char = '\u{e007}';

const ATTEMPTS: u32 = 3;
const POLL: Duration = Duration::from_millis(50);

pub(crate) struct Page<'a> {
    driver: &'a Driver,
    session: String,
    profile: PathBuf,
}

impl<'a> Page<'a> {
    /// A browser may fail to start on a busy machine.
    pub(crate) async fn open(driver: &'a Driver) -> Outcome<Self> {
        let mut failed = String::new();
        for _ in 0..ATTEMPTS {
            let profile = profile();
            match driver.session(&profile.to_string_lossy()).await {
                Ok(session) => return Ok(Self { driver, session, profile }),
                Err(why) => {
                    eprintln!("the browser did not start: {why}");
                    failed = why;
                }
            }
        }
        Err(failed)
    }

    pub(crate) async fn close(self) {
        let _ = self.driver.ask(Method::DELETE, &self.session, &Value::Null).await;
        let _ = fs::remove_dir_all(&self.profile);
    }

    async fn post(&self, command: &str, body: Value) -> Outcome<Value> {
        self.driver.ask(Method::POST, &format!("{}/{command}", self.session), &body).await
    }

    pub(crate) async fn cdp(&self, command: &str, parameters: Value) -> Outcome<Value> {
        self.post("goog/cdp/execute", json!({ "cmd": command, "params": parameters })).await
    }

    pub(crate) async fn go(&self, url: &str) -> Outcome {
        self.post("url", json!({ "url": url })).await?;
        // Without this, only the first 250 fetches leave an entry.
        self.run("performance.setResourceTimingBufferSize(1e6)").await.map(drop)
    }

    /// Runs a script. Returns its result.
    pub(crate) async fn run(&self, script: impl AsRef<str>) -> Outcome<Value> {
        let body = json!({ "script": script.as_ref(), "args": [] });
        self.post("execute/sync", body).await
    }

    /// Returns the value of an expression, once it is neither false nor 0 nor empty.
    pub(crate) async fn until(&self, what: &str, expression: &str) -> Outcome<Value> {
        let script = format!("return {expression}");
        let end = Instant::now() + PATIENCE;
        loop {
            let value = self.run(&script).await?;
            let there = match &value {
                Value::Null => false,
                Value::Bool(is) => *is,
                Value::Number(number) => number.as_f64() != Some(0.0),
                Value::String(text) => !text.is_empty(),
                _ => true,
            };
            if there {
                return Ok(value);
            }
            if Instant::now() > end {
                return Err(format!("{what}: not seen within {PATIENCE:?}: {expression}"));
            }
            sleep(POLL).await;
        }
    }

    pub(crate) async fn click(&self, selector: &str) -> Outcome {
        let element = self.find(selector).await?;
        self.post(&format!("element/{element}/click"), json!({})).await.map(drop)
    }

    async fn find(&self, selector: &str) -> Outcome<String> {
        let body = json!({ "using": "css selector", "value": selector });
        let found = self.post("element", body).await.map_err(|why| format!("{selector}: {why}"))?;
        let id = found.as_object().and_then(|found| found.values().next()).and_then(Value::as_str);
        id.map(str::to_owned).ok_or_else(|| format!("{selector}: not found"))
    }

    /// Accepts the dialogue of the page.
    pub(crate) async fn accept(&self) -> Outcome {
        self.post("alert/accept", json!({})).await.map(drop)
    }

    /// Presses keys one by one, at the current focus.
    pub(crate) async fn press(&self, keys: &[char]) -> Outcome {
        let press = |key: &char| {
            ["keyDown", "keyUp"].map(|kind| json!({ "type": kind, "value": key.to_string() }))
        };
        let keys: Vec<_> = keys.iter().flat_map(press).collect();
        let actions = json!({ "actions": [{ "type": "key", "id": "keys", "actions": keys }] });
        self.post("actions", actions).await.map(drop)
    }

    /// Writes into a field like a user: selects and replaces the old text.
    pub(crate) async fn write(&self, selector: &str, text: &str) -> Outcome {
        let element = self.find(selector).await?;
        self.run(format!("document.querySelector({selector:?}).select()")).await?;
        let text = format!("{text}{TAB}");
        self.post(&format!("element/{element}/value"), json!({ "text": text })).await.map(drop)
    }

    /// Chooses the option of a select element by its value.
    pub(crate) async fn choose(&self, select: &str, value: &str) -> Outcome {
        self.click(&format!("{select} option[value='{value}']")).await
    }

    pub(crate) async fn resize(&self, (width, height): (u32, u32), scheme: &str) -> Outcome {
        let size = json!({
            "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500,
        });
        self.cdp("Emulation.setDeviceMetricsOverride", size).await?;
        self.prefer("prefers-color-scheme", scheme).await
    }

    pub(crate) async fn prefer(&self, feature: &str, value: &str) -> Outcome {
        let media = json!({ "features": [{ "name": feature, "value": value }] });
        self.cdp("Emulation.setEmulatedMedia", media).await.map(drop)
    }

    /// Returns the visible part of the page, or all of it, as PNG.
    pub(crate) async fn picture(&self, all: bool) -> Outcome<Vec<u8>> {
        let parameters = json!({ "format": "png", "captureBeyondViewport": all });
        let taken = self.cdp("Page.captureScreenshot", parameters).await?;
        STANDARD.decode(taken["data"].as_str().unwrap_or_default()).map_err(|why| why.to_string())
    }

    /// Keeps a picture of the page.
    pub(crate) async fn keep(&self, name: &str) -> Outcome {
        let path = folder().join(format!("{name}.png"));
        fs::write(path, self.picture(true).await?).map_err(|why| why.to_string())
    }

    /// Returns the lines of the browser's console since the last call.
    async fn console(&self) -> Outcome<Vec<String>> {
        let lines = self.post("se/log", json!({ "type": "browser" })).await?;
        let line = |line: &Value| {
            let part = |name: &str| line[name].as_str().unwrap_or_default().to_owned();
            format!("{}: {}", part("level"), part("message"))
        };
        Ok(lines.as_array().into_iter().flatten().map(line).collect())
    }

    /// Checks that the console has no complaint.
    pub(crate) async fn silent(&self) -> Outcome {
        match self.complaints().await?.first() {
            None => Ok(()),
            Some(line) => Err(format!("in the console: {line}")),
        }
    }

    /// Drops lines about failed requests: a browser logs every answer other than 200, and a lost
    /// server.
    async fn complaints(&self) -> Outcome<Vec<String>> {
        let mut lines = self.console().await?;
        lines.retain(|line| !line.contains(" - Failed to load resource: "));
        Ok(lines)
    }

    /// Prints the details that help to understand a failure.
    pub(crate) async fn show(&self, name: &str) {
        let text = self.run("return document.body.innerText").await;
        eprintln!(
            "the page says: {}",
            text.as_ref().map_or("nothing", |text| { text.as_str().unwrap_or_default() })
        );
        eprintln!("its console: {:#?}", self.complaints().await);
        match self.keep(&format!("failed-{name}")).await {
            Ok(()) => eprintln!("a picture: {}", folder().display()),
            Err(why) => eprintln!("no picture: {why}"),
        }
    }
}

fn profile() -> PathBuf {
    static MADE: AtomicU32 = AtomicU32::new(0);
    let n = MADE.fetch_add(1, Ordering::Relaxed);
    folder().join(format!("profile-{}-{n}", std::process::id()))
}

//! `chromedriver`, on a port that it chooses, and its protocol.

use std::{
    io::{BufRead, BufReader},
    thread,
};
use std::{
    process::{Child, Command, Stdio},
    sync::mpsc::{Receiver, channel},
    time::{Duration, Instant},
};

use http_body_util::{BodyExt, Full};
use hyper::{Method, Request, body::Bytes};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::{Outcome, folder};

/// The time after which a command counts as hanging, even on a slow machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Driver {
    child: Child,
    port: u16,
    client: Client<HttpConnector, Full<Bytes>>,
}

impl Driver {
    pub(crate) async fn start() -> Outcome<Self> {
        let mut command = Command::new("chromedriver");
        command.arg("--port=0").stdin(Stdio::null()).stdout(Stdio::piped());
        // No file is left in the home of the user.
        command.env("XDG_CONFIG_HOME", folder()).env("XDG_CACHE_HOME", folder());
        let mut child = command.spawn().map_err(|why| format!("chromedriver: {why}"))?;
        let lines = lines(&mut child);
        let client = Client::builder(TokioExecutor::new()).build_http();
        let mut driver = Self { child, port: 0, client };
        driver.port = tokio::task::block_in_place(|| port(&lines))?;
        Ok(driver)
    }

    /// Returns the `value` of the answer to a command.
    pub(crate) async fn ask(&self, method: Method, path: &str, body: &Value) -> Outcome<Value> {
        let url = format!("http://127.0.0.1:{}{path}", self.port);
        let body = if method == Method::POST { body.to_string() } else { String::new() };
        let request = Request::builder().method(method).uri(url);
        let request = request.header("content-type", "application/json");
        let request = request.body(Full::from(body)).map_err(|why| why.to_string())?;
        let asking = async {
            let answer = self.client.request(request).await.map_err(|why| why.to_string())?;
            let body = answer.into_body().collect().await.map_err(|why| why.to_string())?;
            serde_json::from_slice(&body.to_bytes()).map_err(|why| why.to_string())
        };
        let asked = timeout(PATIENCE, asking).await;
        let answer: Result<Value, String> =
            asked.unwrap_or_else(|_| Err(format!("no answer within {PATIENCE:?}")));
        let mut answer = answer.map_err(|why| format!("{path}: {why}"))?;
        match answer["value"]["error"].as_str() {
            None => Ok(answer["value"].take()),
            Some(error) => {
                let why = answer["value"]["message"].as_str().unwrap_or_default();
                Err(format!("{path}: {error}: {}", why.lines().next().unwrap_or_default()))
            }
        }
    }

    /// Opens a browser with the flags for a machine without a screen, without a bus, with little
    /// shared memory, and with root as the only user.
    pub(crate) async fn session(&self, profile: &str) -> Outcome<String> {
        let flags = [
            "--headless=new",
            "--no-sandbox",
            "--disable-dev-shm-usage",
            "--disable-gpu",
            "--disable-background-networking",
            "--disable-extensions",
            "--no-first-run",
            "--force-color-profile=srgb",
            &format!("--user-data-dir={profile}"),
        ];
        let wanted = json!({ "capabilities": { "alwaysMatch": {
            "browserName": "chrome",
            "goog:chromeOptions": { "args": flags },
            "goog:loggingPrefs": { "browser": "ALL" },
        } } });
        let opened = self.ask(Method::POST, "/session", &wanted).await?;
        let id = opened["sessionId"].as_str().ok_or("a session without an id")?;
        Ok(format!("/session/{id}"))
    }
}

/// Terminated instead of killed, so that the driver ends its browsers.
impl Drop for Driver {
    fn drop(&mut self) {
        let kill = format!("kill {}", self.child.id());
        let _ = Command::new("sh").args(["-c", &kill]).status();
        let end = Instant::now() + Duration::from_secs(10);
        while Instant::now() < end && matches!(self.child.try_wait(), Ok(None)) {
            thread::sleep(Duration::from_millis(50));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn lines(child: &mut Child) -> Receiver<String> {
    let (sender, lines) = channel();
    let stdout = child.stdout.take().map(BufReader::new);
    // Reads to the end, so that a full pipe never stops the driver.
    thread::spawn(move || {
        for line in stdout.into_iter().flat_map(|stdout| stdout.lines().map_while(Result::ok)) {
            let _ = sender.send(line);
        }
    });
    lines
}

fn port(lines: &Receiver<String>) -> Outcome<u16> {
    loop {
        let line = lines.recv_timeout(PATIENCE).map_err(|_| "chromedriver did not start")?;
        if let Some((_, port)) = line.split_once("started successfully on port ") {
            let port = port.trim_end_matches('.').parse();
            return port.map_err(|_| format!("no port in {line:?}"));
        }
    }
}

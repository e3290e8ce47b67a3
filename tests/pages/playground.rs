//! The playground as a visitor uses it.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use serde_json::Value;

use crate::{
    Outcome,
    browser::{ENTER, Page, TAB},
    looks,
    programs::{ANY_PORT, Server, example},
};

pub(crate) fn serve(address: &str) -> Server {
    let mut command = example("playground");
    command.args(["--addr", address]);
    tokio::task::block_in_place(|| Server::start(command))
}

/// Opens the page, with settings of a link.
pub(crate) async fn open(page: &Page<'_>, server: &Server, link: &str) -> Outcome {
    // Without this, another link would not load the page.
    page.go("about:blank").await?;
    page.go(&format!("http://{}/{link}", server.address)).await?;
    page.until("the limits", "document.querySelector('#second h2 small')").await.map(drop)
}

/// The description of the first limit.
const FIRST: &str = "document.querySelector('#first h2').textContent";
const OUTCOME: &str = "document.querySelector('#outcome').textContent";

/// Returns the number of requests that the page has counted as `allowed` or `denied` in a lane.
fn counted(lane: &str, fate: &str) -> String {
    format!(
        "Number(/(\\d+) {fate}/.exec(document.querySelector('#{lane} .counts').textContent)?.[1])"
    )
}

async fn sum(page: &Page<'_>, lane: &str, n: u32) -> Outcome {
    let sum = format!("{} + {} === {n}", counted(lane, "allowed"), counted(lane, "denied"));
    page.until(&format!("{n} responses"), &sum).await.map(drop)
}

fn holds(name: &str, is: bool, value: impl std::fmt::Debug) -> Outcome {
    if is { Ok(()) } else { Err(format!("{name}: {value:?}")) }
}

/// Sets a field of the limits, and waits for the text of the new limit.
async fn set(page: &Page<'_>, name: &str, value: &str, says: &str) -> Outcome {
    page.write(&format!("[name={name}]"), value).await?;
    page.until(&format!("a limit of {says}"), &format!("{FIRST}.includes({says:?})"))
        .await
        .map(drop)
}

/// A limit that does not refill during the test on a slow machine, and no traffic of its own.
const SLOW: &str = "#period=864000&many=20&play=burst";

pub(crate) async fn play(page: &Page<'_>) -> Outcome {
    let mut server = serve(ANY_PORT);
    open(page, &server, "").await?;
    scene(page).await?;
    under_load(page, &server).await?;
    presets(page).await?;

    open(page, &server, SLOW).await?;
    sum(page, "first", 20).await?;
    let denied = page.run(format!("return {}", counted("first", "denied"))).await?;
    holds("ten of twenty are denied", denied == 10, &denied)?;
    // Any request of a burst may be answered last.
    page.click("#one").await?;
    sum(page, "first", 21).await?;
    page.until(
        "the header fields of the rejection",
        "/^HTTP\\/1.1 429 Too Many Requests[^]*^retry-after: [1-9]/m.test(\
         document.querySelector('#response').textContent)",
    )
    .await?;
    page.until(
        "an empty gauge",
        "document.querySelectorAll('#first .gauge i').length === 10 && \
         !document.querySelector('#first .gauge .full')",
    )
    .await?;
    looks::right(page, "playground").await?;
    calm(page).await?;
    algorithms(page).await?;
    slots(page).await?;
    open(page, &server, SLOW).await?;
    sum(page, "first", 20).await?;
    wrong(page).await?;
    keyboard(page).await?;
    link(page, &server).await?;
    waiting(page).await?;
    steadily(page).await?;
    outage(page, &mut server).await?;
    looks::at_home(page).await
}

/// Checks the bursts that the page sends at its start: the fixed window allows all. On a stalled
/// machine, the page says so, and they are sent again.
async fn scene(page: &Page<'_>) -> Outcome {
    let mut seen = Vec::new();
    for _ in 0..10 {
        let outcome = ended(page).await?;
        if let Some(counts) = counts(&outcome) {
            let honest = counts.1 == 20 && (10..20).contains(&counts.0);
            return holds("a fixed window allows twice its limit", honest, &outcome);
        }
        seen.push(outcome);
        page.click("#boundary").await?;
    }
    Err(format!("no bursts in time: {seen:?}"))
}

/// Returns the text that the page shows after two bursts.
async fn ended(page: &Page<'_>) -> Outcome<String> {
    let over = format!("/^Two bursts|too slow/.test({OUTCOME}) && {OUTCOME}");
    let outcome = page.until("the end of two bursts", &over).await?;
    Ok(outcome.as_str().unwrap_or_default().to_owned())
}

/// Returns the allowed requests of both lanes, or `None` if the machine was too slow.
fn counts(outcome: &str) -> Option<(u32, u32)> {
    let mut counts = outcome.split(" allowed ").skip(1);
    let mut count = || counts.next()?.split(' ').next()?.parse().ok();
    Some((count()?, count()?))
}

/// With every core busy, the page shows its claim or says that the machine was too slow.
async fn under_load(page: &Page<'_>, server: &Server) -> Outcome {
    let load = Load::start();
    for _ in 0..3 {
        open(page, server, "#period=2").await?;
        let outcome = ended(page).await?;
        let honest = match counts(&outcome) {
            Some((first, second)) => second == 20 && first < 20,
            None => outcome.contains("too slow"),
        };
        println!("under load: {outcome}");
        holds("two bursts under load", honest, &outcome)?;
    }
    drop(load);
    Ok(())
}

/// Two busy threads per core.
struct Load(Arc<AtomicBool>);

impl Load {
    fn start() -> Self {
        let runs = Arc::new(AtomicBool::new(true));
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        for _ in 0..2 * cores {
            let runs = runs.clone();
            std::thread::spawn(move || while runs.load(Ordering::Relaxed) {});
        }
        Self(runs)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// Each preset sets valid limits, has a sentence, and starts its traffic.
async fn presets(page: &Page<'_>) -> Outcome {
    for preset in ["login", "api", "llm", "webhook", "cron", "slots"] {
        page.choose("[name=preset]", preset).await?;
        let sent =
            format!("{} + {} >= 2", counted("second", "allowed"), counted("second", "denied"));
        page.until(preset, &sent).await?;
        let texts = "return ['#preset', '#wrong', '#rust', '#toml'].map(\
                     (it) => document.querySelector(it).textContent)";
        let texts = page.run(texts).await?;
        let text = |at: usize| texts[at].as_str().unwrap_or_default();
        holds(preset, text(0).len() > 30 && text(1).is_empty(), &texts)?;
        let code = text(2).contains("Quota>()?") && text(3).contains("quotas");
        holds("code to copy", code, &texts)?;
        looks::right(page, &format!("playground-preset-{preset}")).await?;
    }
    Ok(())
}

/// A link restores the settings; unknown values of a link have no effect.
async fn link(page: &Page<'_>, server: &Server) -> Outcome {
    let values = "return JSON.stringify([...document.querySelectorAll('input, select')].map(\
                  (it) => it.value))";
    page.choose("[name=algorithm]", "token_bucket").await?;
    page.choose("[name=other]", "sliding_window").await?;
    set(page, "units", "7", "7/").await?;
    page.write("[name=rate]", "3").await?;
    let (before, url) = (page.run(values).await?, page.run("return location.hash").await?);
    let shown = page.run("return document.querySelector('#link').textContent").await?;
    let url = url.as_str().unwrap_or_default();
    let same = shown.as_str().is_some_and(|shown| shown.ends_with(url));
    holds("the link is shown", same && url.contains("units=7"), &shown)?;
    open(page, server, url).await?;
    let after = page.run(values).await?;
    holds("the link restores the settings", before == after, (&before, &after))?;

    open(page, server, "#algorithm=leaky&other=%3Cb%3E&play=x&units=3&nothing=1&preset=no").await?;
    let restored = page.run(values).await?;
    let restored = restored.as_str().unwrap_or_default();
    let valid = restored.contains("\"gcra\",\"fixed_window\",\"3\"");
    holds("invalid choices of a link are dropped", valid, restored)?;
    page.choose("[name=preset]", "boundary").await?;
    open(page, server, SLOW).await?;
    sum(page, "first", 20).await
}

/// For visitors who prefer reduced motion, the picture changes in steps.
async fn calm(page: &Page<'_>) -> Outcome {
    let pictures = "return new Promise((then) => { \
        const canvas = document.querySelector('#first canvas'); \
        const seen = []; let frames = 0; const start = performance.now(); \
        const look = () => { frames += 1; const now = canvas.toDataURL(); \
            if (seen.at(-1) !== now) seen.push(now); \
            if (performance.now() - start < 1500) requestAnimationFrame(look); \
            else then([seen.length, performance.now() - start]); }; \
        look(); })";
    page.click("#one").await?;
    page.prefer("prefers-reduced-motion", "reduce").await?;
    let steps = page.run(pictures).await?;
    page.prefer("prefers-reduced-motion", "no-preference").await?;
    let most = steps[1].as_f64().unwrap_or_default() / 500.0 + 3.0;
    let few = steps[0].as_f64().is_some_and(|seen| seen <= most);
    holds("at most two pictures a second", few, &steps)
}

/// Sends a burst with each algorithm of the page, ending with the first one again.
async fn algorithms(page: &Page<'_>) -> Outcome {
    let offered = "return [...document.querySelectorAll('[name=algorithm] option')].map((option) => option.value)";
    let offered = page.run(offered).await?;
    let mut offered: Vec<_> =
        offered.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    holds("the algorithms", offered.len() > 1, &offered)?;
    offered.rotate_left(1);
    for algorithm in offered {
        page.choose("[name=algorithm]", algorithm).await?;
        sum(page, "first", 0).await?;
        page.click("#burst").await?;
        sum(page, "first", 20).await?;
        // Paced units return one by one.
        let allowed = if algorithm == "paced_window" { 1 } else { 10 };
        let seen = page.run(format!("return {}", counted("first", "allowed"))).await?;
        page.keep(&format!("playground-{algorithm}")).await?;
        holds(algorithm, seen.as_u64() >= Some(allowed) && seen.as_u64() <= Some(10), &seen)?;
    }
    Ok(())
}

/// Requests that run under slots are bars, and the gauge is full again when they end.
async fn slots(page: &Page<'_>) -> Outcome {
    const FREE: &str = "document.querySelectorAll('#first .gauge .full').length";
    page.choose("[name=algorithm]", "concurrent").await?;
    set(page, "units", "3", "3 concurrent").await?;
    page.write("[name=many]", "5").await?;
    page.click("#burst").await?;
    page.until("three run", &format!("{FREE} === 0")).await?;
    page.keep("playground-slots-running").await?;
    sum(page, "first", 5).await?;
    let allowed = page.run(format!("return {}", counted("first", "allowed"))).await?;
    holds("three of five run", allowed == 3, &allowed)?;
    page.until("the slots are free", &format!("{FREE} === 3")).await.map(drop)
}

/// An invalid limit is reported in the crate's own words, and the previous limit stays.
async fn wrong(page: &Page<'_>) -> Outcome {
    page.write("[name=units]", "0").await?;
    page.until("the error", "/units is 0/.test(document.querySelector('#wrong').textContent)")
        .await?;
    looks::right(page, "playground-wrong").await?;
    page.click("#one").await?;
    sum(page, "first", 21).await?;
    page.write("[name=units]", "10").await?;
    page.until("no error", "document.querySelector('#wrong').textContent === ''").await?;
    sum(page, "first", 0).await
}

async fn keyboard(page: &Page<'_>) -> Outcome {
    page.run("document.activeElement.blur()").await?;
    let mut stops = Vec::new();
    while stops.last().map(String::as_str) != Some("burst") {
        page.press(&[TAB]).await?;
        let stop = page
            .run(
                "const at = document.activeElement; const style = getComputedStyle(at); \
                 return [at.id, at === document.body || \
                 style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2]",
            )
            .await?;
        let name = stop[0].as_str().unwrap_or_default().to_owned();
        holds("where the focus is can be seen", stop[1] == Value::Bool(true), &name)?;
        stops.push(name);
        holds("the burst is reached by Tab", stops.len() < 30, &stops)?;
    }
    page.press(&[ENTER]).await?;
    sum(page, "first", 20).await?;
    page.until("denials", &counted("first", "denied")).await.map(drop)
}

async fn waiting(page: &Page<'_>) -> Outcome {
    set(page, "period", "2", "/2s").await?;
    set(page, "burst", "1", "burst 1").await?;
    set(page, "max_wait", "2", "waits up to 2000 ms").await?;
    page.write("[name=many]", "4").await?;
    page.click("#burst").await?;
    sum(page, "first", 4).await?;
    page.keep("playground-waiting").await?;
    let response = page.run("return document.querySelector('#response').textContent").await?;
    let allowed = page.run(format!("return {}", counted("first", "allowed"))).await?;
    holds("waiting is allowed", allowed == 4, (&allowed, &response))?;

    // Requests that wait under the previous limit block no other request.
    set(page, "max_wait", "864000", "waits up to 864000000 ms").await?;
    set(page, "period", "36000", "/10h").await?;
    // One passes, and seven wait: a key may have as many waiting requests as its quota has units,
    // ten here.
    page.write("[name=many]", "2").await?;
    for _ in 0..4 {
        page.click("#burst").await?;
    }
    sum(page, "first", 1).await?;
    set(page, "max_wait", "0", "/10h burst 1, store").await?;
    page.write("[name=many]", "4").await?;
    page.click("#burst").await?;
    sum(page, "first", 4).await
}

/// Sends requests one after another, under a new limit too, and none after the stop.
async fn steadily(page: &Page<'_>) -> Outcome {
    const PRESSED: &str = "document.querySelector('#steady').ariaPressed";
    page.click("#steady").await?;
    page.until("a few", &format!("{} > 6", counted("first", "denied"))).await?;
    set(page, "burst", "2", "burst 2").await?;
    // Requests in flight at the change may have taken units of the new limit unseen.
    let (allowed, denied) = (counted("first", "allowed"), counted("first", "denied"));
    let seen = format!("{allowed} <= 2 && {denied} > 6");
    page.until("the new limit", &seen).await?;
    page.click("#steady").await?;
    page.until("the stop", &format!("{PRESSED} === 'false'")).await.map(drop)
}

/// The page reports a lost server, and continues when the server returns: with the limits in force,
/// even if those in the form are invalid.
async fn outage(page: &Page<'_>, server: &mut Server) -> Outcome {
    const WRONG: &str = "/units is 0/.test(document.querySelector('#wrong').textContent)";
    page.write("[name=units]", "0").await?;
    page.until("the error", WRONG).await?;
    let address = server.address.to_string();
    let _ = server.child.kill();
    let _ = server.child.wait();
    page.until("the lost server", "document.querySelector('#status.bad')?.textContent").await?;
    *server = serve(&address);
    page.until("the returned server", "!document.querySelector('#status.bad')").await?;
    page.until("the error, still", WRONG).await?;
    page.click("#one").await?;
    sum(page, "first", 1).await
}

/// Draws a scene for the picture: two bursts around a boundary, returning units, denials.
pub(crate) async fn telling(page: &Page<'_>) -> Outcome {
    for _ in 0..10 {
        if counts(&ended(page).await?).is_some() {
            break;
        }
        page.click("#boundary").await?;
    }
    page.write("[name=rate]", "4").await?;
    page.click("#steady").await?;
    page.until("a while", &format!("{} >= 32", counted("second", "allowed"))).await?;
    page.click("#steady").await?;
    page.run("document.activeElement.blur(); scrollTo(0, 0)").await.map(drop)
}

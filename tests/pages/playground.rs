//! The playground as a visitor uses it.

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

pub(crate) async fn start(page: &Page<'_>) -> Outcome<Server> {
    let server = serve(ANY_PORT);
    page.go(&format!("http://{}/", server.address)).await?;
    page.until("the limit", "document.querySelector('#ours .what').textContent").await?;
    Ok(server)
}

/// Returns the number of requests that the page has counted as `admitted` or `denied` in a lane.
fn counted(lane: &str, fate: &str) -> String {
    format!(
        "Number(/(\\d+) {fate}/.exec(document.querySelector('#{lane} .counts').textContent)?.[1])"
    )
}

async fn sum(page: &Page<'_>, lane: &str, n: u32) -> Outcome {
    let sum = format!("{} + {} === {n}", counted(lane, "admitted"), counted(lane, "denied"));
    page.until(&format!("{n} answers"), &sum).await.map(drop)
}

fn holds(name: &str, is: bool, value: impl std::fmt::Debug) -> Outcome {
    if is { Ok(()) } else { Err(format!("{name}: {value:?}")) }
}

/// Sets a field of the limit, and waits for the text of the new limit.
async fn set(page: &Page<'_>, name: &str, value: &str, says: &str) -> Outcome {
    page.write(&format!("[name={name}]"), value).await?;
    let said = format!("document.querySelector('#ours .what').textContent.includes({says:?})");
    page.until(&format!("a limit of {says}"), &said).await.map(drop)
}

pub(crate) async fn play(page: &Page<'_>) -> Outcome {
    let mut server = start(page).await?;
    page.click("#one").await?;
    sum(page, "ours", 1).await?;
    let first = page.run("return document.querySelector('#answer').textContent").await?;
    let first = first.as_str().unwrap_or_default();
    holds("one request is admitted", first.starts_with("HTTP/1.1 200 OK"), first)?;
    holds(
        "the response shows the units left",
        first.contains("ratelimit: \"playground\";r=9"),
        first,
    )?;

    // A limit that does not refill during the test on a slow machine.
    set(page, "period_ms", "864000000", "/10d").await?;
    page.click("#burst").await?;
    sum(page, "ours", 20).await?;
    let denied = page.run(format!("return {}", counted("ours", "denied"))).await?;
    holds("ten of twenty are denied", denied == 10, &denied)?;
    // Any request of a burst may be answered last.
    page.click("#one").await?;
    page.until(
        "the header fields of the rejection",
        "/^HTTP\\/1.1 429 Too Many Requests[^]*^retry-after: [1-9]/m.test(\
         document.querySelector('#answer').textContent)",
    )
    .await?;
    page.until(
        "an empty gauge",
        "document.querySelectorAll('#ours .gauge i').length === 10 && \
         !document.querySelector('#ours .gauge .full')",
    )
    .await?;
    looks::right(page, "playground").await?;
    calm(page).await?;
    algorithms(page).await?;
    wrong(page).await?;
    keyboard(page).await?;
    across(page).await?;
    waiting(page).await?;
    steadily(page).await?;
    outage(page, &mut server).await?;
    looks::at_home(page).await
}

/// For visitors who prefer reduced motion, the picture changes in steps.
async fn calm(page: &Page<'_>) -> Outcome {
    let pictures = "return new Promise((then) => { \
        const canvas = document.querySelector('#ours canvas'); \
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
        sum(page, "ours", 0).await?;
        page.click("#burst").await?;
        sum(page, "ours", 20).await?;
        // Paced units return one by one.
        let admitted = if algorithm == "paced_window" { 1 } else { 10 };
        let seen = page.run(format!("return {}", counted("ours", "admitted"))).await?;
        page.keep(&format!("playground-{algorithm}")).await?;
        holds(algorithm, seen.as_u64() >= Some(admitted) && seen.as_u64() <= Some(10), &seen)?;
    }
    Ok(())
}

/// An invalid limit is reported in the crate's own words, and the previous limit stays.
async fn wrong(page: &Page<'_>) -> Outcome {
    page.write("[name=units]", "0").await?;
    page.until("the error", "/units is 0/.test(document.querySelector('#wrong').textContent)")
        .await?;
    looks::right(page, "playground-wrong").await?;
    page.click("#one").await?;
    sum(page, "ours", 21).await?;
    page.write("[name=units]", "10").await?;
    page.until("no error", "document.querySelector('#wrong').textContent === ''").await?;
    sum(page, "ours", 0).await
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
    sum(page, "ours", 20).await?;
    page.until("denials", &counted("ours", "denied")).await.map(drop)
}

/// Sends two bursts around a window boundary: the naive window admits both. On a stalled machine
/// units return in between, or the boundary is missed. The test then retries with longer periods.
async fn across(page: &Page<'_>) -> Outcome {
    page.write("#many", "10").await?;
    let mut seen = Vec::new();
    for (period, says) in [("4000", "/4s"), ("15000", "/15s"), ("30000", "/30s")] {
        set(page, "period_ms", period, says).await?;
        page.click("#edge").await?;
        if let Err(why) = sum(page, "naive", 20).await {
            seen.push(why);
            continue;
        }
        let denied = |lane| page.run(format!("return {}", counted(lane, "denied")));
        let (ours, naive) = (denied("ours").await?, denied("naive").await?);
        if ours.as_u64() > Some(0) && naive == 0 {
            return Ok(());
        }
        seen.push(format!("{ours} denied, by the naive window {naive}"));
    }
    Err(format!("the boundary makes no difference: {}", seen.join("; ")))
}

async fn waiting(page: &Page<'_>) -> Outcome {
    set(page, "period_ms", "2000", "/2s").await?;
    set(page, "burst", "1", "burst 1").await?;
    set(page, "max_wait_ms", "2000", "waits up to 2000 ms").await?;
    page.write("#many", "4").await?;
    page.click("#burst").await?;
    sum(page, "ours", 4).await?;
    page.keep("playground-waiting").await?;
    let said = page.run("return document.querySelector('#answer').textContent").await?;
    let admitted = page.run(format!("return {}", counted("ours", "admitted"))).await?;
    holds("waiting is admitted", admitted == 4, (&admitted, &said))?;

    // Requests that wait under the previous limit block no other request.
    set(page, "max_wait_ms", "864000000", "waits up to 864000000 ms").await?;
    set(page, "period_ms", "36000000", "/10h").await?;
    // One passes, and seven wait: a key may have as many waiting requests as its quota has units,
    // ten here.
    page.write("#many", "2").await?;
    for _ in 0..4 {
        page.click("#burst").await?;
    }
    sum(page, "ours", 1).await?;
    set(page, "max_wait_ms", "0", "/10h burst 1, store").await?;
    page.write("#many", "4").await?;
    page.click("#burst").await?;
    sum(page, "ours", 4).await
}

/// Sends requests one after another, under a new limit too, and none after the stop.
async fn steadily(page: &Page<'_>) -> Outcome {
    const PRESSED: &str = "document.querySelector('#steady').ariaPressed";
    page.click("#steady").await?;
    page.until("a few", &format!("{} > 6", counted("ours", "denied"))).await?;
    set(page, "burst", "2", "burst 2").await?;
    // Requests in flight at the change may have taken units of the new limit unseen.
    let (admitted, denied) = (counted("ours", "admitted"), counted("ours", "denied"));
    let seen = format!("{admitted} <= 2 && {denied} > 6");
    page.until("the new limit", &seen).await?;
    page.click("#steady").await?;
    page.until("the stop", &format!("{PRESSED} === 'false'")).await.map(drop)
}

/// The page reports a lost server, and continues when the server returns: with the limit in force,
/// even if the limit being written is invalid.
async fn outage(page: &Page<'_>, server: &mut Server) -> Outcome {
    const WRONG: &str = "/units is 0/.test(document.querySelector('#wrong').textContent)";
    page.write("[name=units]", "0").await?;
    page.until("the error", WRONG).await?;
    let address = server.address.to_string();
    let _ = server.child.kill();
    let _ = server.child.wait();
    page.until("the lost server", "document.querySelector('#said.bad')?.textContent").await?;
    *server = serve(&address);
    page.until("the returned server", "!document.querySelector('#said.bad')").await?;
    page.until("the error, still", WRONG).await?;
    page.click("#one").await?;
    sum(page, "ours", 1).await
}

/// Draws a scene for the picture: a double burst across the naive boundary, returning units,
/// denials.
pub(crate) async fn telling(page: &Page<'_>) -> Outcome {
    page.until("the limit", "document.querySelector('#ours .what').textContent").await?;
    page.write("#many", "10").await?;
    page.click("#edge").await?;
    sum(page, "naive", 20).await?;
    page.write("#rate", "3").await?;
    page.click("#steady").await?;
    page.until("a while", &format!("{} >= 26", counted("ours", "admitted"))).await?;
    page.click("#steady").await?;
    // Any request of a burst may be answered last, and a stalled machine refills before the
    // picture. In that case the burst is repeated.
    page.write("#many", "16").await?;
    let spent = format!(
        "return new Promise((then) => {{ \
         const denied = () => {}; const before = denied(); const start = performance.now(); \
         document.querySelector('#burst').click(); \
         const look = () => {{ \
             const few = /^[0-3] of/.test(document.querySelector('#ours .left').textContent) && \
                 document.querySelector('#answer').textContent.includes('retry-after'); \
             if (denied() > before && few && performance.now() - start > 400) then(true); \
             else if (performance.now() - start > 5000) then(false); \
             else requestAnimationFrame(look); }}; \
         look(); }})",
        counted("ours", "denied")
    );
    for _ in 0..10 {
        if page.run(&spent).await? == Value::Bool(true) {
            break;
        }
    }
    Ok(())
}

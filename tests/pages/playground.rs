//! The playground as somebody plays with it.

use serde_json::Value;

use crate::{
    Outcome,
    browser::{ENTER, Page, TAB},
    looks,
    programs::{ANY_PORT, Server, example},
};

const ALGORITHMS: [&str; 7] = [
    "token_bucket",
    "fixed_window",
    "paced_window",
    "anchored_window",
    "sliding_window",
    "sliding_log",
    "gcra",
];

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

/// How many of a lane the page has counted as `admitted` or `refused`.
fn counted(lane: &str, fate: &str) -> String {
    format!(
        "Number(/(\\d+) {fate}/.exec(document.querySelector('#{lane} .counts').textContent)?.[1])"
    )
}

async fn sum(page: &Page<'_>, lane: &str, n: u32) -> Outcome {
    let sum = format!("{} + {} === {n}", counted(lane, "admitted"), counted(lane, "refused"));
    page.until(&format!("{n} answers"), &sum).await.map(drop)
}

fn holds(name: &str, is: bool, value: impl std::fmt::Debug) -> Outcome {
    if is { Ok(()) } else { Err(format!("{name}: {value:?}")) }
}

/// A limit that a slow machine does not refill under the test.
async fn slow(page: &Page<'_>) -> Outcome {
    page.write("[name=period_ms]", "864000000").await?;
    let said = "!document.querySelector('#ours .what').textContent.includes('/2s')";
    page.until("the new limit", said).await.map(drop)
}

pub(crate) async fn play(page: &Page<'_>) -> Outcome {
    let mut server = start(page).await?;
    page.click("#one").await?;
    sum(page, "ours", 1).await?;
    let first = page.run("return document.querySelector('#answer').textContent").await?;
    let first = first.as_str().unwrap_or_default();
    holds("one was admitted", first.starts_with("HTTP/1.1 200 OK"), first)?;
    holds("it is told what is left", first.contains("ratelimit: \"playground\";r=9"), first)?;

    slow(page).await?;
    page.click("#burst").await?;
    sum(page, "ours", 20).await?;
    let refused = page.run(format!("return {}", counted("ours", "refused"))).await?;
    holds("ten of twenty are refused", refused == 10, &refused)?;
    page.until(
        "the refusal's header fields",
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
    outage(page, &mut server).await?;
    looks::at_home(page).await
}

/// For who wants no motion the picture changes in steps.
async fn calm(page: &Page<'_>) -> Outcome {
    let pictures = "return new Promise((then) => { \
        const canvas = document.querySelector('#ours canvas'); \
        const seen = []; let frames = 0; const start = performance.now(); \
        const look = () => { frames += 1; const now = canvas.toDataURL(); \
            if (seen.at(-1) !== now) seen.push(now); \
            if (performance.now() - start < 1500) requestAnimationFrame(look); \
            else then(seen.length); }; \
        look(); })";
    page.click("#one").await?;
    page.prefer("prefers-reduced-motion", "reduce").await?;
    let steps = page.run(pictures).await?;
    page.prefer("prefers-reduced-motion", "no-preference").await?;
    holds("at most two pictures a second", steps.as_u64() <= Some(4), &steps)
}

/// Each by a burst.
async fn algorithms(page: &Page<'_>) -> Outcome {
    for algorithm in ALGORITHMS {
        page.choose("[name=algorithm]", algorithm).await?;
        sum(page, "ours", 0).await?;
        page.click("#burst").await?;
        sum(page, "ours", 20).await?;
        // paced units come one by one
        let admitted = if algorithm == "paced_window" { 1 } else { 10 };
        let seen = page.run(format!("return {}", counted("ours", "admitted"))).await?;
        page.keep(&format!("playground-{algorithm}")).await?;
        holds(algorithm, seen.as_u64() >= Some(admitted) && seen.as_u64() <= Some(10), &seen)?;
    }
    Ok(())
}

/// What cannot be is told in the crate's own words, and the limit before stays.
async fn wrong(page: &Page<'_>) -> Outcome {
    page.write("[name=units]", "0").await?;
    page.until("what is wrong", "/units is 0/.test(document.querySelector('#wrong').textContent)")
        .await?;
    looks::right(page, "playground-wrong").await?;
    page.click("#one").await?;
    sum(page, "ours", 21).await?;
    page.write("[name=units]", "10").await?;
    page.until("nothing wrong", "document.querySelector('#wrong').textContent === ''").await?;
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
    page.until("refusals", &counted("ours", "refused")).await.map(drop)
}

/// Two bursts, an edge between them: the naive window lets both through. Where the machine is held up,
/// units come back in between, or the edge is missed: then with more time.
async fn across(page: &Page<'_>) -> Outcome {
    page.write("#many", "10").await?;
    let mut seen = Vec::new();
    for period in ["4000", "20000", "50000"] {
        page.write("[name=period_ms]", period).await?;
        sum(page, "ours", 0).await?;
        page.click("#edge").await?;
        if let Err(why) = sum(page, "naive", 20).await {
            seen.push(why);
            continue;
        }
        let refused = |lane| page.run(format!("return {}", counted(lane, "refused")));
        let (ours, naive) = (refused("ours").await?, refused("naive").await?);
        if ours.as_u64() > Some(0) && naive == 0 {
            return Ok(());
        }
        seen.push(format!("{ours} refused, by the naive window {naive}"));
    }
    Err(format!("the edge makes no difference: {}", seen.join("; ")))
}

async fn waiting(page: &Page<'_>) -> Outcome {
    page.write("[name=burst]", "1").await?;
    page.write("[name=max_wait_ms]", "2000").await?;
    page.write("#many", "4").await?;
    sum(page, "ours", 0).await?;
    page.click("#burst").await?;
    sum(page, "ours", 4).await?;
    page.keep("playground-waiting").await?;
    let said = page.run("return document.querySelector('#answer').textContent").await?;
    let admitted = page.run(format!("return {}", counted("ours", "admitted"))).await?;
    holds("waiting is admitted", admitted == 4, (&admitted, &said))
}

/// The page says that the server is away, and goes on when it is back.
async fn outage(page: &Page<'_>, server: &mut Server) -> Outcome {
    let address = server.address.to_string();
    let _ = server.child.kill();
    let _ = server.child.wait();
    page.until("that it is away", "document.querySelector('#said.bad')?.textContent").await?;
    *server = serve(&address);
    page.until("that it is back", "!document.querySelector('#said.bad')").await?;
    page.click("#one").await?;
    sum(page, "ours", 1).await
}

/// Something to look at: a double burst across the naive edge, units that come back, refusals.
pub(crate) async fn telling(page: &Page<'_>) -> Outcome {
    page.until("the limit", "document.querySelector('#ours .what').textContent").await?;
    page.write("#many", "12").await?;
    page.click("#edge").await?;
    sum(page, "naive", 24).await?;
    page.write("#rate", "3").await?;
    page.click("#steady").await?;
    page.until("a while", &format!("{} >= 26", counted("ours", "admitted"))).await?;
    page.click("#steady").await?;
    page.click("#burst").await?;
    page.until(
        "a refusal",
        "document.querySelector('#answer').textContent.includes('retry-after') && \
         performance.now() > (window.since ??= performance.now()) + 400 && \
         /^[0-3] of/.test(document.querySelector('#ours .left').textContent)",
    )
    .await
    .map(drop)
}

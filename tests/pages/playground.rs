//! The playground as somebody plays with it.

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

/// Sets a field of the limit, and waits for what only the limit with it says.
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
    holds("one was admitted", first.starts_with("HTTP/1.1 200 OK"), first)?;
    holds("it is told what is left", first.contains("ratelimit: \"playground\";r=9"), first)?;

    // one that a slow machine does not refill under the test
    set(page, "period_ms", "864000000", "/10d").await?;
    page.click("#burst").await?;
    sum(page, "ours", 20).await?;
    let refused = page.run(format!("return {}", counted("ours", "refused"))).await?;
    holds("ten of twenty are refused", refused == 10, &refused)?;
    // of a burst any may be answered last
    page.click("#one").await?;
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
    steadily(page).await?;
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

/// Each that the page offers by a burst, last the first again.
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
    for (period, says) in [("4000", "/4s"), ("15000", "/15s"), ("30000", "/30s")] {
        set(page, "period_ms", period, says).await?;
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

    // who waits for the limit before is in nobody's way
    set(page, "max_wait_ms", "864000000", "waits up to 864000000 ms").await?;
    set(page, "period_ms", "36000000", "/10h").await?;
    // one passes, and seven wait: a key waits with as many requests as its quota has, ten here
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

/// One after another, under a new limit too, and no more once stopped.
async fn steadily(page: &Page<'_>) -> Outcome {
    const PRESSED: &str = "document.querySelector('#steady').ariaPressed";
    page.click("#steady").await?;
    page.until("a few", &format!("{} > 6", counted("ours", "refused"))).await?;
    set(page, "burst", "2", "burst 2").await?;
    // those under way when the limit changed may have taken units of the new one unseen
    let (admitted, refused) = (counted("ours", "admitted"), counted("ours", "refused"));
    let seen = format!("{admitted} <= 2 && {refused} > 6");
    page.until("the new limit", &seen).await?;
    page.click("#steady").await?;
    page.until("that it is stopped", &format!("{PRESSED} === 'false'")).await.map(drop)
}

/// The page says that the server is away, and goes on when it is back: by the limit that was in force,
/// whatever is wrong with the one that is being written.
async fn outage(page: &Page<'_>, server: &mut Server) -> Outcome {
    const WRONG: &str = "/units is 0/.test(document.querySelector('#wrong').textContent)";
    page.write("[name=units]", "0").await?;
    page.until("what is wrong", WRONG).await?;
    let address = server.address.to_string();
    let _ = server.child.kill();
    let _ = server.child.wait();
    page.until("that it is away", "document.querySelector('#said.bad')?.textContent").await?;
    *server = serve(&address);
    page.until("that it is back", "!document.querySelector('#said.bad')").await?;
    page.until("still what is wrong", WRONG).await?;
    page.click("#one").await?;
    sum(page, "ours", 1).await
}

/// Something to look at: a double burst across the naive edge, units that come back, refusals.
pub(crate) async fn telling(page: &Page<'_>) -> Outcome {
    page.until("the limit", "document.querySelector('#ours .what').textContent").await?;
    page.write("#many", "10").await?;
    page.click("#edge").await?;
    sum(page, "naive", 20).await?;
    page.write("#rate", "3").await?;
    page.click("#steady").await?;
    page.until("a while", &format!("{} >= 26", counted("ours", "admitted"))).await?;
    page.click("#steady").await?;
    // any of a burst may be answered last, and a machine that is held up refills before the picture:
    // then once more
    page.write("#many", "16").await?;
    let spent = format!(
        "return new Promise((then) => {{ \
         const refused = () => {}; const before = refused(); const start = performance.now(); \
         document.querySelector('#burst').click(); \
         const look = () => {{ \
             const few = /^[0-3] of/.test(document.querySelector('#ours .left').textContent) && \
                 document.querySelector('#answer').textContent.includes('retry-after'); \
             if (refused() > before && few && performance.now() - start > 400) then(true); \
             else if (performance.now() - start > 5000) then(false); \
             else requestAnimationFrame(look); }}; \
         look(); }})",
        counted("ours", "refused")
    );
    for _ in 0..10 {
        if page.run(&spent).await? == Value::Bool(true) {
            break;
        }
    }
    Ok(())
}

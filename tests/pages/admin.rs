//! The page of the admin router as an operator uses it.

use crate::{
    Outcome,
    browser::{ENTER, Page},
    looks,
    programs::{ANY_PORT, Server, example},
};

const DENIED: &str = "[...document.querySelectorAll('.rule')]\
    .find((rule) => rule.querySelector('h3').textContent === 'user')";

fn serve(address: &str) -> Server {
    let mut command = example("admin");
    command.env("ADMIN_PASSWORD", "correct-horse").env("ADDR", address);
    tokio::task::block_in_place(|| Server::start(command))
}

/// Opens `http://admin:password@…`, as a user with the password types it.
async fn start(page: &Page<'_>) -> Outcome<Server> {
    let server = serve(ANY_PORT);
    page.go(&format!("http://admin:correct-horse@{}/admin", server.address)).await?;
    page.until("the layers", "document.querySelectorAll('#layers .rule').length === 2").await?;
    Ok(server)
}

/// Returns the statuses of successive API requests by clients named `alice`.
async fn asked(page: &Page<'_>, times: u32) -> Outcome<Vec<u64>> {
    let script = format!(
        "const seen = []; for (let n = 0; n < {times}; n++) seen.push((await fetch(location.origin + '/api', \
         {{ headers: {{ 'x-api-key': 'alice' }} }})).status); return seen"
    );
    let seen = page.run(format!("return (async () => {{ {script} }})()")).await?;
    Ok(seen.as_array().into_iter().flatten().filter_map(serde_json::Value::as_u64).collect())
}

fn same(what: &str, seen: &[u64], wanted: &[u64]) -> Outcome {
    if seen == wanted { Ok(()) } else { Err(format!("{what}: {seen:?}, not {wanted:?}")) }
}

async fn answers(page: &Page<'_>, button: &str, says: &str) -> Outcome {
    page.click(&format!("button[value={button}]")).await?;
    let said = format!("document.querySelector('#answer').textContent.includes({says:?})");
    page.until(&format!("{button}: {says}"), &said).await.map(drop)
}

pub(crate) async fn play(page: &Page<'_>) -> Outcome {
    let mut server = start(page).await?;
    same("three pass in an hour", &asked(page, 5).await?, &[200, 200, 200, 429, 429])?;
    let denied = format!("{DENIED}.querySelector('.number').textContent.startsWith('2 denied')");
    page.until("two denials", &denied).await?;
    let listed = format!("{DENIED}.querySelectorAll('.recent li').length === 2");
    page.until("each denial", &listed).await?;
    page.until(
        "the store's health",
        "/local healthy/.test(document.querySelector('.health').textContent)",
    )
    .await?;

    page.choose("#layer", "api").await?;
    page.choose("#kind", "text").await?;
    page.write("#key", "alice").await?;
    answers(page, "peek", "0 of 3").await?;
    let seen = "document.querySelector('#answer code').textContent";
    let listed = format!("{DENIED}.querySelector('.recent code').textContent === {seen}");
    page.until("the fingerprint of the denials", &listed).await?;
    page.run(format!("{DENIED}.querySelector('details').open = true")).await?;
    looks::right(page, "admin").await?;

    answers(page, "reset", "The account is new again.").await?;
    same("the account is full again", &asked(page, 4).await?, &[200, 200, 200, 429])?;
    answers(page, "block", "Blocked for 10min.").await?;
    answers(page, "peek", "Blocked for 10 min").await?;
    answers(page, "reset", "The account is new again.").await?;
    same("a reset ends no block", &asked(page, 1).await?, &[429])?;
    answers(page, "unblock", "Not blocked any more.").await?;
    same("an unblock ends the block", &asked(page, 4).await?, &[200, 200, 200, 429])?;
    block_listed(page).await?;
    switches(page).await?;

    // Enters a wrong key by keyboard.
    page.choose("#layer", "site").await?;
    page.choose("#kind", "address").await?;
    page.write("#key", "nonsense").await?;
    page.run("document.querySelector('#key').focus()").await?;
    page.press(&[ENTER]).await?;
    page.until("the fix", "/a network with/.test(document.querySelector('#answer').textContent)")
        .await?;
    looks::right(page, "admin-wrong").await?;
    outage(page, &mut server).await?;
    looks::at_home(page).await
}

/// A failed toggle stays reported until one succeeds, through later polls.
async fn outage(page: &Page<'_>, server: &mut Server) -> Outcome {
    const FAILED: &str = "document.querySelector('#failed').textContent";
    let button = "button[aria-label='Report only: api']";
    let address = server.address.to_string();
    let _ = server.child.kill();
    let _ = server.child.wait();
    page.click(button).await?;
    page.accept().await?;
    page.until(
        "the failed toggle",
        &format!("{FAILED}.startsWith('Report only of api failed: the server does not respond')"),
    )
    .await?;
    looks::right(page, "admin-away").await?;
    let state =
        |is: &str| format!("document.querySelector('#state').textContent.startsWith({is:?})");
    page.until("the lost server", &state("Not up to date")).await?;
    *server = serve(&address);
    page.until("the returned server", &state("Up to date")).await?;
    page.until("the failed toggle, still", FAILED).await?;
    page.click(button).await?;
    page.accept().await?;
    page.until("the toggle", &format!("{FAILED} === ''")).await.map(drop)
}

/// Blocks and unblocks a listed key, whose fingerprint is shown instead of the key.
async fn block_listed(page: &Page<'_>) -> Outcome {
    let row = format!("{DENIED}.querySelector('.top li')");
    let text = page.until("a denied key", &format!("{row} && {row}.textContent")).await?;
    let text = text.as_str().unwrap_or_default();
    if text.contains("alice") || !text.contains("denied") {
        return Err(format!("the row of a denied key: {text}"));
    }
    page.click("button[aria-label^='Block key']").await?;
    page.accept().await?;
    page.until("the block", &format!("{row}.textContent.includes('blocked for 10 min')")).await?;
    looks::right(page, "admin-blocked").await?;
    same("a reset ends no block", &asked(page, 1).await?, &[429])?;
    page.click("button[aria-label^='Unblock key']").await?;
    page.until("no block", &format!("!{row}.textContent.includes('blocked')")).await.map(drop)
}

/// Toggles report-only of the rule and of the layer, and the kill switch, each with a
/// confirmation.
async fn switches(page: &Page<'_>) -> Outcome {
    for (label, passes) in [
        ("Report only: rule user of api", "true"),
        ("Report only: api", "true"),
        ("Limits: api", "false"),
    ] {
        let button = format!("button[aria-label='{label}']");
        let is = |on: &str| format!("document.querySelector(\"{button}\").ariaChecked === '{on}'");
        let usual = if passes == "true" { "false" } else { "true" };
        page.until(label, &is(usual)).await?;
        same(label, &asked(page, 1).await?, &[429])?;
        page.click(&button).await?;
        page.accept().await?;
        page.until(label, &is(passes)).await?;
        same(label, &asked(page, 2).await?, &[200, 200])?;
        page.click(&button).await?;
        page.accept().await?;
        page.until(label, &is(usual)).await?;
        same(label, &asked(page, 1).await?, &[429])?;
    }
    Ok(())
}

//! A server that answers late, or returns `BUSY`.

use std::time::Duration;

use redis::cmd;
use tokio::time::{Instant, sleep};

use super::server::nothing;
use crate::{
    app::App,
    fault::{Fault, Findings, Must, World},
    servers::{Server, eventually},
    stack::{BURST, Door},
    stage::Ran,
};

const SLOW: Must = Must::policy(2 * BURST, &["budget", "disconnected"]).opens(150);
const LIKE_A_FREEZE: &str = "as a freeze";

pub(crate) fn faults() -> Vec<Fault> {
    vec![
        Fault::of_server("slow", LIKE_A_FREEZE, SLOW, (sleep_again_and_again, nothing)),
        Fault::of_server(
            "busy with a script",
            "as a freeze; BUSY is an error of the store",
            Must::policy(2 * BURST, &["busy", "budget", "disconnected"]).opens(150),
            (run_a_long_script, end_the_script),
        ),
        Fault::new("writes paused", LIKE_A_FREEZE, SLOW, async |options| Paused {
            server: options.server().await,
        }),
    ]
}

async fn sleep_again_and_again(server: &mut Server, end: Instant) {
    while Instant::now() < end {
        let () = server.command("DEBUG SLEEP 0.5").await;
        sleep(Duration::from_millis(20)).await;
    }
}

async fn run_a_long_script(server: &mut Server, _: Instant) {
    let () = server.command("CONFIG SET busy-reply-threshold 50").await;
    let mut connection = server.connection().await.expect("connects");
    drop(tokio::spawn(async move {
        let mut script = cmd("EVAL");
        script.arg("while true do end").arg(0);
        // The call ends with an error when the script is killed.
        let _ = script.query_async::<()>(&mut connection).await;
    }));
}

async fn end_the_script(server: &mut Server) {
    let end = async || server.attempt::<()>("SCRIPT KILL").await.ok();
    eventually("the script ends", end).await;
}

/// Scripts that may write wait, and run after the pause, even if no caller waits for the answer any
/// more.
struct Paused {
    server: Server,
}

impl World for Paused {
    fn door(&self, _: usize) -> Door {
        Door::Server(self.server.url())
    }

    async fn strike(&mut self, _: &[App], _: Instant) {
        let () = self.server.command("CLIENT PAUSE 60000 WRITE").await;
    }

    async fn heal(&mut self) {
        let () = self.server.command("CLIENT UNPAUSE").await;
    }

    async fn look(&mut self, ran: &Ran) -> Findings {
        let stats: String = self.server.command("INFO commandstats").await;
        let calls = |line: &str| -> Option<u64> {
            let (name, rest) = line.strip_prefix("cmdstat_eval")?.split_once(":calls=")?;
            ["", "sha"].contains(&name).then(|| rest.split(',').next()?.parse().ok())?
        };
        let ran_there: u64 = stats.lines().filter_map(calls).sum();
        let answered: u64 = ran.logs.iter().map(|log| log.answered).sum();
        let late = ran_there.saturating_sub(answered);
        Findings::default().note(format!("{late} calls ran after their time-out"))
    }
}

//! A server that loses its scripts, crashes, or freezes.

use tokio::time::Instant;

use crate::{
    fault::{Fault, Must},
    servers::Server,
    stack::{BURST, Policy},
};

/// Errors reveal a crash immediately.
const CRASH: Must = Must::policy(2 * BURST, &["disconnected"]).opens(50);
/// Timeouts reveal a freeze.
const FREEZE: Must = Must::policy(2 * BURST, &["budget", "disconnected"]).opens(150);

pub(crate) fn faults() -> Vec<Fault> {
    vec![
        Fault::of_server(
            "scripts lost",
            "no visible effect",
            Must::UNNOTICED,
            (async |server: &mut Server, _| server.command::<()>("SCRIPT FLUSH").await, nothing),
        ),
        Fault::of_server(
            "scripts lost again and again",
            "no visible effect",
            Must::UNNOTICED,
            (flush_again_and_again, nothing),
        ),
        Fault::of_server(
            "crash",
            "breakers open within 50 ms; at most the lost burst and the fallback's above the limit",
            CRASH,
            (kill, restart),
        ),
        Fault::of_server(
            "crash, fail open",
            "breakers open within 50 ms; no limit during the fault",
            CRASH.overshoots(None),
            (kill, restart),
        )
        .policy(Policy::FailOpen),
        Fault::of_server(
            "crash, fail closed",
            "breakers open within 50 ms; at most the lost burst above the limit",
            CRASH.overshoots(Some(BURST)),
            (kill, restart),
        )
        .policy(Policy::FailClosed),
        Fault::of_server(
            "freeze",
            "breakers open within the budget and 50 ms; at most the fallback's burst and one on \
             return above the limit",
            FREEZE,
            (freeze, thaw),
        ),
        Fault::of_server(
            "freeze, fail open",
            "breakers open within the budget and 50 ms; no limit during the fault",
            FREEZE.overshoots(None),
            (freeze, thaw),
        )
        .policy(Policy::FailOpen),
        Fault::of_server(
            "freeze, fail closed",
            "breakers open within the budget and 50 ms; the limit is never exceeded",
            FREEZE.overshoots(Some(0)),
            (freeze, thaw),
        )
        .policy(Policy::FailClosed),
    ]
}

async fn flush_again_and_again(server: &mut Server, end: Instant) {
    while Instant::now() < end {
        let () = server.command("SCRIPT FLUSH").await;
    }
}

async fn kill(server: &mut Server, _: Instant) {
    server.kill();
}

async fn restart(server: &mut Server) {
    server.restart().await;
}

async fn freeze(server: &mut Server, _: Instant) {
    server.stop();
}

async fn thaw(server: &mut Server) {
    server.cont();
}

pub(super) async fn nothing(_: &mut Server) {}

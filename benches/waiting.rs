//! Slots for which requests of several processes wait on Redis: how much of the time they are held, how
//! many calls the waiting takes, and how equally the processes are served.
//!
//! `cargo bench -p dev --features redis --bench waiting`
//!
//! `… --bench waiting -- 2-4` runs the cases of two slots and four processes.
//!
//! A process is a store with a connection of its own. Each has more clients than there are slots, and a
//! client asks again as soon as its work is done.
#![allow(clippy::print_stdout)]

#[path = "../tests/support/servers/mod.rs"]
mod servers;

use std::{
    env::args,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use servers::Server;
use tokio::{task::JoinSet, time::sleep};
use tower_sluice::{Limiter, Quota, RedisStore};

const SETTLING: Duration = Duration::from_millis(1_500);
/// The least time for which a case is measured, and the least number of holds.
const TIME: Duration = Duration::from_secs(4);
const HOLDS: u64 = 40;

/// Requests that compete for slots.
#[derive(Clone, Copy)]
struct Case {
    slots: u32,
    processes: usize,
    /// The mean time for which a slot is held, in milliseconds.
    held: u64,
    /// `true` if slots are held for any time up to twice the mean.
    varies: bool,
}

#[tokio::main]
async fn main() {
    let server = Server::redis().await;
    println!(
        "| slots | processes | held for | slots in use | calls per second | least and most used |"
    );
    println!("|--:|--:|--:|--:|--:|--:|");
    for slots in [1, 2] {
        for processes in [1, 2, 4] {
            for held in [2, 10, 50, 300] {
                run(&server, Case { slots, processes, held, varies: false }).await;
            }
            run(&server, Case { slots, processes, held: 50, varies: true }).await;
        }
    }
}

/// Prints a row for a case.
async fn run(server: &Server, case: Case) {
    let name = if case.varies { "varies" } else { "steady" };
    let key = format!("{}-{}-{}-{name}", case.slots, case.processes, case.held);
    if args().skip(1).any(|arg| arg.starts_with(char::is_numeric) && !key.starts_with(&arg)) {
        return;
    }
    let mut clients = JoinSet::new();
    let mut used = Vec::new();
    for process in 0..case.processes {
        let store = RedisStore::connect(server.url()).await.expect("a store");
        let own = Arc::new(AtomicU64::new(0));
        for client in 0..2 * u64::from(case.slots) {
            let limiter = Limiter::named("waiting", store.clone());
            clients.spawn(work(
                limiter,
                key.clone(),
                case,
                process as u64 + 7 * client,
                own.clone(),
            ));
        }
        used.push(own);
    }
    sleep(SETTLING).await;
    let calls = server.script_calls().await;
    let before: Vec<_> = used.iter().map(|own| own.load(Relaxed)).collect();
    let start = Instant::now();
    sleep(TIME.max(Duration::from_millis(HOLDS * case.held))).await;
    let took = start.elapsed();
    let parts: Vec<_> =
        used.iter().zip(before).map(|(own, before)| own.load(Relaxed) - before).collect();
    let calls = server.script_calls().await - calls;
    clients.shutdown().await;
    let all = parts.iter().sum::<u64>() as f64;
    let of_all = |part: Option<&u64>| part.map_or(0.0, |part| *part as f64 * 100.0 / all);
    let Case { slots, processes, held, varies } = case;
    println!(
        "| {slots} | {processes} | {}{held} ms | {:.0} % | {:.0} | {:.0} % {:.0} % |",
        if varies { "about " } else { "" },
        all / 10_000.0 / f64::from(slots) / took.as_secs_f64(),
        f64::from(calls) / took.as_secs_f64(),
        of_all(parts.iter().min()),
        of_all(parts.iter().max()),
    );
}

/// Takes a slot again and again. Counts the microseconds for which it is held.
async fn work(
    limiter: Limiter<RedisStore>,
    key: String,
    case: Case,
    mut dice: u64,
    used: Arc<AtomicU64>,
) {
    let quota = Quota::concurrent(case.slots);
    loop {
        dice = dice.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        let held = if case.varies { (dice >> 33) % (2 * case.held) } else { case.held };
        let slot = async {
            let start = Instant::now();
            sleep(Duration::from_millis(held)).await;
            used.fetch_add(u64::try_from(start.elapsed().as_micros()).unwrap_or(0), Relaxed);
        };
        limiter.try_throttle(key.as_str(), &quota, slot).await.expect("a slot");
    }
}

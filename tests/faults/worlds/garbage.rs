//! A server that does not speak the protocol of Redis.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use tower_sluice::{Limiter, RedisStore, StoreExt};

use super::count_by_key;
use crate::{
    app::App,
    fault::{Fault, Findings, Must, World},
    options::Options,
    servers::{FakeServer, Server},
    stack::{BUDGET, BURST, Door, QUOTA},
    stage::Ran,
    turnstile::Turnstile,
};

pub(crate) fn faults() -> Vec<Fault> {
    let must = Must::policy(2 * BURST, &["reply", "disconnected", "budget", "other"]).opens(150);
    let holds = "errors; no request is admitted by accident";
    vec![Fault::new("garbage for replies", holds, must, async |options| {
        Garbage::start(options).await
    })]
}

/// Replies of other types, with other lengths, with unknown flags and impossible instants, and one
/// that would admit without a charge.
fn replies() -> Vec<Vec<u8>> {
    let admit = |rest: &[u8]| bulk(&[&[1][..], rest].concat());
    let texts = ["$-1\r\n", ":1\r\n", ":9223372036854775807\r\n", "+OK\r\n", "*0\r\n", "*-1\r\n"];
    let more = ["*2\r\n:1\r\n$2\r\nok\r\n", "-\r\n", "-WHAT is this\r\n", "_\r\n", "#t\r\n"];
    let broken =
        ["HTTP/1.1 400 Bad Request\r\n\r\n", "$5\r\nab\r\n", "\0\0\0\0", "$99999999999\r\n"];
    let bulks = [
        bulk(&[]),
        admit(&[]),
        admit(&[0; 14]),
        admit(&[255; 14]),
        admit(&[&[0; 9][..], &[1, 255, 255, 255, 255]].concat()),
        bulk(&[7; 34]),
        bulk(&[2; 4_096]),
    ];
    let texts = texts.into_iter().chain(more).chain(broken).map(|text| text.as_bytes().to_vec());
    texts.chain(bulks).collect()
}

fn bulk(bytes: &[u8]) -> Vec<u8> {
    [format!("${}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
}

struct Garbage {
    server: Server,
    fake: FakeServer,
    turnstile: Turnstile,
    long: bool,
}

impl Garbage {
    async fn start(options: &Options) -> Self {
        let (server, fake) = (options.server().await, FakeServer::answering("$-1\r\n").await);
        let turnstile = Turnstile::to(server.address()).await;
        Self { server, fake, turnstile, long: options.long }
    }
}

impl World for Garbage {
    fn door(&self, _: usize) -> Door {
        self.turnstile.door()
    }

    async fn strike(&mut self, _: &[App], end: Instant) {
        self.turnstile.turn(self.fake.addr());
        let (replies, left) = (replies(), end.saturating_duration_since(Instant::now()));
        let each = left / u32::try_from(replies.len()).expect("few");
        for reply in replies {
            self.fake.answer(reply);
            sleep(each).await;
        }
    }

    async fn heal(&mut self) {
        self.turnstile.turn(self.server.address());
    }

    async fn look(&mut self, ran: &Ran) -> Findings {
        // Requests to the real server may still have been answered.
        let from = ran.struck + Duration::from_millis(20);
        let during = |asked, answered| asked >= from && answered < ran.healed;
        let admitted = count_by_key(ran, |entry| {
            entry.is_from_redis() && entry.allowed && during(entry.asked, entry.answered)
        });
        let admitted: u64 = admitted.values().sum();
        let asked = self.fake.asked().len();
        let decided = self.decided_by_garbage().await;
        Findings::default()
            .note(format!("{asked} commands answered with garbage, {admitted} admitted"))
            .note(format!(
                "{} more without a breaker: {decided:?}",
                self.fake.asked().len() - asked
            ))
            .demand(admitted + decided.admitted == 0, "something was admitted by garbage".into())
    }
}

/// The results of calls that garbage answered.
#[derive(Debug, Default)]
struct Decided {
    errors: u64,
    denied: u64,
    admitted: u64,
}

impl Garbage {
    /// Returns the results of every reply from the store itself, and of a denial with one byte
    /// changed: each byte to each other value, or to some of them.
    async fn decided_by_garbage(&self) -> Decided {
        let store = RedisStore::connect(&self.fake.url()).lazy().expect("a URL").timeout(BUDGET);
        let (limiter, mut decided) = (Limiter::named("default", store), Decided::default());
        let (denial, step) = (denial(), if self.long { 1 } else { 16 });
        let changed = |at: usize, by: u8| {
            let mut reply = denial.clone();
            reply[at] ^= by;
            bulk(&reply)
        };
        let all = (0..denial.len()).flat_map(|at| (1..=255).step_by(step).map(move |by| (at, by)));
        for reply in replies().into_iter().chain(all.map(|(at, by)| changed(at, by))) {
            self.fake.answer(reply);
            match limiter.try_take("k", &QUOTA, 1).await {
                Err(_) => decided.errors += 1,
                Ok(decision) if decision.is_allowed() => decided.admitted += 1,
                Ok(_) => decided.denied += 1,
            }
        }
        decided
    }
}

/// A denial in the form of the scripts: denied, now, and the unchanged account.
fn denial() -> Vec<u8> {
    let instant = |micros: u64| [&micros.to_le_bytes()[..7], &[0, 0]].concat();
    let now = 1_795_000_000_000_000_u64;
    let account = [&now.to_le_bytes()[..7], b"g", &[9, 0], &instant(now + 990_000)].concat();
    [&[0][..], &instant(now), &[0, 19, 0, 0, 0], &account].concat()
}

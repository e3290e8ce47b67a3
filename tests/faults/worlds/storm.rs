//! Many processes lose one server and reconnect to it.

use std::{ops::Range, time::Duration};

use tokio::time::sleep;
use tower_sluice::{Limiter, RedisStore, StoreExt, decision::Source};

use crate::{
    fault::Fault,
    log::now,
    options::Options,
    row::Row,
    servers::eventually,
    stack::{BUDGET, Door, QUOTA},
    turnstile::Turnstile,
};

const STORES: usize = 50;
/// The interval of the requests of one store.
const PAUSE: Duration = Duration::from_millis(20);
/// An outage long enough for the pauses between attempts to reach their full length in its second
/// half.
const OUTAGE: Duration = Duration::from_secs(4);

pub(crate) fn faults() -> Vec<Fault> {
    let holds = "one connection at a time for each store, fewer than four attempts a second when \
                 the outage lasts, and not all at once when it is over";
    vec![Fault::other("reconnect storm", holds, storm)]
}

async fn storm(options: &Options, mut row: Row) -> Row {
    let mut server = options.server().await;
    // Each store has its own turnstile, which counts its attempts.
    let (mut doors, mut stores) = (Vec::new(), Vec::new());
    for number in 0..STORES {
        let door = Turnstile::to(server.address()).await;
        let Door::Server(url) = door.door() else { unreachable!("a server") };
        let store = RedisStore::connect(&url).await.expect("connects");
        let limiter = Limiter::named("default", store.timeout(BUDGET).breaker().fail_open());
        doors.push(door);
        stores.push(limiter.clone());
        drop(tokio::spawn(async move {
            loop {
                let _ = limiter.take(format!("k{number}"), &QUOTA, 1).await;
                sleep(PAUSE).await;
            }
        }));
    }
    sleep(options.before).await;

    server.kill();
    let killed = now();
    sleep(OUTAGE).await;
    server.restart().await;
    let started = now();
    for limiter in &stores {
        let back = async || {
            let look = limiter.peek("k", &QUOTA).await;
            (look.source() == Source::Redis).then_some(())
        };
        eventually("a store is back", back).await;
    }
    let back = now();

    let counts: Vec<_> = doors.iter().map(Turnstile::counts).collect();
    let attempts = Attempts::of(counts.iter().flat_map(|counts| &counts.accepted).copied());
    let late = killed + OUTAGE / 2..started;
    let rate = attempts.rate(&late) / f64::from(u8::try_from(STORES).expect("few"));
    let peaks = [killed..killed + OUTAGE / 2, late, started..back].map(|time| attempts.peak(&time));
    row.notes.push(format!(
        "{STORES} stores; attempts in 100 ms at most: {} after the crash, {} from 2 s to 4 s after \
         it, {} after the start; {rate:.1} a second for each store from 2 s on; the last connected \
         {:.0?} after the start, and all were answered after {:.0?}",
        peaks[0],
        peaks[1],
        peaks[2],
        attempts.last() - started,
        back - started,
    ));
    let together = counts.iter().map(|counts| counts.peak).max().unwrap_or(0);
    row.demand(together == 1, || format!("{together} connections of one store at a time"));
    row.demand(rate < 4.0, || format!("{rate:.1} attempts a second for each store"));
    row.demand(peaks[2] < STORES, || "all came back at once".into());
    row
}

/// The instants of connections, in order.
struct Attempts(Vec<Duration>);

impl Attempts {
    fn of(times: impl Iterator<Item = Duration>) -> Self {
        let mut times: Vec<_> = times.collect();
        times.sort_unstable();
        Self(times)
    }

    fn within(&self, time: &Range<Duration>) -> usize {
        self.0.iter().filter(|at| time.contains(*at)).count()
    }

    /// Returns the most connections in a tenth of a second.
    fn peak(&self, time: &Range<Duration>) -> usize {
        let starts = self.0.iter().filter(|at| time.contains(*at));
        let tenth = Duration::from_millis(100);
        starts.map(|at| self.within(&(*at..*at + tenth))).max().unwrap_or(0)
    }

    fn rate(&self, time: &Range<Duration>) -> f64 {
        let count = u32::try_from(self.within(time)).expect("few");
        f64::from(count) / (time.end - time.start).as_secs_f64()
    }

    fn last(&self) -> Duration {
        self.0.last().copied().unwrap_or_default()
    }
}

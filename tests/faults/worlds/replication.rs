//! A replica that takes over without the last writes.

use std::{collections::BTreeMap, time::Duration};

use tokio::time::{Instant, sleep_until};
use tower_sluice::decision::Source;

use super::count_by_key;
use crate::{
    app::App,
    fault::{Fault, Findings, Must, World},
    log::now,
    options::Options,
    servers::{Mode, Proxy, Server},
    stack::{BURST, Door},
    stage::Ran,
    turnstile::Turnstile,
};

pub(crate) fn faults() -> Vec<Fault> {
    vec![Fault::new(
        "replication lost",
        "above the limit at most the lost admissions of a key, a burst of them, and what the \
         fallback admitted",
        Must::policy(0, &["disconnected", "budget"]).may_pass(),
        async |options| Behind::start(options).await,
    )]
}

/// A primary and a replica that follows through a proxy.
struct Behind {
    primary: Server,
    replica: Server,
    link: Proxy,
    turnstile: Turnstile,
    /// The instants from which and until which the primary's writes were lost.
    lost: (Duration, Duration),
}

impl Behind {
    async fn start(options: &Options) -> Self {
        let (primary, replica) = (options.server().await, options.server().await);
        let link = Proxy::start(primary.address()).await;
        replica.replica_of(link.addr()).await;
        let turnstile = Turnstile::to(primary.address()).await;
        Self { primary, replica, link, turnstile, lost: Default::default() }
    }
}

impl World for Behind {
    fn door(&self, _: usize) -> Door {
        self.turnstile.door()
    }

    /// The kernel delivers data that a killed primary has sent. Only unsent data is lost.
    async fn strike(&mut self, _: &[App], end: Instant) {
        self.link.set(Mode::BlackHole).await;
        let cut = now();
        sleep_until(end).await;
        self.primary.kill();
        self.lost = (cut, now());
        self.replica.promote().await;
        self.turnstile.turn(self.replica.address());
    }

    async fn heal(&mut self) {}

    async fn look(&mut self, ran: &Ran) -> Findings {
        let (from, to) = self.lost;
        let lost = count_by_key(ran, |entry| {
            let meanwhile = entry.answered >= from && entry.asked <= to;
            entry.allowed && entry.is_from_redis() && meanwhile
        });
        let all: u64 = lost.values().sum();
        let most = lost.values().max().copied().unwrap_or(0);

        let local = count_by_key(ran, |e| e.allowed && e.source == Source::Fallback);
        let mut allowance: BTreeMap<u16, u64> =
            lost.into_iter().map(|(key, units)| (key, units.min(BURST))).collect();
        for (key, units) in local {
            *allowance.entry(key).or_default() += units;
        }
        let found = Findings { allowance, ..Findings::default() };
        found
            .note(format!("{all} admissions were lost, up to {most} of a key"))
            .demand(all > 0, "nothing was lost".into())
    }
}

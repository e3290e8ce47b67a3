//! Two primaries at a time, each with half of the apps.

use std::{collections::BTreeMap, ops::Range, time::Duration};

use tokio::time::Instant;
use tower_sluice::Quota;

use crate::{
    app::App,
    fault::{Fault, Findings, Must, World},
    log::Entry,
    options::Options,
    overshoot::overshoot,
    servers::Server,
    stack::{APPS, Door, QUOTA},
    stage::Ran,
    turnstile::Turnstile,
};

/// Two limits of one burst and rate each.
const DOUBLE: Quota = Quota::per_second(20).with_burst(20);

pub(crate) fn faults() -> Vec<Fault> {
    vec![Fault::new(
        "split brain",
        "two limits at most, and each side keeps its own",
        Must::policy(0, &["disconnected", "budget"]).overshoots(None).may_pass(),
        async |options| Split::start(options).await,
    )]
}

struct Split {
    primary: Server,
    replica: Server,
    /// One per app.
    turnstiles: Vec<Turnstile>,
}

impl Split {
    async fn start(options: &Options) -> Self {
        let (primary, replica) = (options.server().await, options.server().await);
        replica.replica_of(primary.address()).await;
        let mut turnstiles = Vec::new();
        for _ in 0..APPS {
            turnstiles.push(Turnstile::to(primary.address()).await);
        }
        Self { primary, replica, turnstiles }
    }
}

impl World for Split {
    fn door(&self, app: usize) -> Door {
        self.turnstiles[app].door()
    }

    async fn strike(&mut self, _: &[App], _: Instant) {
        self.replica.promote().await;
        self.turnstiles[1].turn(self.replica.address());
    }

    async fn heal(&mut self) {
        self.turnstiles[1].turn(self.primary.address());
    }

    async fn look(&mut self, ran: &Ran) -> Findings {
        let split = ran.struck..ran.healed;
        let both = worst(ran.entries().map(|(_, entry)| entry), &DOUBLE);
        let side = |app: usize| {
            let entries = ran.logs[app].entries.iter();
            let there = |e: &&Entry| e.is_from_redis() && lies_in(e, &split);
            worst(entries.filter(there), &QUOTA)
        };
        let own = (0..APPS).map(side).max().unwrap_or(0);

        let meanwhile = ran.entries().filter(|(_, entry)| lies_in(entry, &split));
        let admitted = meanwhile.filter(|(_, entry)| entry.allowed).count();
        let keys = ran.entries().map(|(_, entry)| entry.key).max().unwrap_or(0) + 1;
        let time = (split.end - split.start).as_secs_f64() / QUOTA.interval().as_secs_f64();
        let ratio = f64::from(u32::try_from(admitted).expect("fits")) / (time * f64::from(keys));
        Findings::default()
            .note(format!("{ratio:.2} times the rate of one limit during the split"))
            .demand(both == 0, format!("{both} above two limits"))
            .demand(own == 0, format!("{own} above the limit on one side"))
    }
}

fn lies_in(entry: &Entry, time: &Range<Duration>) -> bool {
    entry.asked >= time.start && entry.answered < time.end
}

/// Returns the units of the worst key above the quota.
fn worst<'a>(entries: impl Iterator<Item = &'a Entry>, quota: &Quota) -> u64 {
    let mut admitted = BTreeMap::<u16, Vec<_>>::new();
    for entry in entries.filter(|entry| entry.allowed) {
        admitted.entry(entry.key).or_default().push(entry.decided());
    }
    admitted.values().map(|times| overshoot(times, quota)).max().unwrap_or(0)
}

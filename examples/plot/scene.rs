//! The scene: one series of calls for every algorithm, decided by the crate on a fake clock.
#![allow(clippy::cast_possible_truncation, reason = "a scene takes seconds")]

use std::time::Duration;

use tower_sluice::{
    Algorithm, Key, Quota, StoreExt, rule::RuleName, store::Charge, testing::FakeClock,
};

/// The duration of the scene, in milliseconds.
pub(crate) const END: u64 = 7_000;
/// All calls, and all samples of the account, are at multiples of this step.
const STEP: u64 = 5;

/// The phases of the calls, and their approximate times in milliseconds.
pub(crate) const PHASES: [(&str, u64); 4] =
    [("12 at once", 500), ("4, then 4", 2_060), ("slower", 3_185), ("twice too fast", 5_000)];

/// Returns the arrival times in milliseconds, under a limit of four per second. Calls are at least
/// 125 ms apart unless simultaneous, and none is at a full second.
fn arrivals() -> impl Iterator<Item = u64> {
    let burst = [435; 12].into_iter();
    let astride = [[1_935; 4], [2_185; 4]].into_iter().flatten(); // of the edge at 2 s
    let slower = [2_685, 3_185, 3_685].into_iter();
    let faster = (0..16).map(|n| 4_060 + 125 * n);
    burst.chain(astride).chain(slower).chain(faster)
}

pub(crate) enum Fate {
    Admitted,
    /// Allowed after a wait of this many milliseconds.
    Waited(u64),
    Denied,
}

pub(crate) struct Call {
    pub(crate) at: u64,
    pub(crate) fate: Fate,
}

/// The results of the calls, and the course of the account.
pub(crate) struct Scene {
    pub(crate) calls: Vec<Call>,
    /// The units left, each from a time in milliseconds.
    pub(crate) left: Vec<(u64, u32)>,
}

impl Scene {
    pub(crate) fn play(quota: Quota, patience: Duration) -> Self {
        let clock = FakeClock::new();
        let (store, key, quotas) = (clock.store(1), Key::from("alice"), [quota]);
        let charge = Charge::new(RuleName::default(), &key, &quotas).with_max_wait(patience);

        let (mut calls, mut left) = (Vec::new(), Vec::new());
        let mut arrivals = arrivals().peekable();
        for at in (0..=END).step_by(STEP as usize) {
            clock.advance(Duration::from_millis(at).saturating_sub(clock.now()));
            let mut look = || {
                let units = store.take(&[charge.with_cost(0)]).now().outcomes()[0].remaining();
                if left.last().is_none_or(|(_, before)| *before != units) {
                    left.push((at, units));
                }
            };
            look();
            while arrivals.next_if_eq(&at).is_some() {
                let decision = store.take(&[charge]).now();
                let fate = match decision.wait().as_millis() as u64 {
                    _ if !decision.is_allowed() => Fate::Denied,
                    0 => Fate::Admitted,
                    wait => Fate::Waited(wait),
                };
                calls.push(Call { at, fate });
            }
            look();
        }
        Self { calls, left }
    }

    /// Returns the numbers of calls allowed at once, denied, and allowed after a wait.
    pub(crate) fn tally(&self) -> [usize; 3] {
        let mut tally = [0; 3];
        for call in &self.calls {
            tally[match call.fate {
                Fate::Admitted => 0,
                Fate::Denied => 1,
                Fate::Waited(_) => 2,
            }] += 1;
        }
        tally
    }

    /// Returns the maximum number of calls allowed within one second.
    pub(crate) fn most_in_a_second(&self) -> usize {
        let started = |call: &Call| match call.fate {
            Fate::Admitted => Some(call.at),
            Fate::Waited(wait) => Some(call.at + wait),
            Fate::Denied => None,
        };
        let starts: Vec<_> = self.calls.iter().filter_map(started).collect();
        let within = |from: &u64| {
            starts.iter().filter(|start| (*from..from + 1_000).contains(start)).count()
        };
        starts.iter().map(within).max().unwrap_or(0)
    }

    /// Returns the times at which windows start and end, or units come back together, in
    /// milliseconds.
    pub(crate) fn edges(&self, quota: &Quota) -> Vec<u64> {
        let turns = self.left.windows(2).map(|pair| (pair[0].1, pair[1]));
        let full = quota.limit();
        match quota.algorithm() {
            Algorithm::FixedWindow { .. } => (1_000..END).step_by(1_000).collect(),
            Algorithm::AnchoredWindow => turns
                .filter(|(before, (_, after))| *before == full || *after == full)
                .map(|(_, (at, _))| at)
                .collect(),
            Algorithm::TokenBucket => {
                turns.filter(|(before, (_, after))| after > before).map(|(_, (at, _))| at).collect()
            }
            _ => Vec::new(),
        }
    }
}

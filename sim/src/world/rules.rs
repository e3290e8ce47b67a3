//! The rules of a run: their quotas, and the quotas that a live plan has in turn.

use tower_sluice::{Algorithm, Quota};

use crate::{
    quotas::{self, plain},
    random::Random,
};

/// All rules of a run.
#[derive(Debug)]
pub struct Rules {
    /// The quotas of the rules of the layer.
    pub base: [Vec<Quota>; 2],
    /// The quotas that replace them at times in some process, if the plans are `live`.
    pub other: [Vec<Quota>; 2],
    pub live: bool,
    /// A rule whose requests queue, with its quota and the quota that replaces it at times.
    pub queued: [Quota; 2],
    /// A rule whose charges are adjusted.
    pub adjusted: Quota,
    /// The slots of a key on the servers.
    pub held: u32,
}

impl Rules {
    pub fn random(random: &mut Random, one_account: bool) -> Self {
        let some = |random: &mut Random| {
            let (one, two) = (plain(random), plain(random));
            // Two quotas of a rule need different periods.
            let both = random.percent(33) && one.period() != two.period();
            if both { vec![one, two] } else { vec![one] }
        };
        // One account per request is a case of its own in the scripts.
        let two = !one_account && random.percent(50);
        let base = [some(random), if two { some(random) } else { Vec::new() }];
        let other =
            [0, 1].map(|rule: usize| base[rule].iter().map(|it| tighter(random, it)).collect());
        Self {
            base,
            other,
            live: random.percent(40),
            queued: quotas::queueing(random),
            adjusted: quotas::adjusted(random),
            held: u32::try_from(random.within(1..5)).expect("few"),
        }
    }

    /// Returns the number of rules that charge a request of the layer.
    pub fn count(&self) -> usize {
        if self.base[1].is_empty() { 1 } else { 2 }
    }

    /// Returns the bounds of the quotas of a rule: both of them if its plan is live.
    pub fn bounds(&self, rule: usize) -> Vec<[Quota; 2]> {
        let pairs = self.base[rule].iter().zip(&self.other[rule]);
        pairs.map(|(base, other)| [*base, if self.live { *other } else { *base }]).collect()
    }
}

/// Returns a quota with fewer units.
fn tighter(random: &mut Random, quota: &Quota) -> Quota {
    let half = |units: u32| (units / 2).max(1);
    let slower = random.percent(50);
    let built = match quota.algorithm() {
        Algorithm::Gcra if slower => Quota::new(half(quota.units()), quota.period())
            .and_then(|it| it.try_with_burst(half(quota.limit()))),
        Algorithm::Gcra => Quota::new(quota.units(), quota.period())
            .and_then(|it| it.try_with_burst(half(quota.limit()))),
        // A store drops an account that is full under a smaller burst, as documented.
        Algorithm::TokenBucket => Quota::new(half(quota.units()), quota.period())
            .and_then(|it| it.try_with_burst(quota.limit())),
        _ => Quota::new(half(quota.units()), quota.period()),
    };
    let built = built.and_then(|it| it.try_with_algorithm(quota.algorithm()));
    built.expect("a valid quota with fewer units")
}

/// Returns a quota that is at least as large as both of a live plan, in any order.
pub fn loosest([one, two]: &[Quota; 2]) -> Quota {
    match one.algorithm() {
        // The account is never ahead by more than the larger of both bursts, and each unit moves it
        // by at least the shorter interval.
        Algorithm::Gcra => {
            let interval = one.interval().min(two.interval());
            let ahead = (one.interval() * one.limit()).max(two.interval() * two.limit());
            let burst = ahead.as_nanos().div_ceil(interval.as_nanos());
            let burst = u32::try_from(burst).expect("few");
            Quota::new(1, interval).and_then(|it| it.try_with_burst(burst)).expect("a quota")
        }
        _ if one.limit() < two.limit() => *two,
        _ => *one,
    }
}

//! Charging several accounts: look at all, then charge all.

use smallvec::SmallVec;

use super::{
    Stats,
    accounts::{Account, Accounts, Addresses},
    blocks::Blocks,
    clock::Clock,
    crowd::Crowd,
    instants::Instants,
    windows::Windows,
};
use crate::{
    algorithm::{self, Receipt, Step, gcra::Gcra},
    decision::{Decision, NEVER, Numbers, Outcome},
    observe::late_charge_cut,
    quota::Quota,
    store::Charge,
};

/// Two slots a key: at the configured capacity a set of 16 then overflows for less than one key in
/// a thousand.
pub(super) const SLOTS_PER_KEY: usize = 2;
/// How often a decision over several accounts looks again because another thread charged in
/// between. It ends, since two newcomers who share an account may each fit and both never.
const RACES: usize = 16;
/// Times that a denial is repeated by a newer reading of the clock.
const AGAIN: usize = 2;

type Steps = SmallVec<[Step; 4]>;

/// All accounts of a store.
pub(super) struct Ledger {
    pub(super) clock: Clock,
    pub(super) addresses: Addresses,
    pub(super) instants: Instants,
    windows: Windows,
    pub(super) blocks: Blocks,
    pub(super) blocks_denied: Crowd,
}

impl Ledger {
    pub(super) fn new(clock: Clock, keys: usize) -> Self {
        let slots = keys.saturating_mul(SLOTS_PER_KEY);
        Self {
            clock,
            addresses: Addresses::new(),
            instants: Instants::new(slots),
            windows: Windows::new(slots),
            blocks: Blocks::default(),
            blocks_denied: Crowd::default(),
        }
    }

    pub(super) fn stats(&self) -> Stats {
        let now = self.clock.now();
        Stats {
            slots: self.instants.len(),
            in_debt: self.instants.in_debt(now) + self.windows.in_debt(now),
            overflowed: self.instants.overflowed() + self.windows.overflowed(),
            blocked: self.blocks.len(now),
        }
    }

    #[inline]
    pub(super) fn take(&self, charges: &[Charge<'_>]) -> Decision {
        self.take_at(charges, self.clock.now())
    }

    /// Decides by a reading of the clock that was made before.
    #[inline]
    fn take_at(&self, charges: &[Charge<'_>], now: u64) -> Decision {
        let mut decision = self.decide(charges, now);
        if !decision.is_allowed() {
            self.decide_again(charges, now, &mut decision);
        }
        decision
    }

    /// Repeats a denial that the time since its reading of the clock may have overtaken, at most
    /// twice. Other threads charge by readings of their own: a thread that was held up between
    /// reading and charging would otherwise be denied by the few nanoseconds that its reading is
    /// older than theirs.
    #[inline(never)]
    fn decide_again(&self, charges: &[Charge<'_>], mut now: u64, decision: &mut Decision) {
        let patience = charges.iter().map(|charge| charge.ask().max_wait).max().unwrap_or(0);
        for _ in 0..AGAIN {
            let later = self.clock.now();
            let retry = decision.binding().map_or(NEVER, Outcome::retry);
            let passed = later.saturating_sub(now);
            // waiting for `retry` would pass, and no shorter wait
            if passed == 0 || retry == NEVER || passed < retry.saturating_sub(patience) {
                return;
            }
            *decision = self.decide(charges, later);
            if decision.is_allowed() {
                return;
            }
            now = later;
        }
    }

    #[inline]
    fn decide(&self, charges: &[Charge<'_>], now: u64) -> Decision {
        if let [charge] = charges
            && let [quota] = charge.quotas()
            && charge.place().is_none()
            && !self.blocks.any(now)
        {
            return self.take_one(charge, quota, now);
        }
        self.take_several(charges, now)
    }

    /// The common case, without lists. What only the rest needs stays out of it: an [`Account`] in
    /// memory costs as much as the decision.
    #[inline]
    fn take_one(&self, charge: &Charge<'_>, quota: &Quota, now: u64) -> Decision {
        let ask = charge.ask();
        if let Some(gcra) = Gcra::counting(quota) {
            let id = self.addresses.id(charge, 0);
            if let Some(weighed) = self.instants.find(id, |stored| gcra.charge(stored, now, ask)) {
                return decision(charge, gcra.step(weighed), now);
            }
        }
        decision(charge, self.charge_one(charge, quota, now), now)
    }

    #[cold]
    #[inline(never)]
    fn charge_one(&self, charge: &Charge<'_>, quota: &Quota, now: u64) -> Step {
        self.charge(&self.addresses.account(charge, 0, quota), now)
    }

    #[inline(never)]
    fn take_several(&self, charges: &[Charge<'_>], now: u64) -> Decision {
        if self.blocks.any(now)
            && let Some(refusal) = self.refuse_blocked(charges, now)
        {
            return refusal;
        }
        let accounts = self.addresses.accounts(charges);
        for race in 1..=RACES {
            if let Some(decision) = self.take_all(&accounts, now, race == RACES) {
                return decision;
            }
        }
        Decision::deny()
    }

    /// Looks at all, then charges all. `None` when another thread charged in between: what was
    /// charged is given back, and it is time to look again, or, the `last` time, to refuse.
    fn take_all(&self, accounts: &Accounts<'_>, now: u64, last: bool) -> Option<Decision> {
        let all = &accounts.distinct;
        let look = |account: &Account<'_>| self.look(account, now);
        let mut steps: Steps = all.iter().map(look).collect();
        let fits = all.iter().zip(&steps).all(|(account, step)| account.permits(step));
        if !fits {
            // a refusal tells the waits of those who do not queue
            steps = all.iter().map(|account| look(&account.hurried())).collect();
        }
        let never =
            !fits && all.iter().zip(&steps).any(|(a, step)| !a.report_only && step.is_never());
        for (at, account) in all.iter().enumerate() {
            if !fits {
                if !never {
                    self.open(account, now);
                }
            } else if accounts.charges(account, &steps) {
                let step = self.charge(account, now);
                if !step.allowed {
                    for (account, step) in all.iter().zip(&steps).take(at) {
                        if accounts.charges(account, &steps) {
                            self.undo_step(account, now, step);
                        }
                    }
                    steps = all.iter().map(|account| look(&account.hurried())).collect();
                    steps[at] = step;
                    return last.then(|| accounts.decision(&steps, now, false));
                }
                steps[at] = step;
            } else {
                // of a rule that only reports: a first contact all the same
                self.open(account, now);
            }
        }
        Some(accounts.decision(&steps, now, fits))
    }

    pub(super) fn settle(&self, charge: &Charge<'_>, units: i64) -> Decision {
        // what mirrors another store's accounts has no cost, and loses nothing
        let pays = charge.units() > 0;
        self.each(charge, |account, now| {
            let (numbers, cut) = self.settle_one(account, now, units);
            if cut && pays {
                late_charge_cut(account.quota);
            }
            numbers
        })
    }

    pub(super) fn reset(&self, charge: &Charge<'_>) -> Decision {
        self.each(charge, |account, now| {
            // not before any charge that it ends: threads charge by readings of their own
            let clock = || self.clock.now();
            let Some(gcra) = Gcra::counting(account.quota) else {
                let show = |state: Option<&_>| account.numbers(state, now);
                return self.windows.end(account.at(), now, show, clock);
            };
            let show = |stored, now| gcra.look(stored, now, account.ask).numbers;
            let cold = |stored, floor| ((stored > floor).then_some(floor), show(floor, floor));
            self.instants.reset(account.at(), now, cold, show, clock)
        })
    }

    pub(super) fn undo(&self, charges: &[Charge<'_>], taken: &Decision, units: Option<u32>) {
        let now = self.clock.now();
        let accounts = self.addresses.accounts(charges);
        let on_them = taken.on(Charge::named(charges));
        for (at, account) in accounts.distinct.iter().enumerate() {
            let named = accounts.first_named(at).and_then(|named| on_them.outcomes().get(named));
            let charged = named.filter(|outcome| taken.charged(outcome.rule()));
            let receipt = charged.and_then(|it| Receipt::new(taken, it, account.ask, units));
            if let Some(receipt) = receipt {
                self.undo_one(account, now, receipt);
            }
        }
    }

    fn look(&self, account: &Account<'_>, now: u64) -> Step {
        let Account { quota, ask, .. } = *account;
        match Gcra::counting(quota) {
            Some(gcra) => {
                self.instants.look(account.at(), now, |stored| gcra.look(stored, now, ask))
            }
            None => self
                .windows
                .look(account.at(), now, |state| algorithm::look(state, quota, now, ask)),
        }
    }

    /// Charges the account if the ask fits.
    #[inline]
    fn charge(&self, account: &Account<'_>, now: u64) -> Step {
        let Account { quota, ask, .. } = *account;
        match Gcra::counting(quota) {
            Some(gcra) => {
                let take = |stored, now| gcra.take(stored, now, ask);
                self.instants.update(account.at(), now, take)
            }
            None => {
                let take = |state: &mut _| algorithm::take(state, quota, now, ask);
                self.windows.update(account.at(), now, take, |step| {
                    step.allowed || quota.initial_units().is_some()
                })
            }
        }
    }

    /// Opens a cold account that starts at `initial` units, though the decision refuses.
    fn open(&self, account: &Account<'_>, now: u64) {
        let Account { quota, ask, .. } = *account;
        if quota.initial_units().is_none() {
            return;
        }
        match Gcra::counting(quota) {
            Some(gcra) => {
                let open = |stored, now| (gcra.open(stored, now, ask), ());
                self.instants.update(account.at(), now, open);
            }
            None => {
                let open = |state: &mut _| algorithm::open(state, quota, now, ask);
                self.windows.update(account.at(), now, open, |()| true);
            }
        }
    }

    /// The account after the step, and whether a late charge was cut.
    fn settle_one(&self, account: &Account<'_>, now: u64, units: i64) -> (Numbers, bool) {
        let (quota, late) = (account.quota, units.unsigned_abs());
        match Gcra::counting(quota) {
            Some(gcra) if units < 0 => {
                let settle = |stored, now| {
                    let (new, numbers) = gcra.settle(stored, now, units);
                    (new, (numbers, gcra.cuts(stored, now, late)))
                };
                self.instants.update(account.at(), now, settle)
            }
            Some(gcra) => {
                let back = |stored, floor| gcra.settle(stored, floor, units);
                let show = |stored, now| gcra.look(stored, now, account.ask).numbers;
                (self.instants.lower(account.at(), now, back, show), false)
            }
            None if units < 0 => {
                let settle = |state: &mut _| {
                    let cut = algorithm::cuts(Option::as_ref(state), quota, now, late);
                    (algorithm::settle(state, quota, now, units), cut)
                };
                self.windows.update(account.at(), now, settle, |_| true)
            }
            None => {
                let settle = |state: &mut _| algorithm::settle(state, quota, now, units);
                let show = |state: Option<&_>| account.numbers(state, now);
                (self.windows.lower(account.at(), now, settle, show), false)
            }
        }
    }

    /// Undoes a charge that was just made, since another one could not be.
    fn undo_step(&self, account: &Account<'_>, now: u64, step: &Step) {
        let mut taken = Decision::new(true, now);
        taken.passes(step.overage, step.wait);
        if let Some(receipt) = Receipt::new(&taken, &account.outcome(step), account.ask, None) {
            self.undo_one(account, now, receipt);
        }
    }

    fn undo_one(&self, account: &Account<'_>, now: u64, receipt: Receipt) {
        let (at, quota, charged) = (account.at(), account.quota, receipt.charged);
        match Gcra::counting(quota) {
            Some(gcra) => {
                let back = |stored, now| gcra.undo(stored, now, receipt);
                self.instants.undo(at, now, charged, back);
            }
            None => {
                let back = |state: &mut _| algorithm::undo(state, quota, now, receipt);
                self.windows.undo(at, charged, back);
            }
        }
    }

    /// Applies `step` to every account of `charge` and says what is left.
    fn each(&self, charge: &Charge<'_>, step: impl Fn(&Account<'_>, u64) -> Numbers) -> Decision {
        let now = self.clock.now();
        let accounts = self.addresses.accounts(&[charge.cost(0)]);
        let settled = |account: &Account<'_>| Step::passed(step(account, now));
        let steps: Steps = accounts.distinct.iter().map(settled).collect();
        accounts.decision(&steps, now, true)
    }
}

/// What is said of one charge of one quota.
#[inline]
fn decision(charge: &Charge<'_>, step: Step, now: u64) -> Decision {
    let report_only = charge.is_report_only();
    let mut decision = Decision::new(step.allowed || report_only, now);
    if !report_only {
        decision.passes(step.overage, step.wait);
    }
    decision.push(Outcome::with(charge.rule(), 0, step.numbers).report_only(report_only));
    decision
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{key::Key, name::RuleName, quota::Algorithm};

    const SECOND: u64 = 1_000_000_000;

    /// A ledger whose clock stands at ten seconds.
    fn ledger() -> Ledger {
        let (clock, hands) = Clock::driven();
        hands.increment(10 * SECOND);
        Ledger::new(clock, 64)
    }

    /// Another thread made the first charge by a newer reading; the last unit is there for one that
    /// was held up since it read the clock.
    #[test]
    fn an_older_reading_of_the_clock_is_not_denied_by_nanoseconds() {
        let (one, two) = (Key::from("one"), Key::from("two"));
        let three = Quota::per_hour(3);
        for algorithm in [
            Algorithm::Gcra,
            Algorithm::TokenBucket,
            Algorithm::fixed_window(),
            Algorithm::AnchoredWindow,
            Algorithm::SlidingWindow { buckets: 4 },
            Algorithm::SlidingLog,
        ] {
            let quotas = [three.algorithm(algorithm), Quota::per_day(3).algorithm(algorithm)];
            let charge = |key, n: usize| Charge::new(RuleName::default(), key, &quotas[..n]);
            let of = [
                vec![charge(&one, 1)],
                vec![charge(&one, 2)],
                vec![charge(&one, 1), charge(&two, 2)],
            ];
            for charges in of {
                let ledger = ledger();
                for behind in [0, 3, 7] {
                    let decision = ledger.take_at(&charges, 10 * SECOND - behind);
                    assert!(decision.is_allowed(), "{algorithm:?}, {behind}: {decision:?}");
                }
                let denied = ledger.take_at(&charges, 10 * SECOND - 9);
                assert!(!denied.is_allowed(), "{algorithm:?} has three units");
            }
        }
    }

    /// A queue has its place one wait later.
    #[test]
    fn an_older_reading_of_the_clock_finds_the_last_place_of_a_queue() {
        let (key, quotas) = (Key::from("one"), [Quota::per_second(1).burst(1)]);
        let charge = Charge::new(RuleName::default(), &key, &quotas);
        let charge = charge.max_wait(Duration::from_secs(2));
        let ledger = ledger();
        for behind in [0, 1, 5] {
            assert!(ledger.take_at(&[charge], 10 * SECOND - behind).is_allowed(), "{behind}");
        }
        assert!(!ledger.take_at(&[charge], 10 * SECOND - 5).is_allowed());
    }

    #[test]
    fn a_refill_since_the_reading_of_the_clock_is_seen() {
        let (key, quota) =
            (Key::from("one"), Quota::per_second(1).algorithm(Algorithm::TokenBucket));
        let (quotas, (clock, hands)) = ([quota], Clock::driven());
        let charge = [Charge::new(RuleName::default(), &key, &quotas)];
        let ledger = Ledger::new(clock, 64);
        assert!(ledger.take_at(&charge, 0).is_allowed());
        hands.increment(SECOND);
        assert!(ledger.take_at(&charge, SECOND - 1).is_allowed());
    }
}

//! Decisions over one or several accounts. All accounts are charged, or none.

use smallvec::SmallVec;

use super::{
    Stats,
    accounts::{Account, Accounts, AddressHasher, decision},
    blocks::Blocks,
    clock::Clock,
    gcra_table::GcraTable,
    overflow_warning::OverflowWarning,
    state_table::StateTable,
};
use crate::{
    algorithm::{self, Evaluation, Receipt, gcra::Gcra},
    decision::{Decision, NEVER, Outcome, Snapshot},
    observe::late_charge_cut,
    quota::Quota,
    store::Charge,
};

/// Slots per key of the capacity. With two, a set of 16 is full for less than one key in a thousand
/// at that capacity.
pub(super) const SLOTS_PER_KEY: usize = 2;
/// The maximum number of attempts of a decision over several accounts, each of which fails if
/// another thread charges in between. A limit is needed, because two new keys that share an account
/// may fit alone but never together.
const MAX_ATTEMPTS: usize = 16;
/// The maximum number of times that a denial is repeated with a later reading of the clock.
const MAX_REPEATS: usize = 2;

type Evaluations = SmallVec<[Evaluation; 4]>;

/// All accounts and blocks of a store.
pub(super) struct Ledger {
    pub(super) clock: Clock,
    pub(super) hasher: AddressHasher,
    pub(super) gcra_table: GcraTable,
    state_table: StateTable,
    pub(super) blocks: Blocks,
    pub(super) block_warning: OverflowWarning,
}

impl Ledger {
    pub(super) fn new(clock: Clock, keys: usize) -> Self {
        let slots = keys.saturating_mul(SLOTS_PER_KEY);
        Self {
            clock,
            hasher: AddressHasher::new(),
            gcra_table: GcraTable::new(slots),
            state_table: StateTable::new(slots),
            blocks: Blocks::default(),
            block_warning: OverflowWarning::default(),
        }
    }

    pub(super) fn stats(&self) -> Stats {
        let now = self.clock.now();
        Stats {
            slots: self.gcra_table.len(),
            active: self.gcra_table.active(now) + self.state_table.active(now),
            overflowed: self.gcra_table.overflowed() + self.state_table.overflowed(),
            blocked: self.blocks.len(now),
        }
    }

    #[inline]
    pub(super) fn take(&self, charges: &[Charge<'_>]) -> Decision {
        self.take_at(charges, self.clock.now())
    }

    /// Decides with an earlier reading of the clock.
    #[inline]
    fn take_at(&self, charges: &[Charge<'_>], now: u64) -> Decision {
        let mut decision = self.decide(charges, now);
        if !decision.is_allowed() {
            self.decide_again(charges, now, &mut decision);
        }
        decision
    }

    /// Repeats a denial with a later reading of the clock, at most twice, if enough time has passed
    /// to change the result. A thread may be interrupted between its reading and its charge, while
    /// other threads charge by later readings. Without the repetition, it would be denied because
    /// its reading is a few nanoseconds older than theirs.
    #[inline(never)]
    fn decide_again(&self, charges: &[Charge<'_>], mut now: u64, decision: &mut Decision) {
        let max_wait = charges.iter().map(|charge| charge.demand().max_wait).max().unwrap_or(0);
        for _ in 0..MAX_REPEATS {
            let later = self.clock.now();
            let retry_ns = decision.binding().map_or(NEVER, Outcome::retry_ns);
            let elapsed = later.saturating_sub(now);
            // The denial stands for `retry_ns`, or for `max_wait` less if the charge may queue.
            if elapsed == 0 || retry_ns == NEVER || elapsed < retry_ns.saturating_sub(max_wait) {
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
            && charge.quota_index().is_none()
            && !self.blocks.any(now)
        {
            return self.take_one(charge, quota, now);
        }
        self.take_several(charges, now)
    }

    /// Decides about one charge of one quota, which is the common case. It builds no lists and no
    /// [`Account`], because an [`Account`] in memory costs as much as the decision.
    #[inline]
    fn take_one(&self, charge: &Charge<'_>, quota: &Quota, now: u64) -> Decision {
        let demand = charge.demand();
        if let Some(gcra) = Gcra::counting(quota) {
            let id = self.hasher.id(charge, 0);
            if let Some(charged) =
                self.gcra_table.find(id, |stored| gcra.charge(stored, now, demand))
            {
                return decision(charge, gcra.evaluation(charged), now);
            }
        }
        decision(charge, self.charge_one(charge, quota, now), now)
    }

    #[cold]
    #[inline(never)]
    fn charge_one(&self, charge: &Charge<'_>, quota: &Quota, now: u64) -> Evaluation {
        self.charge(&self.hasher.account(charge, 0, quota), now)
    }

    #[inline(never)]
    fn take_several(&self, charges: &[Charge<'_>], now: u64) -> Decision {
        if self.blocks.any(now)
            && let Some(denial) = self.deny_blocked(charges, now)
        {
            return denial;
        }
        let accounts = self.hasher.accounts(charges);
        for attempt in 1..=MAX_ATTEMPTS {
            if let Some(decision) = self.take_all(&accounts, now, attempt == MAX_ATTEMPTS) {
                return decision;
            }
        }
        Decision::deny()
    }

    /// Looks at all accounts, then charges all. If another thread charged in between, undoes the
    /// charges made so far and returns `None`, or a denial in the `last` attempt.
    fn take_all(&self, accounts: &Accounts<'_>, now: u64, last: bool) -> Option<Decision> {
        let all = &accounts.distinct;
        let look = |account: &Account<'_>| self.look(account, now);
        let mut evaluations: Evaluations = all.iter().map(look).collect();
        let fits = all.iter().zip(&evaluations).all(|(account, it)| account.permits(it));
        if !fits {
            // The waits of a denial are those of callers that do not queue.
            evaluations = all.iter().map(|account| look(&account.without_queueing())).collect();
        }
        let never =
            !fits && all.iter().zip(&evaluations).any(|(a, it)| !a.report_only && it.is_never());
        for (index, account) in all.iter().enumerate() {
            if !fits {
                if !never {
                    self.open(account, now);
                }
            } else if accounts.charges(account, &evaluations) {
                let evaluation = self.charge(account, now);
                if !evaluation.allowed {
                    for (account, charged) in all.iter().zip(&evaluations).take(index) {
                        if accounts.charges(account, &evaluations) {
                            self.undo_charge(account, now, charged);
                        }
                    }
                    evaluations =
                        all.iter().map(|account| look(&account.without_queueing())).collect();
                    evaluations[index] = evaluation;
                    return last.then(|| accounts.decision(&evaluations, now, false));
                }
                evaluations[index] = evaluation;
            } else {
                // A report-only rule that is not charged still creates the account.
                self.open(account, now);
            }
        }
        Some(accounts.decision(&evaluations, now, fits))
    }

    pub(super) fn adjust(&self, charge: &Charge<'_>, units: i64) -> Decision {
        // A charge of cost 0 mirrors an account of another store, so a cut loses nothing.
        let is_mirror = charge.cost() == 0;
        self.each(charge, |account, now| {
            let (snapshot, cut) = self.adjust_one(account, now, units);
            if cut && !is_mirror {
                late_charge_cut(account.quota);
            }
            snapshot
        })
    }

    pub(super) fn reset(&self, charge: &Charge<'_>) -> Decision {
        self.each(charge, |account, now| {
            // Read after the reset: other threads may charge by later readings than `now`.
            let clock = || self.clock.now();
            let Some(gcra) = Gcra::counting(account.quota) else {
                let show = |state: Option<&_>| account.snapshot(state, now);
                return self.state_table.reset(account.address(), now, show, clock);
            };
            let show = |stored, now| gcra.look(stored, now, account.demand).snapshot;
            let reset = |stored, floor| ((stored > floor).then_some(floor), show(floor, floor));
            self.gcra_table.reset(account.address(), now, reset, show, clock)
        })
    }

    pub(super) fn undo(&self, charges: &[Charge<'_>], taken: &Decision, units: Option<u32>) {
        let now = self.clock.now();
        let accounts = self.hasher.accounts(charges);
        let decided = taken.on(Charge::quota_ids(charges));
        for (index, account) in accounts.distinct.iter().enumerate() {
            let first = accounts.first_outcome(index).and_then(|at| decided.outcomes().get(at));
            let charged = first.filter(|outcome| taken.charged(outcome.rule()));
            let receipt = charged.and_then(|it| Receipt::new(taken, it, account.demand, units));
            if let Some(receipt) = receipt {
                self.undo_one(account, now, receipt);
            }
        }
    }

    fn look(&self, account: &Account<'_>, now: u64) -> Evaluation {
        let Account { quota, demand, .. } = *account;
        match Gcra::counting(quota) {
            Some(gcra) => self
                .gcra_table
                .look(account.address(), now, |stored| gcra.look(stored, now, demand)),
            None => self
                .state_table
                .look(account.address(), now, |state| algorithm::look(state, quota, now, demand)),
        }
    }

    /// Charges the account if the demand fits.
    #[inline]
    fn charge(&self, account: &Account<'_>, now: u64) -> Evaluation {
        let Account { quota, demand, .. } = *account;
        match Gcra::counting(quota) {
            Some(gcra) => {
                let take = |stored, now| gcra.take(stored, now, demand);
                self.gcra_table.update(account.address(), now, take)
            }
            None => {
                let take = |state: &mut _| algorithm::take(state, quota, now, demand);
                self.state_table.update(account.address(), now, take, |evaluation| {
                    evaluation.allowed || quota.initial_units().is_some()
                })
            }
        }
    }

    /// Creates an account with `initial` units, although the decision does not charge it.
    fn open(&self, account: &Account<'_>, now: u64) {
        let Account { quota, demand, .. } = *account;
        if quota.initial_units().is_none() {
            return;
        }
        match Gcra::counting(quota) {
            Some(gcra) => {
                let open = |stored, now| (gcra.open(stored, now, demand), ());
                self.gcra_table.update(account.address(), now, open);
            }
            None => {
                let open = |state: &mut _| algorithm::open(state, quota, now, demand);
                self.state_table.update(account.address(), now, open, |()| true);
            }
        }
    }

    /// Returns the account after the adjustment, and `true` if a late charge was cut.
    fn adjust_one(&self, account: &Account<'_>, now: u64, units: i64) -> (Snapshot, bool) {
        let (quota, late) = (account.quota, units.unsigned_abs());
        match Gcra::counting(quota) {
            Some(gcra) if units > 0 => {
                let adjust = |stored, now| {
                    let (new, snapshot) = gcra.adjust(stored, now, units);
                    (new, (snapshot, gcra.caps_late_charge(stored, now, late)))
                };
                self.gcra_table.update(account.address(), now, adjust)
            }
            Some(gcra) => {
                let back = |stored, floor| gcra.adjust(stored, floor, units);
                let show = |stored, now| gcra.look(stored, now, account.demand).snapshot;
                (self.gcra_table.lower(account.address(), now, back, show), false)
            }
            None if units > 0 => {
                let adjust = |state: &mut _| {
                    let cut = algorithm::caps_late_charge(Option::as_ref(state), quota, now, late);
                    (algorithm::adjust(state, quota, now, units), cut)
                };
                self.state_table.update(account.address(), now, adjust, |_| true)
            }
            None => {
                let adjust = |state: &mut _| algorithm::adjust(state, quota, now, units);
                let show = |state: Option<&_>| account.snapshot(state, now);
                (self.state_table.lower(account.address(), now, adjust, show), false)
            }
        }
    }

    /// Undoes a charge of this decision, because a later charge did not fit.
    fn undo_charge(&self, account: &Account<'_>, now: u64, charged: &Evaluation) {
        let mut taken = Decision::new(true, now);
        taken.set_allowed(charged.overage, charged.wait);
        if let Some(receipt) = Receipt::new(&taken, &account.outcome(charged), account.demand, None)
        {
            self.undo_one(account, now, receipt);
        }
    }

    fn undo_one(&self, account: &Account<'_>, now: u64, receipt: Receipt) {
        let (address, quota, charged) = (account.address(), account.quota, receipt.charged);
        match Gcra::counting(quota) {
            Some(gcra) => {
                let back = |stored, now| gcra.undo(stored, now, receipt);
                self.gcra_table.undo(address, now, charged, back);
            }
            None => {
                let back = |state: &mut _| algorithm::undo(state, quota, now, receipt);
                self.state_table.undo(address, charged, back);
            }
        }
    }

    /// Applies `change` to every account of `charge`, and returns the accounts after it.
    fn each(
        &self,
        charge: &Charge<'_>,
        change: impl Fn(&Account<'_>, u64) -> Snapshot,
    ) -> Decision {
        let now = self.clock.now();
        let accounts = self.hasher.accounts(&[charge.with_cost(0)]);
        let changed = |account: &Account<'_>| Evaluation::allowed(change(account, now));
        let evaluations: Evaluations = accounts.distinct.iter().map(changed).collect();
        accounts.decision(&evaluations, now, true)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{key::Key, quota::Algorithm, rule::RuleName};

    const SECOND: u64 = 1_000_000_000;

    /// Creates a ledger whose clock stands at ten seconds.
    fn ledger() -> Ledger {
        let (clock, mock) = Clock::driven();
        mock.increment(10 * SECOND);
        Ledger::new(clock, 64)
    }

    /// Another thread makes the first charge by a later reading of the clock. The last unit is
    /// still available to a thread that was interrupted after its reading.
    #[test]
    fn an_older_reading_of_the_clock_does_not_cause_a_denial() {
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

    #[test]
    fn an_older_reading_of_the_clock_gets_the_last_position_of_a_queue() {
        let (key, quotas) = (Key::from("one"), [Quota::per_second(1).burst(1)]);
        let charge = Charge::new(RuleName::default(), &key, &quotas);
        let charge = charge.with_max_wait(Duration::from_secs(2));
        let ledger = ledger();
        for behind in [0, 1, 5] {
            assert!(ledger.take_at(&[charge], 10 * SECOND - behind).is_allowed(), "{behind}");
        }
        assert!(!ledger.take_at(&[charge], 10 * SECOND - 5).is_allowed());
    }

    #[test]
    fn a_refill_after_the_reading_of_the_clock_counts() {
        let (key, quota) =
            (Key::from("one"), Quota::per_second(1).algorithm(Algorithm::TokenBucket));
        let (quotas, (clock, mock)) = ([quota], Clock::driven());
        let charge = [Charge::new(RuleName::default(), &key, &quotas)];
        let ledger = Ledger::new(clock, 64);
        assert!(ledger.take_at(&charge, 0).is_allowed());
        mock.increment(SECOND);
        assert!(ledger.take_at(&charge, SECOND - 1).is_allowed());
    }
}

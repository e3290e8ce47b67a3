//! Decisions about one or several accounts. All accounts are charged, or none.

use std::time::Duration;

use super::{
    Stats,
    accounts::{Account, Accounts, AddressHasher},
    adaptive::AdaptiveLimits,
    blocks::Blocks,
    clock::Clock,
    held::HeldSlots,
    overflow_warning::OverflowWarning,
    plain::plain_decision,
    slots::{self, Locked},
    table::{LockedAccounts, Table},
};
use crate::{
    algorithm::{self, AccountState, Evaluation},
    decision::{Decision, Holds, NEVER, Outcome, Source},
    quota::Quota,
    store::Charge,
};

/// The number of slots per key of the capacity. With two slots per key, about 1 % of new keys find
/// no free slot in a store at capacity.
pub(super) const SLOTS_PER_KEY: usize = 2;
/// The number of account slots per block slot.
const SLOTS_PER_BLOCK: usize = 8;
/// The maximum number of times that a denied decision is repeated.
const MAX_REPEATS: usize = 2;

/// All accounts and blocks of a store.
pub(super) struct Ledger {
    pub(super) clock: Clock,
    pub(super) hasher: AddressHasher,
    pub(super) table: Table<AccountState>,
    pub(super) held: HeldSlots,
    pub(super) adaptive: AdaptiveLimits,
    warning: OverflowWarning,
    pub(super) blocks: Blocks,
    block_warning: OverflowWarning,
}

impl Ledger {
    pub(super) fn new(clock: Clock, keys: usize) -> Self {
        Self {
            clock,
            hasher: AddressHasher::new(),
            table: Table::new(keys.saturating_mul(SLOTS_PER_KEY)),
            held: HeldSlots::new(keys),
            adaptive: AdaptiveLimits::new(keys.max(1)),
            warning: OverflowWarning::default(),
            blocks: Blocks::default(),
            block_warning: OverflowWarning::default(),
        }
    }

    pub(super) fn stats(&self) -> Stats {
        let now = self.clock.now();
        let (holding, held) = self.held.counts();
        Stats {
            slots: self.table.sets().slots(),
            active: self.table.sets().active(now),
            overflowed: self.table.overflow().decisions(),
            blocked: self.blocks.len(now),
            holding,
            held,
        }
    }

    /// Decides, and passes the decision to `then`.
    ///
    /// Always inlined, because a call would move the decision, which is large.
    #[inline(always)]
    pub(super) fn take<T>(&self, charges: &[Charge<'_>], then: impl FnOnce(Decision) -> T) -> T {
        let now = if slots::are_alone(charges) { 0 } else { self.clock.now() };
        self.take_at(charges, now, then)
    }

    /// Decides at the clock reading `now`. For slots alone, no reading is needed.
    #[inline(always)]
    fn take_at<T>(&self, charges: &[Charge<'_>], now: u64, then: impl FnOnce(Decision) -> T) -> T {
        let later = match self.take_one(charges, now) {
            Some((charge, one)) => {
                let denied = !one.allowed && !charge.is_report_only();
                let retry_ns = if denied { one.retry_ns() } else { NEVER };
                match self.later(charges, now, retry_ns) {
                    None => return then(plain_decision([charge], [one], now)),
                    Some(later) => later,
                }
            }
            None => now,
        };
        then(self.decide_again(charges, later))
    }

    /// Decides, and repeats a denied decision with a later reading of the clock, if the elapsed time
    /// may change the result.
    ///
    /// Another thread may have charged the account at a later reading than `now`.
    #[inline(never)]
    fn decide_again(&self, charges: &[Charge<'_>], mut now: u64) -> Decision {
        if slots::are_alone(charges) {
            return self.take_slots(charges);
        }
        let mut decision = self.take_several(charges, now);
        for _ in 0..MAX_REPEATS {
            if decision.is_allowed() {
                break;
            }
            let retry_ns = decision.binding().map_or(NEVER, Outcome::retry_ns);
            let Some(later) = self.later(charges, now, retry_ns) else { break };
            decision = self.decide_all(charges, later);
            now = later;
        }
        decision
    }

    /// Returns a later reading of the clock if it may change a denial for `retry_ns`.
    #[inline]
    fn later(&self, charges: &[Charge<'_>], now: u64, retry_ns: u64) -> Option<u64> {
        if retry_ns == NEVER {
            return None;
        }
        let later = self.clock.now();
        let max_wait = charges.iter().map(|charge| charge.demand().max_wait).max().unwrap_or(0);
        let elapsed = later.saturating_sub(now);
        // The denial stands for `retry_ns`, or for `max_wait` less if the charge may queue.
        (elapsed > 0 && elapsed >= retry_ns.saturating_sub(max_wait)).then_some(later)
    }

    #[inline(never)]
    pub(super) fn decide_all(&self, charges: &[Charge<'_>], now: u64) -> Decision {
        if charges.iter().flat_map(Charge::quotas).any(Quota::is_adaptive) {
            return self.decide_adaptive(charges, now);
        }
        if self.blocks.any(now)
            && let Some(denial) = self.deny_blocked(charges, now)
        {
            return denial;
        }
        let mut accounts = self.hasher.accounts(charges);
        let mut locked = Locked {
            rates: self.table.lock(&mut accounts.distinct, now),
            slots: self.held.lock(accounts.slots().map(|account| account.at.id)),
        };
        let holds = take_all(&mut accounts, &mut locked);
        let mut decision = accounts.decision(locked.rates.now());
        if locked.slots.are_full() && !decision.is_allowed() {
            decision = decision.with_source(Source::Overflow);
        }
        if locked.rates.overflowed() || locked.slots.are_full() {
            // A log subscriber may run any code, so the locks are released first.
            drop(locked);
            self.record_overflow(now);
        }
        decision.hold(holds);
        decision
    }

    /// Counts a decision about a shared account, and logs the first one.
    #[cold]
    pub(super) fn record_overflow(&self, now: u64) {
        self.table.overflow().count();
        self.warning.record(now, self.table.sets().slots());
    }

    pub(super) fn block(&self, charge: &Charge<'_>, time: Duration) -> Decision {
        let now = self.clock.now();
        let until = now.saturating_add(u64::try_from(time.as_nanos()).unwrap_or(NEVER));
        let slots = self.table.sets().slots() / SLOTS_PER_BLOCK;
        let has_room = self.blocks.set(self.hasher.id(charge), now, until, slots);
        if !has_room {
            self.block_warning.record_block(now, slots);
            return Decision::new(false, now).with_source(Source::Overflow);
        }
        Decision::new(true, now)
    }

    pub(super) fn unblock(&self, charge: &Charge<'_>) -> Decision {
        self.blocks.end(self.hasher.id(charge), self.clock.now());
        Decision::allow()
    }

    /// Returns a denial if a key is blocked. Nothing is charged.
    #[cold]
    pub(super) fn deny_blocked(&self, charges: &[Charge<'_>], now: u64) -> Option<Decision> {
        let deciding = charges.iter().filter(|c| c.cost() > 0 && !c.is_report_only());
        let left = |charge| (charge, self.blocks.left(self.hasher.id(charge), now));
        let (charge, left) = deciding.map(left).max_by_key(|(_, left)| *left)?;
        let limit = charge.quotas().first().map_or(1, Quota::burst);
        let left = Duration::from_nanos(left);
        let outcome = Outcome::block(charge.rule(), limit, left);
        (!left.is_zero()).then(|| Decision::new(false, now).with_blocked().with_outcome(outcome))
    }
}

/// Evaluates the demands of all accounts, and charges them if every demand fits. Returns the held
/// slots, or the position in the queue for a slot.
#[inline]
fn take_all(accounts: &mut Accounts<'_>, locked: &mut Locked<'_>) -> Holds {
    let (now, mut holds) = (locked.rates.now(), Holds::none());
    let (allowed, queues) = evaluate_all(&mut accounts.distinct, locked);
    if !allowed {
        if queues && let Some(position) = slots::queue(&accounts.distinct, &mut locked.slots) {
            holds = Holds::position(position);
        }
        deny_all(&mut accounts.distinct, queues, locked);
        return holds;
    }
    for index in 0..accounts.distinct.len() {
        let charges = accounts.charges(index);
        let account = &mut accounts.distinct[index];
        let (quota, demand) = (account.quota, account.demand);
        if quota.is_concurrent() {
            if charges && let Some(hold) = slots::hold(account, &mut locked.slots) {
                holds.push(hold);
            }
        } else if charges {
            let take = |state: &mut _| algorithm::take(state, quota, now, demand);
            account.evaluation = locked.rates.update(&mut account.at, quota, take);
        } else {
            // A report-only rule that is not charged still creates the account.
            open(account, &mut locked.rates);
        }
    }
    holds
}

/// Evaluates the demands of all accounts. Returns `true` if every demand fits, and `true` if one may
/// queue.
#[inline]
pub(super) fn evaluate_all(all: &mut [Account<'_>], locked: &mut Locked<'_>) -> (bool, bool) {
    let (mut allowed, mut queues) = (true, false);
    for index in 0..all.len() {
        let evaluation = look(all, index, locked);
        let account = &mut all[index];
        allowed &= evaluation.allowed || account.report_only;
        queues |= account.demand.max_wait > 0;
        account.evaluation = evaluation;
    }
    (allowed, queues)
}

/// Computes the waits of a denied decision, and creates accounts with `initial` units.
fn deny_all(all: &mut [Account<'_>], queues: bool, locked: &mut Locked<'_>) {
    // The waits of a denial are those of callers that do not queue.
    for index in (0..all.len()).filter(|_| queues) {
        all[index].demand.max_wait = 0;
        all[index].evaluation = look(all, index, locked);
    }
    let now = locked.rates.now();
    for account in all.iter_mut().filter(|account| account.quota.is_concurrent()) {
        slots::deny(account, &mut locked.slots, now);
    }
    if !all.iter().any(|account| !account.report_only && account.evaluation.is_never()) {
        all.iter_mut().for_each(|account| open(account, &mut locked.rates));
    }
}

/// Evaluates the demand of an account. New keys on one shared account count together.
#[inline]
pub(super) fn look(all: &[Account<'_>], index: usize, locked: &mut Locked<'_>) -> Evaluation {
    let Account { at, quota, demand, .. } = &all[index];
    if quota.is_concurrent() {
        return slots::look(&all[index], &mut locked.slots);
    }
    let locked = &mut locked.rates;
    let (now, mut others) = (locked.now(), 0);
    if locked.overflowed() {
        let same = all.iter().enumerate().filter(|(i, other)| *i != index && other.at.shares(at));
        others = same.map(|(_, other)| i64::from(other.demand.cost)).sum();
    }
    locked.look(at, |state| {
        if others == 0 {
            return algorithm::look(state, quota, now, *demand);
        }
        let mut after = state.cloned();
        algorithm::adjust(&mut after, quota, now, others);
        algorithm::look(after.as_ref(), quota, now, *demand)
    })
}

/// Creates an account with `initial` units, without a charge.
#[inline]
fn open(account: &mut Account<'_>, locked: &mut LockedAccounts<'_, AccountState>) {
    let (quota, demand, now) = (account.quota, account.demand, locked.now());
    if quota.initial().is_some() {
        let open = |state: &mut _| algorithm::open(state, quota, now, demand);
        locked.update(&mut account.at, quota, open);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{key::Key, name::RuleName, quota::Algorithm};

    const SECOND: u64 = 1_000_000_000;

    /// Creates a ledger whose clock stands at ten seconds.
    fn ledger() -> Ledger {
        let (clock, mock) = Clock::driven();
        mock.increment(10 * SECOND);
        Ledger::new(clock, 64)
    }

    #[test]
    fn accounts_take_no_more_memory_than_documented() {
        use super::super::{sets::Set, sync::Mutex};

        assert!(size_of::<Mutex<Set<AccountState>>>() <= 280);
        assert!(size_of::<[Option<AccountState>; 16]>() <= 768);
    }

    /// Two clients return every 2 s, and each time a new key takes a slot in between. All slots of
    /// their set have expired by then.
    #[test]
    fn clients_that_return_keep_their_slots() {
        for algorithm in [
            Algorithm::Gcra,
            Algorithm::TokenBucket,
            Algorithm::fixed_window(),
            Algorithm::AnchoredWindow,
            Algorithm::SlidingWindow { buckets: 4 },
            Algorithm::SlidingLog,
        ] {
            let (clock, mock) = Clock::driven();
            mock.increment(10 * SECOND);
            let (ledger, quotas) =
                (Ledger::new(clock, 1), [Quota::per_second(1).with_algorithm(algorithm)]);
            let take = |key: u32| {
                let key = Key::from(key);
                let charge = Charge::new(RuleName::default(), &key, &quotas);
                assert!(ledger.take(&[charge], |decision| decision.is_allowed()), "{algorithm:?}");
            };
            let has_slot = |key: u32| {
                let key = Key::from(key);
                let charge = Charge::new(RuleName::default(), &key, &quotas);
                ledger.table.sets().lock(0).find(ledger.hasher.id(&charge)).is_some()
            };
            (0..100).for_each(|key| {
                take(key);
                mock.increment(2 * SECOND);
            });
            let clients = [1_000, 1_001];
            clients.into_iter().for_each(take);
            for new in 2_000..2_100 {
                mock.increment(2 * SECOND);
                take(new);
                for client in clients {
                    assert!(has_slot(client), "{algorithm:?}: lost to key {new}");
                    take(client);
                }
            }
        }
    }

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
            let quotas =
                [three.with_algorithm(algorithm), Quota::per_day(3).with_algorithm(algorithm)];
            let charge = |key, n: usize| Charge::new(RuleName::default(), key, &quotas[..n]);
            let of = [
                vec![charge(&one, 1)],
                vec![charge(&one, 2)],
                vec![charge(&one, 1), charge(&two, 2)],
            ];
            for charges in of {
                let ledger = ledger();
                for behind in [0, 3, 7] {
                    let decision = ledger.take_at(&charges, 10 * SECOND - behind, |it| it);
                    assert!(decision.is_allowed(), "{algorithm:?}, {behind}: {decision:?}");
                }
                let denied = ledger.take_at(&charges, 10 * SECOND - 9, |it| it);
                assert!(!denied.is_allowed(), "{algorithm:?} has three units");
            }
        }
    }

    #[test]
    fn an_older_reading_of_the_clock_gets_the_last_position_of_a_queue() {
        let (key, quotas) = (Key::from("one"), [Quota::per_second(1).with_burst(1)]);
        let charge = Charge::new(RuleName::default(), &key, &quotas);
        let charge = charge.with_max_wait(Duration::from_secs(2));
        let ledger = ledger();
        for behind in [0, 1, 5] {
            assert!(
                ledger.take_at(&[charge], 10 * SECOND - behind, |it| it).is_allowed(),
                "{behind}"
            );
        }
        assert!(!ledger.take_at(&[charge], 10 * SECOND - 5, |it| it).is_allowed());
    }

    #[test]
    fn a_refill_after_the_reading_of_the_clock_counts() {
        let (key, quota) =
            (Key::from("one"), Quota::per_second(1).with_algorithm(Algorithm::TokenBucket));
        let (quotas, (clock, mock)) = ([quota], Clock::driven());
        let charge = [Charge::new(RuleName::default(), &key, &quotas)];
        let ledger = Ledger::new(clock, 64);
        assert!(ledger.take_at(&charge, 0, |it| it).is_allowed());
        mock.increment(SECOND);
        assert!(ledger.take_at(&charge, SECOND - 1, |it| it).is_allowed());
    }
}

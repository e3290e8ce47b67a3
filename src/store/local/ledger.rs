//! The accounts of a store, and the fast decisions: about plain GCRA quotas, and about slots. All accounts
//! are charged, or none.

use std::{
    array,
    hash::{BuildHasher, Hasher},
    ptr,
};

use foldhash::quality::SeedableRandomState;

use super::{
    Clock, ENTRIES_PER_KEY, Stats,
    accounts::{Account, Accounts, Effect, Evaluated, quota_id, report},
    blocks::Blocks,
    held::HeldSlots,
    slots,
    table::{Located, Table},
    warnings::{OverflowWarning, RebuildDetector},
};
use crate::{
    algorithm::{Evaluation, gcra},
    decision::{Decision, Outcome, UNKNOWN_WAIT},
    key::random_state,
    quota::{Quota, QuotaAddress},
    store::{Charge, Context, KnownRules},
};

/// All accounts and blocks of a store.
pub(super) struct Ledger {
    pub(super) clock: Clock,
    /// Random, so that a client cannot choose colliding keys.
    pub(super) seed: SeedableRandomState,
    pub(super) table: Table,
    pub(super) held: HeldSlots,
    shared: OverflowWarning,
    lacks_slots: OverflowWarning,
    almost_full: OverflowWarning,
    pub(super) blocks: Blocks,
    pub(super) rules: KnownRules,
    pub(super) rebuilds: RebuildDetector,
}

impl Ledger {
    #[track_caller]
    pub(super) fn new(clock: Clock, keys: usize) -> Self {
        let table = Table::new(keys.saturating_mul(ENTRIES_PER_KEY));
        Self {
            rebuilds: RebuildDetector::new(clock.clone()),
            clock,
            seed: random_state(),
            blocks: Blocks::new(table.capacity()),
            table,
            held: HeldSlots::new(keys),
            shared: OverflowWarning::default(),
            lacks_slots: OverflowWarning::default(),
            almost_full: OverflowWarning::default(),
            rules: KnownRules::default(),
        }
    }

    pub(super) fn stats(&self) -> Stats {
        let now = self.clock.now();
        let (holding, held) = self.held.counts();
        let entries = self.table.capacity();
        let active = self.table.active(now);
        self.almost_full.record_use(now, active, entries);
        Stats {
            entries,
            active,
            overflowed: self.shared.count() + self.lacks_slots.count(),
            blocked: self.blocks.count(now),
            holding,
            held,
        }
    }

    /// Decides at a reading of the clock, and passes the decision to `then`. A charge whose only quota is one
    /// of slots is decided at 0, without a reading, until the first key is blocked.
    ///
    /// Always inlined, because a call would move the decision, which is large.
    #[inline(always)]
    pub(super) fn take<T>(
        &self,
        charges: &[Charge<'_>],
        context: &Context<'_>,
        clock: impl Fn() -> u64,
        then: impl FnOnce(Decision) -> T,
    ) -> T {
        if let Some(one) = plain_rules::<1>(charges) {
            let now = clock();
            return match self.take_plain(&one, charges, now) {
                Some(by) => then(plain_decision(&one, &by, now)),
                None => then(self.take_several(charges, context, now)),
            };
        }
        let slots = match charges {
            [charge] if charge.quotas.first().is_some_and(Quota::is_concurrent) => Some(charge),
            _ => None,
        };
        let are_alone = slots.is_some_and(|charge| charge.quotas.len() == 1);
        let now = if are_alone && self.blocks.is_unused() {
            0
        } else {
            clock()
        };
        if let Some(charge) = slots
            && context.waiter.is_none()
        {
            // Filled in place, because moving it is slow.
            let mut decision = Decision::new(true, now);
            if self.take_slots(charge, now, &mut decision).is_some() {
                return then(decision);
            }
        }
        then(self.take_several(charges, context, now))
    }

    /// Charges `N` plain quotas, which are those of `charges`. A new account takes a free entry of the
    /// table.
    ///
    /// Returns `None` for other accounts, and for a denial that a later reading of the clock may
    /// change.
    #[inline(always)]
    fn take_plain<const N: usize>(
        &self,
        all: &[PlainQuota<'_>; N],
        charges: &[Charge<'_>],
        now: u64,
    ) -> Option<[Evaluation; N]> {
        if self.blocks.may_have(now) {
            return None;
        }
        let mut ids = [0; N];
        let mut key = 0;
        for at in 0..N {
            let PlainQuota { charge, index, .. } = all[at];
            if at == 0 || !ptr::eq(charge, all[at - 1].charge) {
                key = self.key_id(charge);
            }
            ids[at] = quota_id(key, QuotaAddress::at(charge.quotas, index));
        }
        let (old, locked) = self.table.lock_instants(ids, now)?;
        let mut new = old;
        let mut evaluations = [Evaluation::at_once(false); N];
        let mut retry_ns = 0;
        for at in 0..N {
            let PlainQuota { charge, quota, .. } = all[at];
            let (tat, by) = gcra::take_from(old[at].max(now), quota, now, charge.demand());
            if !by.allowed && !charge.report_only {
                retry_ns = by.snapshot.retry_ns().max(retry_ns);
            }
            (new[at], evaluations[at]) = (tat.unwrap_or(old[at]), by);
        }
        if retry_ns == 0 {
            locked.store(new);
            return Some(evaluations);
        }
        drop(locked);
        deny_plain(all, old, now, &mut evaluations);
        self.later(charges, now, retry_ns)
            .is_none()
            .then_some(evaluations)
    }

    /// Takes the slots of a rule, which may also have a plain rate, if all are free. Returns `None` for
    /// other charges.
    #[inline(always)]
    fn take_slots(&self, charge: &Charge<'_>, now: u64, decision: &mut Decision) -> Option<()> {
        let rate = match charge.quotas {
            [_] => None,
            [_, rate] if is_plain(rate) => Some(rate),
            _ => return None,
        };
        if !charge.is_ordinary() || self.blocks.may_have(now) {
            return None;
        }
        let demand = charge.demand();
        let key = self.key_id(charge);
        let id = quota_id(key, charge.quotas[0].address());
        let Some(rate) = rate else {
            return slots::take(self.held.shard(id), id, charge, demand, decision);
        };
        let rate_id = quota_id(key, rate.address());
        let ([old], locked) = self.table.lock_instants([rate_id], now)?;
        let (tat, by) = gcra::take(old, rate, now, demand);
        if !by.allowed {
            return None;
        }
        slots::take(self.held.shard(id), id, charge, demand, decision)?;
        locked.store([tat.unwrap_or(old)]);
        decision.overage |= by.overage;
        decision.wait = by.wait;
        let outcome = Outcome::with(charge.rule, 1, by.snapshot);
        decision.outcomes.push(outcome);
        Some(())
    }

    /// Decides on all other charges.
    #[inline(never)]
    fn take_several(&self, charges: &[Charge<'_>], context: &Context<'_>, now: u64) -> Decision {
        if let [charge] = charges
            && context.holds_slots
        {
            return self.hold(charge);
        }
        if let Some(two) = plain_rules::<2>(charges).or_else(|| plain_quotas(charges))
            && let Some(by) = self.take_plain(&two, charges, now)
        {
            return plain_decision(&two, &by, now);
        }
        if let Some(three) = plain_rules::<3>(charges).or_else(|| plain_quotas(charges))
            && let Some(by) = self.take_plain(&three, charges, now)
        {
            return plain_decision(&three, &by, now);
        }
        self.decide(Effect::Charge, charges, context.waiter, now)
    }

    /// Holds slots that a request holds in another store.
    #[cold]
    fn hold(&self, charge: &Charge<'_>) -> Decision {
        let mut decision = Decision::new(true, 0);
        let key = self.key_id(charge);
        for (index, quota) in charge.charged_quotas() {
            if !quota.is_concurrent() {
                continue;
            }
            let id = quota_id(key, QuotaAddress::at(charge.quotas, index));
            let shard = self.held.shard(id);
            let epoch = shard.lock().hold(id, charge.cost.into());
            decision.hold(slots::hold_of(shard, id, epoch, quota, charge.cost));
        }
        decision
    }

    /// Returns a later reading of the clock if it may change a denial for `retry_ns`.
    ///
    /// Another thread may have charged the account at a later reading than `now`. This reading is later than
    /// those of all charges that the denial saw.
    #[inline(always)]
    pub(super) fn later(&self, charges: &[Charge<'_>], now: u64, retry_ns: u64) -> Option<u64> {
        if retry_ns >= UNKNOWN_WAIT {
            return None;
        }
        let later = self.clock.now();
        let max_wait = charges
            .iter()
            .map(|charge| charge.demand().max_wait)
            .max()
            .unwrap_or(0);
        let elapsed = later.saturating_sub(now);
        // The denial stands for `retry_ns`. A charge that may queue is allowed `max_wait` earlier.
        (elapsed > 0 && elapsed >= retry_ns.saturating_sub(max_wait)).then_some(later)
    }

    /// Counts a decision about a key without an entry, or without room for its slots, and logs the first one
    /// of each kind.
    #[cold]
    pub(super) fn record_overflow(&self, now: u64, lacks_slots: bool) {
        let entries = self.table.capacity();
        if lacks_slots {
            self.lacks_slots.record_slots(now, entries);
        } else {
            self.shared.record_shared(now, entries);
        }
    }
}

/// The id of an account is a hash of the rule, the key and the address of the quota.
impl Ledger {
    #[inline]
    pub(super) fn accounts<'a>(&self, charges: &[Charge<'a>]) -> Accounts<'a> {
        let mut accounts = Accounts::default();
        self.collect(charges, &mut accounts);
        accounts
    }

    /// Adds the accounts of these charges. Returning them would move them, which is slow.
    pub(super) fn collect<'a>(&self, charges: &[Charge<'a>], accounts: &mut Accounts<'a>) {
        for charge in charges {
            let key = self.key_id(charge);
            let demand = charge.demand();
            for (quota_index, quota) in charge.charged_quotas() {
                let address = QuotaAddress::at(charge.quotas, quota_index);
                let id = quota_id(key, address);
                let counts_slots = quota.is_concurrent();
                accounts.add(Account {
                    at: Located::new(id, charge.rule, quota_index, address, counts_slots),
                    quota,
                    demand,
                    report_only: charge.report_only,
                    evaluation: Evaluation::at_once(false),
                });
            }
        }
    }

    /// Returns the id of the rule and the key of a charge, under which the key is blocked. The id is
    /// never 0.
    #[inline(always)]
    pub(super) fn key_id(&self, charge: &Charge<'_>) -> u64 {
        let mut hasher = self.seed.build_hasher();
        charge.key.hash_with(charge.rule.hash64(), &mut hasher);
        hasher.finish().max(1)
    }
}

/// A plain GCRA quota of a charge.
#[derive(Clone, Copy)]
struct PlainQuota<'c> {
    charge: &'c Charge<'c>,
    quota: &'c Quota,
    index: usize,
}

/// Returns the quotas of different rules with one quota each, if these are `N` plain GCRA quotas.
#[inline(always)]
fn plain_rules<'c, const N: usize>(charges: &'c [Charge<'_>]) -> Option<[PlainQuota<'c>; N]> {
    let all: &[Charge<'_>; N] = charges.try_into().ok()?;
    for (at, charge) in all.iter().enumerate() {
        let [quota] = charge.quotas else { return None };
        let again = all[..at].iter().any(|other| other.rule == charge.rule);
        if !is_plain(quota) || charge.quota_index.is_some() || again {
            return None;
        }
    }
    Some(array::from_fn(|at| PlainQuota {
        charge: &all[at],
        quota: &all[at].quotas[0],
        index: 0,
    }))
}

/// Returns the quotas of one rule, if these are `N` plain GCRA quotas.
#[inline(always)]
fn plain_quotas<'c, const N: usize>(charges: &'c [Charge<'_>]) -> Option<[PlainQuota<'c>; N]> {
    let [charge] = charges else { return None };
    let quotas: &[Quota; N] = charge.quotas.try_into().ok()?;
    // A report-only charge is made to all of its quotas, or to none.
    if charge.report_only || charge.quota_index.is_some() || !quotas.iter().all(is_plain) {
        return None;
    }
    Some(array::from_fn(|index| PlainQuota {
        charge,
        quota: &quotas[index],
        index,
    }))
}

/// Returns `true` if one instant is the whole state of an account.
#[inline]
pub(super) fn is_plain(quota: &Quota) -> bool {
    quota.is_gcra() && quota.initial().is_none()
}

/// Replaces the evaluations of allowed demands by those of a denied decision.
///
/// The waits of a denial are those of callers that do not queue.
#[inline(always)]
fn deny_plain<const N: usize>(
    all: &[PlainQuota<'_>; N],
    states: [u64; N],
    now: u64,
    evaluations: &mut [Evaluation; N],
) {
    for at in 0..N {
        if evaluations[at].allowed {
            let PlainQuota { charge, quota, .. } = all[at];
            let demand = charge.demand().without_queueing();
            evaluations[at] = gcra::look(states[at], quota, now, demand);
        }
    }
}

/// Returns the decision on plain quotas.
#[inline(always)]
fn plain_decision<const N: usize>(
    quotas: &[PlainQuota<'_>; N],
    evaluations: &[Evaluation; N],
    now: u64,
) -> Decision {
    let mut decision = Decision::new(true, now);
    let demands = quotas.iter().zip(evaluations);
    let demands = demands.map(|(plain, evaluation)| Evaluated {
        rule: plain.charge.rule,
        quota_index: plain.index,
        report_only: plain.charge.report_only,
        evaluation,
    });
    report(demands, now, &mut decision);
    decision
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        key::Key,
        name::RuleName,
        quota::{Algorithm, EXAMPLES},
        store::Waiter,
    };

    const SECOND: u64 = 1_000_000_000;
    /// Creates a ledger whose clock stands at ten seconds.
    fn ledger() -> Ledger {
        let (clock, mock) = Clock::driven();
        mock.increment(10 * SECOND);
        Ledger::new(clock, 64)
    }

    #[test]
    fn accounts_take_no_more_memory_than_documented() {
        use super::super::table::Set;
        use crate::{algorithm::AccountState, store::sync::Mutex};

        assert!(size_of::<Mutex<Set>>() <= 256);
        assert!(size_of::<[Option<AccountState>; 16]>() <= 768);
    }

    /// Two clients return every 2 s, and each time a new key takes an entry in between. All entries of
    /// their set have expired by then.
    #[test]
    fn clients_that_return_keep_their_entries() {
        for algorithm in EXAMPLES
            .into_iter()
            .filter(|algorithm| !algorithm.is_paced())
        {
            let (clock, mock) = Clock::driven();
            mock.increment(10 * SECOND);
            let (ledger, quotas) = (
                Ledger::new(clock, 1),
                [Quota::per_second(1).with_algorithm(algorithm)],
            );
            let take = |key: u32| {
                let key = Key::from(key);
                let charge = Charge::new(RuleName::default(), &key, &quotas);
                assert!(
                    ledger.take(
                        &[charge],
                        &Context::default(),
                        || ledger.clock.now(),
                        |decision| decision.is_allowed()
                    ),
                    "{algorithm:?}"
                );
            };
            let has_entry = |key: u32| {
                let key = Key::from(key);
                let charge = Charge::new(RuleName::default(), &key, &quotas);
                let id = quota_id(ledger.key_id(&charge), quotas[0].address());
                ledger.table.set(0).find(id).is_some()
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
                    assert!(has_entry(client), "{algorithm:?}: lost to key {new}");
                    take(client);
                }
            }
        }
    }

    /// A key starts with the debt of the account that others of its group share: also with what a key of the
    /// same decision charges to it.
    #[test]
    fn a_decision_denied_by_an_inherited_debt_charges_nothing() {
        const GROUPS: usize = 2_048;
        let (clock, mock) = Clock::driven();
        mock.increment(10 * SECOND);
        let ledger = Ledger::new(clock, 2 * GROUPS * 8);
        assert_eq!(ledger.table.capacity(), 2 * GROUPS * 16);
        let [hourly, minutely, brief] = [
            [Quota::per_hour(2)],
            [Quota::per_minute(1)],
            [Quota::per_second(1)],
        ];
        let set_of = |key: &Key, quota: &Quota| {
            let charge = Charge::new(RuleName::default(), key, quota.as_ref());
            let id = quota_id(ledger.key_id(&charge), quota.address());
            (u128::from(id) * 2 * GROUPS as u128) >> 64
        };
        let keys_of = |set: u128, quota: &Quota, count| -> Vec<Key> {
            let all = (0..u64::MAX).map(Key::from);
            let found = all.filter(|key| set_of(key, quota) == set);
            found.take(count).collect()
        };
        let take = |charges: &[Charge<'_>]| {
            let now = ledger.clock.now();
            ledger.take(charges, &Context::default(), || now, |decision| decision)
        };
        let fill = |set, quotas: &[Quota; 1], count| {
            for key in keys_of(set, &quotas[0], count) {
                assert!(take(&[Charge::new(RuleName::default(), &key, quotas)]).is_allowed());
            }
        };
        let full = 5;
        let other = full + GROUPS as u128;
        fill(full, &minutely, 16);
        fill(other, &minutely, 15);
        fill(other, &brief, 1);
        let of_full = keys_of(full, &hourly[0], 2);
        let of_other = keys_of(other, &hourly[0], 2);
        let charge = |key| Charge::new(RuleName::default(), key, &hourly);
        assert!(take(&[charge(&of_other[0])]).is_allowed());
        mock.increment(2 * SECOND);

        let left = || take(&[charge(&of_full[1]).with_cost(0)]).remaining();
        assert_eq!(left(), Some(1));
        let both = [charge(&of_full[0]), charge(&of_other[1])];
        let peeked = ledger.decide(Effect::Nothing, &both, None, ledger.clock.now());
        assert!(!peeked.is_allowed() && !take(&both).is_allowed());
        assert_eq!(left(), Some(1), "nothing is charged");
    }

    #[test]
    fn a_key_whose_requests_only_wait_holds_no_slot() {
        let (key, quotas) = (Key::from("one"), [Quota::concurrent(1)]);
        let charge = Charge::new(RuleName::default(), &key, &quotas);
        let charge = charge.with_max_wait(Duration::from_secs(1));
        let ledger = ledger();
        let take = |waiter: &Waiter| {
            let context = Context::default().with_waiter(waiter);
            ledger.take(&[charge], &context, || 10 * SECOND, |decision| decision)
        };
        let (first, second) = (Waiter::new(), Waiter::new());
        let runs = take(&first);
        assert!(runs.is_allowed() && !take(&second).is_allowed());
        assert_eq!((ledger.stats().holding, ledger.stats().held), (1, 1));
        drop(runs);
        assert_eq!((ledger.stats().holding, ledger.stats().held), (0, 0));
    }

    #[test]
    fn two_charges_of_the_slots_of_one_key_do_not_wait() {
        let (key, quotas) = (Key::from("one"), [Quota::concurrent(2)]);
        let charge = Charge::new(RuleName::default(), &key, &quotas);
        let charge = charge.with_max_wait(Duration::from_secs(1));
        let ledger = ledger();
        let take = |charges: &[Charge<'_>], waiter: &Waiter| {
            let context = Context::default().with_waiter(waiter);
            ledger.take(charges, &context, || 10 * SECOND, |decision| decision)
        };
        let waiters = [Waiter::new(), Waiter::new(), Waiter::new()];
        let first = take(&[charge], &waiters[0]);
        assert!(first.is_allowed() && !take(&[charge, charge], &waiters[1]).is_allowed());
        assert!(
            take(&[charge], &waiters[2]).is_allowed(),
            "one slot is free"
        );
    }

    #[test]
    fn an_older_reading_of_the_clock_does_not_cause_a_denial() {
        let (one, two) = (Key::from("one"), Key::from("two"));
        let three = Quota::per_hour(3);
        for algorithm in EXAMPLES
            .into_iter()
            .filter(|algorithm| !algorithm.is_paced())
        {
            let quotas = [
                three.with_algorithm(algorithm),
                Quota::per_day(3).with_algorithm(algorithm),
            ];
            let charge = |key, n: usize| Charge::new(RuleName::default(), key, &quotas[..n]);
            let of = [
                vec![charge(&one, 1)],
                vec![charge(&one, 2)],
                vec![charge(&one, 1), charge(&two, 2)],
            ];
            for charges in of {
                let ledger = ledger();
                for behind in [0, 3, 7] {
                    let decision = ledger.take(
                        &charges,
                        &Context::default(),
                        || 10 * SECOND - behind,
                        |it| it,
                    );
                    assert!(
                        decision.is_allowed(),
                        "{algorithm:?}, {behind}: {decision:?}"
                    );
                }
                let denied =
                    ledger.take(&charges, &Context::default(), || 10 * SECOND - 9, |it| it);
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
                ledger
                    .take(
                        &[charge],
                        &Context::default(),
                        || 10 * SECOND - behind,
                        |it| it
                    )
                    .is_allowed(),
                "{behind}"
            );
        }
        assert!(
            !ledger
                .take(&[charge], &Context::default(), || 10 * SECOND - 5, |it| it)
                .is_allowed()
        );
    }

    #[test]
    fn a_refill_after_the_reading_of_the_clock_counts() {
        let (key, quota) = (
            Key::from("one"),
            Quota::per_second(1).with_algorithm(Algorithm::TokenBucket),
        );
        let (quotas, (clock, mock)) = ([quota], Clock::driven());
        let charge = [Charge::new(RuleName::default(), &key, &quotas)];
        let ledger = Ledger::new(clock, 64);
        assert!(
            ledger
                .take(&charge, &Context::default(), || 0, |it| it)
                .is_allowed()
        );
        mock.increment(SECOND);
        assert!(
            ledger
                .take(&charge, &Context::default(), || SECOND - 1, |it| it)
                .is_allowed()
        );
    }

    type Row = (u32, Duration, Duration);

    /// Returns the state of each account at ten seconds.
    fn rows(ledger: &Ledger, charges: &[Charge<'_>]) -> Vec<Row> {
        let looks: Vec<_> = charges.iter().map(|charge| charge.with_cost(0)).collect();
        let decision = ledger.decide(Effect::Nothing, &looks, None, 10 * SECOND);
        let row = |it: &Outcome| (it.remaining(), it.reset_after(), it.next_after());
        decision.outcomes().iter().map(row).collect()
    }

    /// Each window and bucket has an edge at ten seconds.
    #[test]
    fn a_late_charge_and_its_undo_leave_each_account_as_it_was() {
        let (one, two) = (Key::from("one"), Key::from("two"));
        for algorithm in EXAMPLES
            .into_iter()
            .filter(|algorithm| !algorithm.is_paced())
        {
            let quotas = [
                Quota::per_second(10),
                Quota::per(20, Duration::from_secs(5)),
            ];
            let quotas = quotas.map(|quota| quota.with_algorithm(algorithm));
            let charge = |key, n: usize| Charge::new(RuleName::default(), key, &quotas[..n]);
            let of = [
                vec![charge(&one, 1)],
                vec![charge(&one, 2)],
                vec![charge(&one, 1), charge(&two, 2)],
            ];
            for charges in of {
                for behind in [1, 3, SECOND / 4 + 1, 2 * SECOND] {
                    let ledger = ledger();
                    let unused = rows(&ledger, &charges);
                    let first = ledger.take(&charges, &Context::default(), || 10 * SECOND, |it| it);
                    let before = rows(&ledger, &charges);
                    let late = ledger.take(
                        &charges,
                        &Context::default(),
                        || 10 * SECOND - behind,
                        |it| it,
                    );
                    assert!(first.is_allowed() && late.is_allowed(), "{algorithm:?}");
                    ledger.undo(&charges, &late, None);
                    assert_eq!(rows(&ledger, &charges), before, "{algorithm:?}, {behind}");
                    ledger.undo(&charges, &first, None);
                    assert_eq!(rows(&ledger, &charges), unused, "{algorithm:?}, {behind}");
                }
            }
        }
    }

    /// 1,000 units a second and a burst of 10, for two seconds, with readings of the clock that are late
    /// in a part of the calls.
    #[test]
    fn late_readings_of_the_clock_allow_no_more_than_the_limit() {
        const MILLIS: u64 = 1_000_000;
        let mut random = 1_u64;
        let mut below = |n: u64| {
            random = random
                .wrapping_mul(0x5851_f42d_4c95_7f2d)
                .wrapping_add(0x1405_7b7e_f767_814f);
            (random >> 33) % n
        };
        for algorithm in EXAMPLES
            .into_iter()
            .filter(|algorithm| !algorithm.is_paced())
        {
            let quota = match algorithm {
                Algorithm::Gcra => Quota::per_second(1_000).with_burst(10),
                _ => Quota::per(10, Duration::from_millis(10)).with_algorithm(algorithm),
            };
            let (key, quotas) = (Key::from("one"), [quota]);
            let charge = [Charge::new(RuleName::default(), &key, &quotas)];
            for most in [1, 10] {
                for percent in [0, 1, 10, 30, 50] {
                    for calls in [1, 2, 5] {
                        let (clock, mock) = Clock::driven();
                        mock.increment(10 * SECOND);
                        let (ledger, mut passed) = (Ledger::new(clock, 64), 0);
                        for _ in 0..2_000 {
                            mock.increment(MILLIS);
                            for _ in 0..calls {
                                let late = if below(100) < percent {
                                    1 + below(most)
                                } else {
                                    0
                                };
                                let now = ledger.clock.now() - late * MILLIS;
                                passed += u32::from(ledger.take(
                                    &charge,
                                    &Context::default(),
                                    || now,
                                    |it| it.allowed,
                                ));
                            }
                        }
                        let cell = format!("{algorithm:?}, {most} ms, {percent} %, {calls} calls");
                        assert!(passed <= 2_010, "{cell}: {passed} of 2,010");
                    }
                }
            }
        }
    }
}

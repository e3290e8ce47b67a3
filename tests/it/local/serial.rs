//! Decisions over several accounts, in one order that explains every result.

use std::{
    hint, iter,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    thread,
};

use tower_sluice::{
    Key, LocalStore, Quota, StoreExt, rule::RuleName, store::Charge, testing::FakeClock,
};

const HISTORIES: usize = 10_000;
const THREADS: usize = 3;
/// Decisions of each thread in a history.
const CALLS: usize = 2;
const ACCOUNTS: usize = 3;

/// The accounts of a decision: indexes without duplicates, in any order.
const DECISIONS: [&[usize]; 6] = [&[0, 1], &[1, 0], &[1, 2], &[2, 0], &[0, 1, 2], &[1]];

/// A decision with the moments at which it began and ended.
#[derive(Clone, Debug)]
struct Taken {
    accounts: &'static [usize],
    began: u64,
    ended: u64,
    allowed: bool,
}

/// Charges all accounts or none.
trait TakeAll: Sync {
    fn take(&self, charges: &[Charge<'_>]) -> bool;
}

impl TakeAll for LocalStore {
    fn take(&self, charges: &[Charge<'_>]) -> bool {
        StoreExt::take(self, charges).now().is_allowed()
    }
}

/// Looks at all accounts, charges one after the other, and undoes its charges if one does not fit.
struct LookChargeUndo(LocalStore);

impl TakeAll for LookChargeUndo {
    fn take(&self, charges: &[Charge<'_>]) -> bool {
        let looks: Vec<_> = charges.iter().map(|charge| charge.with_cost(0)).collect();
        let left = StoreExt::take(&self.0, &looks).now();
        if left.outcomes().iter().any(|outcome| outcome.remaining() == 0) {
            return false;
        }
        for (at, charge) in charges.iter().enumerate() {
            if !StoreExt::take(&self.0, &[*charge]).now().is_allowed() {
                charges[..at].iter().for_each(|charged| _ = self.0.adjust(charged, -1).now());
                return false;
            }
            thread::yield_now();
        }
        true
    }
}

/// Runs threads that decide at the same moment, and returns their decisions.
fn record(store: &impl TakeAll, quotas: &[Quota; ACCOUNTS], seed: u64) -> Vec<Taken> {
    let (came, moment, all) = (AtomicU64::new(0), AtomicU64::new(0), Mutex::new(Vec::new()));
    let rules = ["a", "b", "c"].map(|name| RuleName::new(name).expect("a name"));
    let key = Key::from(seed);
    thread::scope(|scope| {
        for thread in 0..THREADS as u64 {
            let (came, moment, all, key) = (&came, &moment, &all, &key);
            scope.spawn(move || {
                let mut random = (seed << 8 | thread).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
                for call in 1..=CALLS {
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    let accounts = DECISIONS[usize::try_from(random % 6).expect("fits")];
                    let charges: Vec<_> = accounts
                        .iter()
                        .map(|at| Charge::new(rules[*at], key, std::slice::from_ref(&quotas[*at])))
                        .collect();
                    came.fetch_add(1, SeqCst);
                    for tries in 0.. {
                        if came.load(SeqCst) >= (THREADS * call) as u64 {
                            break;
                        }
                        if tries % 64 == 63 { thread::yield_now() } else { hint::spin_loop() }
                    }
                    let began = moment.fetch_add(1, SeqCst);
                    let allowed = store.take(&charges);
                    let ended = moment.fetch_add(1, SeqCst);
                    let taken = Taken { accounts, began, ended, allowed };
                    all.lock().expect("no panic").push(taken);
                }
            });
        }
    });
    all.into_inner().expect("no panic")
}

/// Returns `true` if some order of the decisions explains all results.
fn has_an_order(left: &[Taken], units: [u32; ACCOUNTS]) -> bool {
    let Some(first_end) = left.iter().map(|taken| taken.ended).min() else { return true };
    (0..left.len()).filter(|at| left[*at].began <= first_end).any(|at| {
        let (mut rest, mut units) = (left.to_vec(), units);
        let taken = rest.remove(at);
        let fits = taken.accounts.iter().all(|account| units[*account] > 0);
        if fits {
            taken.accounts.iter().for_each(|account| units[*account] -= 1);
        }
        taken.allowed == fits && has_an_order(&rest, units)
    })
}

/// Returns the number of histories without an order.
fn unexplained<S: TakeAll>(histories: usize, store: impl Fn(FakeClock) -> S) -> usize {
    let units = [1, 2, 3];
    let quotas = units.map(Quota::per_day);
    let store = store(FakeClock::new());
    let seeds = iter::successors(Some(1_u64), |seed| Some(seed + 1)).take(histories);
    seeds.filter(|seed| !has_an_order(&record(&store, &quotas, *seed), units)).count()
}

#[test]
fn decisions_over_several_accounts_have_an_order() {
    assert_eq!(unexplained(HISTORIES, |clock| clock.store(65_536)), 0);
}

#[test]
fn a_store_that_looks_charges_and_undoes_has_none() {
    let planted = |clock: FakeClock| LookChargeUndo(clock.store(65_536));
    assert!(unexplained(HISTORIES / 10, planted) > 0);
}

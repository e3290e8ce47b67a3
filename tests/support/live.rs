//! Quotas that are replaced while their accounts exist.

use std::time::Duration;

use tower_sluice::{
    Algorithm, Decision, Key, Quota, Store, StoreExt, rule::RuleName, store::Charge,
    testing::Subject,
};

/// The start of each case: Unix time in seconds.
const START: u64 = 1_700_000_000;

/// A charge after a number of minutes, and the units that are left after it. `None` is a denial.
type Step = (u64, Quota, u32, Option<u32>);

fn cases() -> Vec<(&'static str, Vec<Step>)> {
    let three = Quota::per_hour(3).burst(4);
    let ten = Quota::per_hour(10);
    vec![
        (
            "`initial` is added",
            vec![
                (0, three, 4, Some(0)),
                (0, three.initial(1), 1, None),
                (20, three.initial(1), 1, Some(0)),
            ],
        ),
        (
            "`initial` is removed from an idle account",
            vec![
                (0, three.initial(1), 1, Some(0)),
                (81, three, 1, Some(3)),
                (81, three, 3, Some(0)),
            ],
        ),
        (
            "`initial` is changed",
            vec![
                (0, three.initial(4), 4, Some(0)),
                (0, three.initial(1), 1, None),
                (0, three, 1, None),
            ],
        ),
        (
            "`burst` is raised under `initial`",
            vec![
                (0, ten.initial(10), 10, Some(0)),
                (0, ten.burst(20).initial(20), 0, Some(10)),
                (0, ten.initial(10), 1, None),
            ],
        ),
        (
            "`burst` is lowered under `initial`",
            vec![
                (0, ten.burst(20).initial(20), 5, Some(15)),
                (0, ten.initial(10), 0, Some(5)),
                (0, ten.burst(20).initial(20), 15, Some(0)),
            ],
        ),
    ]
}

/// A replaced quota reads the debt of the account. It refills no account and locks none out.
pub(crate) async fn replaced_quotas<S: Subject>(subject: &mut S) {
    let (rule, key) = (RuleName::default(), Key::from("one"));
    for (name, steps) in cases() {
        let store = subject.open();
        for (at, (minutes, quota, units, left)) in steps.into_iter().enumerate() {
            subject.set(Duration::from_secs(START + 60 * minutes));
            let charge = Charge::new(rule, &key, quota.as_ref()).with_cost(units);
            let decision = store.take(&[charge]).await.map_err(Into::into).expect("a decision");
            let seen = decision.is_allowed().then(|| decision.remaining()).flatten();
            assert_eq!(seen, left, "{name}, step {at}: {decision:?}");
        }
    }
}

/// An account of a store whose quota changes.
struct Replaced<S> {
    store: S,
    key: Key,
}

impl<S: Store> Replaced<S> {
    /// Opens an account 800 seconds after the start of an hourly window.
    fn open(subject: &mut impl Subject<Store = S>) -> Self {
        let replaced = Self { store: subject.open(), key: Key::from("one") };
        subject.set(Duration::from_secs(START));
        replaced
    }

    fn charge<'a>(&'a self, quota: &'a Quota, cost: u32) -> Charge<'a> {
        Charge::new(RuleName::default(), &self.key, quota.as_ref()).with_cost(cost)
    }

    async fn take(&self, quota: &Quota, cost: u32) -> Decision {
        let taken = self.store.take(&[self.charge(quota, cost)]).await;
        taken.map_err(Into::into).expect("a decision")
    }

    async fn adjust(&self, quota: &Quota, units: i64) {
        let adjusted = self.store.adjust(&self.charge(quota, 0), units).await;
        adjusted.map_err(Into::into).expect("an adjustment");
    }
}

/// A quota that keeps the account for longer than the quota before it. The account and its block
/// stay.
pub(crate) async fn a_quota_that_keeps_accounts_longer<S: Subject>(subject: &mut S) {
    let (hour, day) = (Quota::per_hour(100), Quota::per_day(100));
    let both = |algorithm| [hour, day].map(|quota| quota.algorithm(algorithm));
    let bucket = |quota: Quota| quota.algorithm(Algorithm::TokenBucket);
    let window = Algorithm::fixed_window();
    let pairs = [
        [hour.algorithm(window), hour.algorithm(window.carry_over(50))],
        [bucket(Quota::per_hour(1_000)), bucket(Quota::per_hour(10).burst(1_000))],
        [bucket(hour.max_debt(500)), bucket(Quota::per_hour(5))],
        both(Algorithm::AnchoredWindow),
        both(Algorithm::SlidingWindow { buckets: 4 }),
        both(Algorithm::SlidingLog),
    ];
    for ([old, new], step) in pairs.iter().flat_map(|pair| (0..5).map(move |step| (pair, step))) {
        let it = Replaced::open(subject);
        let first = it.take(old, 10).await;
        it.take(old, old.limit() - 10).await;
        it.adjust(old, 500).await;
        let (block, charge) = (Duration::from_secs(600), it.charge(new, 0));
        match step {
            // A block by an operator, who names no quota.
            0 => {
                let operator = Charge::new(RuleName::default(), &it.key, &[]);
                drop(it.store.block(&operator, block).await);
            }
            1 => it.adjust(new, 1).await,
            2 => {
                it.store.undo(&[it.charge(new, 10)], &first, Some(0));
                subject.undone().await;
            }
            3 => drop(it.store.unblock(&charge).await),
            _ => drop(it.store.block(&charge, block).await),
        }
        let name = format!("{old} to {new}, {:?}, step {step}", new.counted_by());
        for seconds in [0, 599, 660] {
            subject.set(Duration::from_secs(START + seconds));
            let decision = it.take(new, 1).await;
            assert!(!decision.is_allowed(), "{name} after {seconds} s: {decision:?}");
            let blocked = [0, 4].contains(&step) && seconds < 600;
            assert_eq!(decision.is_blocked(), blocked, "{name} after {seconds} s");
        }
    }
}

//! Quotas that are replaced while their accounts exist.

use std::time::Duration;

use tower_sluice::{
    Algorithm, Decision, Key, Quota, Store, StoreExt, rule::RuleName, store::Charge,
    testing::Subject,
};

use super::all_algorithms;

/// The start of each case: Unix time in seconds.
const START: u64 = 1_700_000_000;

/// A charge after a number of minutes, and the units that are left after it. `None` is a denial.
type Step = (u64, Quota, u32, Option<u32>);

fn cases() -> Vec<(&'static str, Vec<Step>)> {
    let three = Quota::per_hour(3).with_burst(4);
    let ten = Quota::per_hour(10);
    vec![
        (
            "`initial` is added",
            vec![
                (0, three, 4, Some(0)),
                (0, three.with_initial(1), 1, None),
                (20, three.with_initial(1), 1, Some(0)),
            ],
        ),
        (
            "`initial` is removed from an idle account",
            vec![
                (0, three.with_initial(1), 1, Some(0)),
                (81, three, 1, Some(3)),
                (81, three, 3, Some(0)),
            ],
        ),
        (
            "`initial` is changed",
            vec![
                (0, three.with_initial(4), 4, Some(0)),
                (0, three.with_initial(1), 1, None),
                (0, three, 1, None),
            ],
        ),
        (
            "`burst` is raised under `initial`",
            vec![
                (0, ten.with_initial(10), 10, Some(0)),
                (0, ten.with_burst(20).with_initial(20), 0, Some(10)),
                (0, ten.with_initial(10), 1, None),
            ],
        ),
        (
            "`burst` is lowered under `initial`",
            vec![
                (0, ten.with_burst(20).with_initial(20), 5, Some(15)),
                (0, ten.with_initial(10), 0, Some(5)),
                (0, ten.with_burst(20).with_initial(20), 15, Some(0)),
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

/// Quotas of ten units per hour.
fn hourly() -> impl Iterator<Item = Quota> {
    all_algorithms().map(|algorithm| Quota::per_hour(10).with_algorithm(algorithm))
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
        drop(adjusted.map_err(Into::into).expect("an adjustment"));
    }

    /// Takes all units that are left, one by one, and returns their number.
    async fn exhaust(&self, quota: &Quota) -> u32 {
        let mut taken = 0;
        while taken < 2_000 && self.take(quota, 1).await.is_allowed() {
            taken += 1;
        }
        taken
    }

    /// Takes `cost` units under `old`, calls `then`, and undoes the charge under `old`.
    async fn take_and_undo(
        &self,
        subject: &mut impl Subject<Store = S>,
        (old, cost): (&Quota, u32),
        then: impl AsyncFnOnce(&mut dyn FnMut(u64)),
    ) {
        let receipt = self.take(old, cost).await;
        assert!(receipt.is_allowed());
        then(&mut |seconds| subject.set(Duration::from_secs(START + seconds))).await;
        self.store.undo(&[self.charge(old, cost)], &receipt, None);
        subject.finish(&self.store).await;
    }
}

/// A quota that keeps the account for longer than the quota before it. The account and its block
/// stay.
pub(crate) async fn a_quota_that_keeps_accounts_longer<S: Subject>(subject: &mut S) {
    let hour = Quota::per_hour(100);
    let bucket = |quota: Quota| quota.with_algorithm(Algorithm::TokenBucket);
    let window = Algorithm::fixed_window();
    let pairs = [
        [
            hour.with_algorithm(window),
            hour.with_algorithm(Algorithm::FixedWindow { carry_over: 50, paced: false }),
        ],
        [bucket(Quota::per_hour(1_000)), bucket(Quota::per_hour(10).with_burst(1_000))],
        [bucket(hour.with_max_debt(500)), bucket(Quota::per_hour(5))],
    ];
    for ([old, new], step) in pairs.iter().flat_map(|pair| (0..5).map(move |step| (pair, step))) {
        let it = Replaced::open(subject);
        let first = it.take(old, 10).await;
        drop(it.take(old, old.limit() - 10).await);
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
                subject.finish(&it.store).await;
            }
            3 => drop(it.store.unblock(&charge).await),
            _ => drop(it.store.block(&charge, block).await),
        }
        let name = format!("{old} to {new}, {:?}, step {step}", new.algorithm());
        for seconds in [0, 599, 660] {
            subject.set(Duration::from_secs(START + seconds));
            let decision = it.take(new, 1).await;
            assert!(!decision.is_allowed(), "{name} after {seconds} s: {decision:?}");
            let blocked = [0, 4].contains(&step) && seconds < 600;
            assert_eq!(decision.is_blocked(), blocked, "{name} after {seconds} s");
        }
    }
}

/// A receipt of a charge under an older quota. Its undo returns at most its own units, and only to
/// an account that the older quota knows.
pub(crate) async fn a_receipt_of_an_older_quota<S: Subject>(subject: &mut S) {
    for (old, new) in hourly().flat_map(|old| hourly().map(move |new| (old, new))) {
        let it = Replaced::open(subject);
        let exhaust = async |_: &mut dyn FnMut(u64)| assert!(it.exhaust(&new).await > 0);
        it.take_and_undo(subject, (&old, 1), exhaust).await;
        let more = it.exhaust(&new).await;
        assert!(more <= 1, "{old:?} to {new:?}: {more} units");
    }

    let bucket =
        |text: &str| text.parse::<Quota>().expect("a quota").with_algorithm(Algorithm::TokenBucket);
    let (old, new) = (bucket("10/h"), bucket("1000/h"));
    let it = Replaced::open(subject);
    it.take_and_undo(subject, (&old, 10), async |_| ()).await;
    assert_eq!(it.take(&new, 0).await.remaining(), Some(10), "the tokens that were returned");

    let it = Replaced::open(subject);
    let use_900 = async |set: &mut dyn FnMut(u64)| {
        set(3_600);
        assert!(it.take(&new, 900).await.is_allowed());
    };
    it.take_and_undo(subject, (&old, 1), use_900).await;
    assert_eq!(it.exhaust(&new).await, 100, "an account of the new quota");

    let (fast, slow) = (bucket("10/min burst 20"), bucket("10/h burst 20"));
    let it = Replaced::open(subject);
    let use_10 = async |_: &mut dyn FnMut(u64)| drop(it.take(&slow, 10).await);
    it.take_and_undo(subject, (&fast, 10), use_10).await;
    subject.set(Duration::from_secs(START + 3_599));
    assert_eq!(it.exhaust(&slow).await, 10, "the account is kept as the slow quota requires");
}

/// A look and a denial under another quota, as by a process that still has the older quota. They
/// change no account.
pub(crate) async fn a_look_under_another_quota<S: Subject>(subject: &mut S) {
    for (own, other) in hourly().flat_map(|own| hourly().map(move |other| (own, other))) {
        let it = Replaced::open(subject);
        it.exhaust(&own).await;
        let charge = it.charge(&other, 0);
        drop(it.take(&other, 0).await);
        assert!(!it.take(&other, 11).await.is_allowed(), "{other:?} has ten units");
        drop(it.store.block(&charge, Duration::from_secs(9)).await);
        assert!(!it.take(&other, 1).await.is_allowed(), "a block");
        drop(it.store.unblock(&charge).await);
        assert_eq!(it.exhaust(&own).await, 0, "{own:?}, a look under {other:?}");
    }
    let bucket = |units| Quota::per_hour(units).with_algorithm(Algorithm::TokenBucket);
    let it = Replaced::open(subject);
    assert!(it.take(&bucket(1_000), 900).await.is_allowed());
    drop(it.take(&bucket(10), 0).await);
    assert_eq!(it.take(&bucket(1_000), 0).await.remaining(), Some(100));
}

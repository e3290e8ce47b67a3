//! The conformance suite passes on the local store and detects faults of other stores.

use std::{
    convert::Infallible,
    sync::atomic::{AtomicUsize, Ordering::SeqCst},
    time::Duration,
};

use futures::executor::block_on;
use tower_sluice::{
    Decision, LocalStore, Store, StoreExt,
    store::{Answer, Charge, Context, Never, Op, Unsupported},
    testing::{FakeClock, Subject, properties},
};

const TICK: Duration = Duration::from_nanos(1);

#[tokio::test]
async fn the_local_store_passes() {
    let mut local = FakeClock::new();
    assert_eq!(properties::patience(&mut local, TICK).await, Ok(()));
    assert_eq!(properties::all_or_nothing(&mut local).await, Ok(()));
    assert_eq!(properties::report_only(&mut local).await, Ok(()));
    assert_eq!(properties::no_over_admission(&mut local, block_on), Ok(()));
    assert_eq!(properties::queueing(&mut local).await, Ok(()));
    assert_eq!(properties::overage(&mut local).await, Ok(()));
    assert_eq!(properties::blocks(&mut local).await, Ok(()));
    assert_eq!(properties::undo(&mut local).await, Ok(()));
    assert_eq!(properties::waiting(&mut local).await, Ok(()));
}

#[path = "../../../examples/own_store.rs"]
#[allow(dead_code)]
mod own_store;

mod example {
    use std::sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    };

    use super::*;

    /// The store of the example `own_store`, on a clock of the test.
    #[derive(Default)]
    struct Example(Arc<AtomicU64>);

    impl Subject for Example {
        type Store = own_store::Punchcards;

        fn open(&mut self) -> own_store::Punchcards {
            let clock = self.0.clone();
            own_store::Punchcards::new(move || Duration::from_nanos(clock.load(SeqCst)))
        }

        fn set(&mut self, now: Duration) {
            self.0.store(u64::try_from(now.as_nanos()).expect("a short time"), SeqCst);
        }
    }

    /// All but `patience`: its units never come back.
    #[tokio::test]
    async fn the_store_of_the_example_keeps_every_promise() {
        let mut example = Example::default();
        assert_eq!(properties::all_or_nothing(&mut example).await, Ok(()));
        assert_eq!(properties::report_only(&mut example).await, Ok(()));
        assert_eq!(properties::no_over_admission(&mut example, block_on), Ok(()));
        assert_eq!(properties::queueing(&mut example).await, Ok(()));
        assert_eq!(properties::overage(&mut example).await, Ok(()));
        assert_eq!(properties::blocks(&mut example).await, Ok(()));
        assert_eq!(properties::undo(&mut example).await, Ok(()));
        assert_eq!(properties::waiting(&mut example).await, Ok(()));
    }
}

/// A store that denies what a report-only charge would deny.
struct Strict(LocalStore);

impl Store for Strict {
    type Error = Infallible;
    type Future = Never<Result<Decision, Infallible>>;

    fn call(&self, op: Op<'_>, context: &Context<'_>) -> Answer<Self::Future> {
        let decision = self.0.call(op, context).now();
        let denies = decision.would_deny();
        Answer::Now(Ok(if denies { Decision::deny() } else { decision }))
    }
}

/// A local store inside of a store with a planted fault.
struct Planted<S>(FakeClock, fn(LocalStore) -> S);

impl<S: Store<Error = Infallible>> Subject for Planted<S> {
    type Store = S;

    fn open(&mut self) -> S {
        self.1(self.0.open())
    }

    fn set(&mut self, now: Duration) {
        self.0.set(now);
    }
}

#[tokio::test]
async fn a_store_whose_report_only_charges_deny_fails() {
    let broken = properties::report_only(&mut Planted(FakeClock::new(), Strict)).await;
    let found = "costs of [1, 1, 2] are denied, ";
    assert!(broken.as_ref().is_err_and(|text| text.starts_with(found)), "{broken:?}");
}

/// A store that does not charge the last account of a decision.
struct Forgetful(LocalStore);

impl Store for Forgetful {
    type Error = Infallible;
    type Future = Never<Result<Decision, Infallible>>;

    fn call(&self, op: Op<'_>, context: &Context<'_>) -> Answer<Self::Future> {
        match op {
            Op::Take([all @ .., last]) if !all.is_empty() => {
                let free: Vec<_> = all.iter().copied().chain([last.with_cost(0)]).collect();
                self.0.take(&free)
            }
            _ => self.0.call(op, context),
        }
    }
}

#[tokio::test]
async fn a_store_that_skips_an_account_fails() {
    let broken = properties::all_or_nothing(&mut Planted(FakeClock::new(), Forgetful)).await;
    assert!(broken.is_err_and(|broken| {
        broken.starts_with("costs of [5, 5] are allowed, left [0, 95, 100], expected")
    }));
}

/// A store that returns a unit too many by its third undo of a whole charge.
struct Generous(LocalStore, AtomicUsize);

impl Store for Generous {
    type Error = Infallible;
    type Future = Never<Result<Decision, Infallible>>;

    fn call(&self, op: Op<'_>, context: &Context<'_>) -> Answer<Self::Future> {
        match op {
            Op::Take([one]) if one.cost > 1 && self.1.load(SeqCst) == 3 => {
                self.0.take(&[one.with_cost(one.cost - 1)])
            }
            _ => self.0.call(op, context),
        }
    }

    fn undo(&self, charges: &[Charge<'_>], taken: &Decision, units: Option<u32>) {
        self.1.fetch_add(units.is_none().into(), SeqCst);
        self.0.undo(charges, taken, units);
    }
}

#[tokio::test]
async fn a_store_whose_late_undo_returns_too_much_fails() {
    let generous = |store| Generous(store, AtomicUsize::new(0));
    let broken = properties::undo(&mut Planted(FakeClock::new(), generous)).await;
    let found = "costs of [100] are allowed, left [1], expected";
    assert!(broken.as_ref().is_err_and(|text| text.starts_with(found)), "{broken:?}");
}

/// A store that lets no request wait.
struct Impatient(LocalStore);

impl Store for Impatient {
    type Error = Infallible;
    type Future = Never<Result<Decision, Infallible>>;

    fn call(&self, op: Op<'_>, context: &Context<'_>) -> Answer<Self::Future> {
        self.0.call(op, &context.with_waiter(None))
    }

    fn supports(&self, charges: &[Charge<'_>]) -> Result<(), Unsupported> {
        self.0.supports(charges)
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_wakes_no_request_fails() {
    let broken = properties::waiting(&mut Planted(FakeClock::new(), Impatient)).await;
    assert_eq!(broken, Err("the first request was not woken within 10s".to_owned()));
}

/// A store whose clock runs at another speed.
struct Speed(FakeClock, u32);

impl Subject for Speed {
    type Store = LocalStore;

    fn open(&mut self) -> LocalStore {
        self.0.open()
    }

    fn set(&mut self, now: Duration) {
        self.0.set(now * self.1);
    }
}

#[tokio::test]
async fn a_store_that_refills_too_early_or_too_late_is_found_out() {
    for (speed, found) in [(2, "expected denied"), (0, "expected allowed")] {
        let broken = properties::patience(&mut Speed(FakeClock::new(), speed), TICK).await;
        let is_found = |text: &String| text.contains("costs of [1] are ") && text.ends_with(found);
        assert!(broken.as_ref().is_err_and(is_found), "{broken:?}");
    }
}

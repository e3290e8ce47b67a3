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
    keeps_promises(&mut local).await;
}

/// Checks every promise except that of `patience`.
async fn keeps_promises<S: Subject<Store: Sync>>(subject: &mut S) {
    assert_eq!(properties::all_or_nothing(subject).await, Ok(()));
    assert_eq!(properties::report_only(subject).await, Ok(()));
    assert_eq!(properties::no_over_admission(subject, block_on), Ok(()));
    assert_eq!(properties::queueing(subject).await, Ok(()));
    assert_eq!(properties::overage(subject).await, Ok(()));
    assert_eq!(properties::blocks(subject).await, Ok(()));
    assert_eq!(properties::undo(subject).await, Ok(()));
    assert_eq!(properties::waiting(subject).await, Ok(()));
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
        keeps_promises(&mut Example::default()).await;
    }
}

/// A local store whose answers a fault replaces.
struct Faulty {
    store: LocalStore,
    fault: Fault,
    /// The number of undone charges.
    undone: AtomicUsize,
}

type Fault = fn(&Faulty, Op<'_>, &Context<'_>) -> Decision;

impl Store for Faulty {
    type Error = Infallible;
    type Future = Never<Result<Decision, Infallible>>;

    fn call(&self, op: Op<'_>, context: &Context<'_>) -> Answer<Self::Future> {
        Answer::Now(Ok((self.fault)(self, op, context)))
    }

    fn undo(&self, charges: &[Charge<'_>], taken: &Decision, units: Option<u32>) {
        self.undone.fetch_add(units.is_none().into(), SeqCst);
        self.store.undo(charges, taken, units);
    }

    fn supports(&self, charges: &[Charge<'_>]) -> Result<(), Unsupported> {
        self.store.supports(charges)
    }
}

/// Faulty stores on a clock that runs at this speed.
struct Planted(FakeClock, u32, Fault);

impl Subject for Planted {
    type Store = Faulty;

    fn open(&mut self) -> Faulty {
        Faulty { store: self.0.open(), fault: self.2, undone: AtomicUsize::new(0) }
    }

    fn set(&mut self, now: Duration) {
        self.0.set(now * self.1);
    }
}

fn planted(fault: Fault) -> Planted {
    Planted(FakeClock::new(), 1, fault)
}

#[track_caller]
fn assert_found(result: &Result<(), String>, expected: &str) {
    assert!(result.as_ref().is_err_and(|text| text.contains(expected)), "{result:?}");
}

#[tokio::test(start_paused = true)]
async fn each_fault_of_a_store_is_found() {
    let mut denies_reported = planted(|faulty, op, context| {
        let decision = faulty.store.call(op, context).now();
        if decision.would_deny() { Decision::deny() } else { decision }
    });
    let found = properties::report_only(&mut denies_reported).await;
    assert_found(&found, "costs of [1, 1, 2] are denied, ");

    let mut skips_the_last_account = planted(|faulty, op, context| match op {
        Op::Take([all @ .., last]) if !all.is_empty() => {
            faulty.store.take(&[all, &[last.with_cost(0)]].concat()).now()
        }
        _ => faulty.store.call(op, context).now(),
    });
    let found = properties::all_or_nothing(&mut skips_the_last_account).await;
    assert_found(&found, "costs of [5, 5] are allowed, left [0, 95, 100], expected");

    let mut returns_too_much_late = planted(|faulty, op, context| match op {
        Op::Take([one]) if one.cost > 1 && faulty.undone.load(SeqCst) == 3 => {
            faulty.store.take(&[one.with_cost(one.cost - 1)]).now()
        }
        _ => faulty.store.call(op, context).now(),
    });
    let found = properties::undo(&mut returns_too_much_late).await;
    assert_found(&found, "costs of [100] are allowed, left [1], expected");

    let mut lets_nobody_wait =
        planted(|faulty, op, context| faulty.store.call(op, &context.with_waiter(None)).now());
    let found = properties::waiting(&mut lets_nobody_wait).await;
    assert_found(&found, "the first request was not woken within 10s");

    for (speed, expected) in [(2, "expected denied"), (0, "expected allowed")] {
        let plain: Fault = |faulty, op, context| faulty.store.call(op, context).now();
        let found = properties::patience(&mut Planted(FakeClock::new(), speed, plain), TICK).await;
        assert_found(&found, "costs of [1] are ");
        assert_found(&found, expected);
    }
}

//! The conformance kit passes on the embedded store, and finds what a faulty store does wrong.

use std::{convert::Infallible, time::Duration};

use futures::executor::block_on;
use tower_sluice::{
    Answer, Charge, Decision, LocalStore, Store,
    store::Never,
    testing::{Local, NoLimit, Subject, properties},
};

const TICK: Duration = Duration::from_nanos(1);

#[tokio::test]
async fn the_embedded_store_keeps_every_promise() {
    let mut local = Local::default();
    assert_eq!(properties::patience(&mut local, TICK).await, Ok(()));
    assert_eq!(properties::all_or_nothing(&mut local).await, Ok(()));
    assert_eq!(properties::no_over_admission(&mut local, block_on), Ok(()));
}

/// A store that forgets to charge the last account of a decision.
struct Forgetful(LocalStore);

impl Store for Forgetful {
    type Error = Infallible;
    type Future = Never<Result<Decision, Infallible>>;

    fn take(&self, charges: &[Charge<'_>]) -> Answer<Self::Future> {
        match charges {
            [all @ .., last] if !all.is_empty() => {
                let free: Vec<_> = all.iter().copied().chain([last.cost(0)]).collect();
                self.0.take(&free)
            }
            _ => self.0.take(charges),
        }
    }

    fn settle(&self, charge: &Charge<'_>, units: i64) -> Answer<Self::Future> {
        self.0.settle(charge, units)
    }

    fn reset(&self, charge: &Charge<'_>) -> Answer<Self::Future> {
        self.0.reset(charge)
    }

    fn block(&self, charge: &Charge<'_>, time: Duration) -> Answer<Self::Future> {
        self.0.block(charge, time)
    }

    fn unblock(&self, charge: &Charge<'_>) -> Answer<Self::Future> {
        self.0.unblock(charge)
    }
}

#[derive(Default)]
struct ForgetfulOne(Local);

impl Subject for ForgetfulOne {
    type Store = Forgetful;

    fn open(&mut self) -> Forgetful {
        Forgetful(self.0.open())
    }

    fn set(&mut self, now: Duration) {
        self.0.set(now);
    }
}

#[tokio::test]
async fn a_store_that_forgets_an_account_is_found_out() {
    let broken = properties::all_or_nothing(&mut ForgetfulOne::default()).await;
    assert!(broken.is_err_and(|broken| broken.contains("5 of each left")));
}

/// A store that limits nobody.
struct Open;

impl Subject for Open {
    type Store = NoLimit;

    fn open(&mut self) -> NoLimit {
        NoLimit
    }

    fn set(&mut self, _: Duration) {}
}

#[test]
fn a_store_that_admits_everything_is_found_out() {
    let broken = properties::no_over_admission(&mut Open, block_on);
    assert_eq!(broken, Err("1600 passed a quota of 500/day".into()));
}

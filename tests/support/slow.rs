//! A store that acts at once, and answers when the test says so.

use std::{
    convert::Infallible,
    future::ready,
    sync::{Arc, Mutex},
};

use tokio::sync::Semaphore;
use tower_sluice::{
    Decision, LocalStore, Store,
    store::{Answer, BoxFuture, Charge, Context, Op},
};

/// When decisions are answered. Changes are answered at the first poll, or at once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum When {
    AtOnce,
    AtFirstPoll,
    /// In their order, as [`Slow::tell`] permits.
    Told,
}

/// An embedded store that answers later than it acts.
#[derive(Clone, Debug)]
pub(crate) struct Slow {
    pub(crate) store: LocalStore,
    when: Arc<Mutex<When>>,
    told: Arc<Semaphore>,
}

impl Slow {
    pub(crate) fn new(store: LocalStore, when: When) -> Self {
        Self { store, when: Arc::new(Mutex::new(when)), told: Arc::new(Semaphore::new(0)) }
    }

    pub(crate) fn answer(&self, when: When) {
        *self.when.lock().expect("no panic") = when;
    }

    /// Releases the answers of a number of decisions.
    pub(crate) fn tell(&self, answers: usize) {
        self.told.add_permits(answers);
    }
}

impl Store for Slow {
    type Error = Infallible;
    type Future = BoxFuture<Result<Decision, Infallible>>;

    fn call(&self, op: Op<'_>, context: &Context<'_>) -> Answer<Self::Future> {
        let decision = self.store.call(op, context).now();
        let when = *self.when.lock().expect("no panic");
        match (when, op) {
            (When::AtOnce, _) => Answer::Now(Ok(decision)),
            (When::Told, Op::Take(_)) => {
                let told = self.told.clone();
                Answer::Later(Box::pin(async move {
                    told.acquire().await.expect("never closed").forget();
                    Ok(decision)
                }))
            }
            _ => Answer::Later(Box::pin(ready(Ok(decision)))),
        }
    }

    fn undo(&self, charges: &[Charge<'_>], taken: &Decision, units: Option<u32>) {
        self.store.undo(charges, taken, units);
    }
}

//! A store that does what it is asked at once, and tells when the test lets it.

use std::{convert::Infallible, sync::Arc, time::Duration};

use tokio::sync::Semaphore;
use tower_sluice::{Answer, Charge, Decision, LocalStore, Store, store::BoxFuture};

/// An embedded store whose answers are held back: those to questions behind one door, and those to
/// changes behind another.
#[derive(Clone, Debug)]
pub(crate) struct Slow {
    pub(crate) store: LocalStore,
    questions: Arc<Semaphore>,
    changes: Arc<Semaphore>,
}

type Told = Answer<BoxFuture<Result<Decision, Infallible>>>;

impl Slow {
    pub(crate) fn new(store: LocalStore) -> Self {
        let shut = || Arc::new(Semaphore::new(0));
        Self { store, questions: shut(), changes: shut() }
    }

    /// Lets the answers to so many questions come.
    pub(crate) fn tell(&self, answers: usize) {
        self.questions.add_permits(answers);
    }

    /// Lets the answers to so many changes come.
    pub(crate) fn confirm(&self, changes: usize) {
        self.changes.add_permits(changes);
    }

    fn changed(&self, decision: Decision) -> Told {
        held(&self.changes, decision)
    }
}

fn held(door: &Arc<Semaphore>, decision: Decision) -> Told {
    let door = door.clone();
    Answer::Later(Box::pin(async move {
        door.acquire().await.expect("never closed").forget();
        Ok(decision)
    }))
}

impl Store for Slow {
    type Error = Infallible;
    type Future = BoxFuture<Result<Decision, Infallible>>;

    fn take(&self, charges: &[Charge<'_>]) -> Told {
        held(&self.questions, self.store.take(charges).now())
    }

    fn settle(&self, charge: &Charge<'_>, units: i64) -> Told {
        self.changed(self.store.settle(charge, units).now())
    }

    fn reset(&self, charge: &Charge<'_>) -> Told {
        self.changed(self.store.reset(charge).now())
    }

    fn block(&self, charge: &Charge<'_>, time: Duration) -> Told {
        self.changed(self.store.block(charge, time).now())
    }

    fn unblock(&self, charge: &Charge<'_>) -> Told {
        self.changed(self.store.unblock(charge).now())
    }

    fn undo(&self, charges: &[Charge<'_>], taken: &Decision, units: Option<u32>) {
        self.store.undo(charges, taken, units);
    }
}

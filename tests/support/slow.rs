//! A store that acts at once, and answers when the test releases the answer.

use std::{convert::Infallible, sync::Arc};

use tokio::sync::Semaphore;
use tower_sluice::{
    Decision, LocalStore, Store,
    store::{Answer, BoxFuture, Charge, Context, Op},
};

/// An embedded store whose answers are held back: decisions by one semaphore, and changes by
/// another.
#[derive(Clone, Debug)]
pub(crate) struct Slow {
    pub(crate) store: LocalStore,
    questions: Arc<Semaphore>,
    changes: Arc<Semaphore>,
}

type HeldAnswer = Answer<BoxFuture<Result<Decision, Infallible>>>;

impl Slow {
    pub(crate) fn new(store: LocalStore) -> Self {
        let shut = || Arc::new(Semaphore::new(0));
        Self { store, questions: shut(), changes: shut() }
    }

    /// Releases the answers of a number of decisions.
    pub(crate) fn tell(&self, answers: usize) {
        self.questions.add_permits(answers);
    }

    /// Releases the answers of a number of changes.
    pub(crate) fn confirm(&self, changes: usize) {
        self.changes.add_permits(changes);
    }
}

fn held(door: &Arc<Semaphore>, decision: Decision) -> HeldAnswer {
    let door = door.clone();
    Answer::Later(Box::pin(async move {
        door.acquire().await.expect("never closed").forget();
        Ok(decision)
    }))
}

impl Store for Slow {
    type Error = Infallible;
    type Future = BoxFuture<Result<Decision, Infallible>>;

    fn call(&self, op: Op<'_>, context: &Context<'_>) -> HeldAnswer {
        let decision = self.store.call(op, context).now();
        match op {
            Op::Take(_) => held(&self.questions, decision),
            _ => held(&self.changes, decision),
        }
    }

    fn undo(&self, charges: &[Charge<'_>], taken: &Decision, units: Option<u32>) {
        self.store.undo(charges, taken, units);
    }
}

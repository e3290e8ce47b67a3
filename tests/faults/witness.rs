//! A store that counts the answers that the policy receives.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use redis::aio::ConnectionLike;
use tower_sluice::{
    Decision, Store,
    store::{
        Answer, BoxFuture, BreakerError, Charge, Context, FailureDomain, Op, RedisError,
        TimeoutError, Unsupported,
    },
};

use crate::stack::Guarded;

type Failure = BreakerError<TimeoutError<RedisError>>;
type Answered = Result<Decision, Failure>;

#[derive(Clone, Debug)]
pub(crate) struct Witness<C> {
    inner: Guarded<C>,
    heard: Heard,
}

/// Counters that all clones share.
#[derive(Clone, Debug, Default)]
pub(crate) struct Heard(Arc<Mutex<Counts>>);

#[derive(Clone, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) answered: u64,
    pub(crate) errors: BTreeMap<String, u64>,
    pub(crate) texts: BTreeMap<String, String>,
}

impl Heard {
    pub(crate) fn counts(&self) -> Counts {
        self.0.lock().expect("no panic here").clone()
    }

    fn note(&self, answer: &Answered) {
        let (kind, text) = match answer {
            // The store was not called.
            Err(BreakerError::Open { .. }) => return,
            Err(BreakerError::Store(TimeoutError::Store(error))) => {
                (error.kind().as_str(), error.to_string())
            }
            Err(BreakerError::Store(error)) => ("budget", error.to_string()),
            Err(error) => ("unknown", error.to_string()),
            Ok(_) => {
                self.0.lock().expect("no panic here").answered += 1;
                return;
            }
        };
        let mut counts = self.0.lock().expect("no panic here");
        *counts.errors.entry(kind.to_owned()).or_default() += 1;
        counts.texts.entry(kind.to_owned()).or_insert(text);
    }
}

impl<C> Witness<C>
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    pub(crate) fn new(inner: Guarded<C>, heard: Heard) -> Self {
        Self { inner, heard }
    }

    fn note(&self, answer: Answer<<Guarded<C> as Store>::Future>) -> Answer<BoxFuture<Answered>> {
        match answer {
            Answer::Now(answer) => {
                self.heard.note(&answer);
                Answer::Now(answer)
            }
            Answer::Later(later) => {
                let heard = self.heard.clone();
                Answer::Later(Box::pin(async move {
                    let answer = later.await;
                    heard.note(&answer);
                    answer
                }))
            }
        }
    }
}

impl<C> Store for Witness<C>
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    type Error = Failure;
    type Future = BoxFuture<Answered>;

    fn call(&self, op: Op<'_>, context: &Context<'_>) -> Answer<Self::Future> {
        self.note(self.inner.call(op, context))
    }

    fn undo(&self, charges: &[Charge<'_>], taken: &Decision, units: Option<u32>) {
        self.inner.undo(charges, taken, units);
    }

    fn supports(&self, charges: &[Charge<'_>]) -> Result<(), Unsupported> {
        self.inner.supports(charges)
    }

    fn failure_domains(&self, op: Op<'_>) -> Vec<FailureDomain> {
        self.inner.failure_domains(op)
    }
}

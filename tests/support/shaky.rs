//! A store that answers, fails, hangs or is late on request, and counts its calls.

use std::{
    future::{pending, ready},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use tower::BoxError;
use tower_sluice::{
    Decision, LocalStore, Store, StoreExt,
    decision::Source,
    store::{Answer, BoxFuture, Charge, Context, Health, Op, OwnedOp, Unsupported},
};

use super::{Broken, driven::AtOnce};

/// The behaviour of the store.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Mood {
    Well,
    /// Answers at the first poll.
    WellSoon,
    /// Fails immediately.
    Failing,
    /// Fails at the first poll.
    FailingSoon,
    /// Charges when the answer arrives.
    Late(Duration),
    FailingLate(Duration),
    /// Decides as by `fail_closed`, because this process does not read the answer in time.
    Busy,
    /// Charges, and never answers.
    Hanging,
}

/// An embedded store in a [`Mood`]. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Shaky {
    pub(crate) store: LocalStore,
    state: Arc<State>,
}

#[derive(Debug)]
struct State {
    mood: Mutex<Mood>,
    /// The adjustments until they fail.
    settles: AtomicUsize,
    calls: AtomicUsize,
    given_back: AtomicUsize,
    on_their_way: AtomicUsize,
}

/// Counts an answer while it is in flight.
struct OnItsWay(Arc<State>);

impl OnItsWay {
    fn new(state: &Arc<State>) -> Self {
        state.on_their_way.fetch_add(1, SeqCst);
        Self(state.clone())
    }
}

impl Drop for OnItsWay {
    fn drop(&mut self) {
        self.0.on_their_way.fetch_sub(1, SeqCst);
    }
}

type Answered = Answer<BoxFuture<Result<Decision, BoxError>>>;

impl Shaky {
    pub(crate) fn new(store: LocalStore) -> Self {
        let state = State {
            mood: Mutex::new(Mood::Well),
            settles: AtomicUsize::new(usize::MAX),
            calls: AtomicUsize::new(0),
            given_back: AtomicUsize::new(0),
            on_their_way: AtomicUsize::new(0),
        };
        Self { store, state: Arc::new(state) }
    }

    pub(crate) fn set_mood(&self, mood: Mood) {
        *self.state.mood.lock().expect("a mood") = mood;
        self.settles_fail_after(usize::MAX);
    }

    /// Fails adjustments after `settles` more, until the mood changes.
    pub(crate) fn settles_fail_after(&self, settles: usize) {
        self.state.settles.store(settles, SeqCst);
    }

    /// Returns the calls so far that need an answer.
    pub(crate) fn calls(&self) -> usize {
        self.state.calls.load(SeqCst)
    }

    pub(crate) fn given_back(&self) -> usize {
        self.state.given_back.load(SeqCst)
    }

    /// Returns the pending answers.
    pub(crate) fn on_their_way(&self) -> usize {
        self.state.on_their_way.load(SeqCst)
    }

    fn ask(&self, mood: Mood, op: Op<'_>, context: &Context<'_>) -> Answered {
        self.state.calls.fetch_add(1, SeqCst);
        let broken = || Err(BoxError::from("redis://10.0.0.7 is down"));
        let (store, waiter) = (self.store.clone(), context.waiter.cloned());
        let on_its_way = OnItsWay::new(&self.state);
        match mood {
            Mood::Well => Answer::Now(Ok(store.call(op, context).now())),
            Mood::WellSoon => Answer::Later(Box::pin(ready(Ok(store.call(op, context).now())))),
            Mood::Failing => Answer::Now(broken()),
            Mood::FailingSoon => Answer::Later(Box::pin(ready(broken()))),
            Mood::Late(time) => {
                let op = OwnedOp::from(op);
                Answer::Later(Box::pin(async move {
                    let _on_its_way = on_its_way;
                    tokio::time::sleep(time).await;
                    let context = Context::default().with_waiter(waiter.as_ref());
                    Ok(op.with(|op| store.call(op, &context).now()))
                }))
            }
            Mood::FailingLate(time) => Answer::Later(Box::pin(async move {
                let _on_its_way = on_its_way;
                tokio::time::sleep(time).await;
                broken()
            })),
            Mood::Busy => {
                let closed = Broken::Now.fail_closed().call(op, context).now();
                Answer::Later(Box::pin(async move {
                    let _on_its_way = on_its_way;
                    Ok(closed.with_source(Source::Busy))
                }))
            }
            Mood::Hanging => {
                drop(store.call(op, context).now());
                Answer::Later(Box::pin(async move {
                    let _on_its_way = on_its_way;
                    std::future::pending().await
                }))
            }
        }
    }

    fn mood(&self) -> Mood {
        *self.state.mood.lock().expect("a mood")
    }
}

impl Store for Shaky {
    type Error = BoxError;
    type Future = BoxFuture<Result<Decision, BoxError>>;

    fn call(&self, op: Op<'_>, context: &Context<'_>) -> Answered {
        let one_less = |settles: usize| settles.checked_sub(1);
        let works = match op {
            Op::Adjust(..) => self.state.settles.fetch_update(SeqCst, SeqCst, one_less).is_ok(),
            _ => true,
        };
        self.ask(if works { self.mood() } else { Mood::Failing }, op, context)
    }

    fn undo(&self, charges: &[Charge<'_>], taken: &Decision, units: Option<u32>) {
        self.state.given_back.fetch_add(1, SeqCst);
        if self.mood() == Mood::Well {
            self.store.undo(charges, taken, units);
        }
    }

    fn supports(&self, charges: &[Charge<'_>]) -> Result<(), Unsupported> {
        self.store.supports(charges)
    }

    fn health(&self) -> BoxFuture<Health> {
        match self.mood() {
            Mood::Well => Box::pin(ready(Health::healthy("shaky", "as ever"))),
            Mood::Hanging => Box::pin(pending()),
            mood => Box::pin(ready(Health::failing("shaky", format!("{mood:?}")))),
        }
    }
}

/// Makes the call of a store with this name, of those that need an answer.
pub(crate) fn call<S: Store>(store: &S, name: &str, charge: Charge<'_>) -> Answer<S::Future> {
    match name {
        "take" => store.take(&[charge]),
        "adjust" => store.adjust(&charge, 1),
        "reset" => store.reset(&charge),
        "block" => store.block(&charge, Duration::from_secs(1)),
        _ => store.unblock(&charge),
    }
}

/// The names that [`call`] accepts.
pub(crate) const CALLS: [&str; 5] = ["take", "adjust", "reset", "block", "unblock"];

//! A store that answers, fails, hangs or is late at will, and counts how it is called.

use std::{
    future::{pending, ready},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use tower_sluice::{
    Answer, Charge, Decision, LocalStore, Store,
    store::{BoxError, BoxFuture, Condition, OwnedCharges, Unsupported},
};

/// How it answers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Mood {
    Well,
    /// Without asking anybody.
    Failing,
    /// At the first look.
    FailingSoon,
    /// The charge is made when the answer comes.
    Late(Duration),
    FailingLate(Duration),
    /// The charge is made, and the answer never comes.
    Hanging,
}

/// An embedded store in a [`Mood`]; clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Shaky {
    pub(crate) store: LocalStore,
    state: Arc<State>,
}

#[derive(Debug)]
struct State {
    mood: Mutex<Mood>,
    /// Settles until they fail.
    settles: AtomicUsize,
    calls: AtomicUsize,
    given_back: AtomicUsize,
    on_their_way: AtomicUsize,
}

/// Counts an answer while it is on its way.
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

    pub(crate) fn is(&self, mood: Mood) {
        *self.state.mood.lock().expect("a mood") = mood;
        self.settles_fail_after(usize::MAX);
    }

    /// Fails settles after so many more, until its mood changes.
    pub(crate) fn settles_fail_after(&self, settles: usize) {
        self.state.settles.store(settles, SeqCst);
    }

    /// Calls so far that want an answer.
    pub(crate) fn calls(&self) -> usize {
        self.state.calls.load(SeqCst)
    }

    pub(crate) fn given_back(&self) -> usize {
        self.state.given_back.load(SeqCst)
    }

    /// Answers that are waited for.
    pub(crate) fn on_their_way(&self) -> usize {
        self.state.on_their_way.load(SeqCst)
    }

    fn ask<W>(&self, mood: Mood, charges: &[Charge<'_>], work: W) -> Answered
    where
        W: FnOnce(&LocalStore, &[Charge<'_>]) -> Decision + Send + 'static,
    {
        self.state.calls.fetch_add(1, SeqCst);
        let broken = || Err(BoxError::from("redis://10.0.0.7 is down"));
        let (store, charges) = (self.store.clone(), OwnedCharges::from(charges));
        let on_its_way = OnItsWay::new(&self.state);
        match mood {
            Mood::Well => Answer::Now(Ok(charges.with(|charges| work(&store, charges)))),
            Mood::Failing => Answer::Now(broken()),
            Mood::FailingSoon => Answer::Later(Box::pin(std::future::ready(broken()))),
            Mood::Late(time) => Answer::Later(Box::pin(async move {
                let _on_its_way = on_its_way;
                tokio::time::sleep(time).await;
                Ok(charges.with(|charges| work(&store, charges)))
            })),
            Mood::FailingLate(time) => Answer::Later(Box::pin(async move {
                let _on_its_way = on_its_way;
                tokio::time::sleep(time).await;
                broken()
            })),
            Mood::Hanging => {
                charges.with(|charges| drop(work(&store, charges)));
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

    fn take(&self, charges: &[Charge<'_>]) -> Answered {
        self.ask(self.mood(), charges, |store, charges| store.take(charges).now())
    }

    fn settle(&self, charge: &Charge<'_>, units: i64) -> Answered {
        let one_less = |settles: usize| settles.checked_sub(1);
        let works = self.state.settles.fetch_update(SeqCst, SeqCst, one_less).is_ok();
        let mood = if works { self.mood() } else { Mood::Failing };
        self.ask(mood, &[*charge], move |store, charges| store.settle(&charges[0], units).now())
    }

    fn reset(&self, charge: &Charge<'_>) -> Answered {
        self.ask(self.mood(), &[*charge], |store, charges| store.reset(&charges[0]).now())
    }

    fn block(&self, charge: &Charge<'_>, time: Duration) -> Answered {
        self.ask(self.mood(), &[*charge], move |store, charges| {
            store.block(&charges[0], time).now()
        })
    }

    fn unblock(&self, charge: &Charge<'_>) -> Answered {
        self.ask(self.mood(), &[*charge], |store, charges| store.unblock(&charges[0]).now())
    }

    fn undo(&self, charges: &[Charge<'_>], taken: &Decision, units: Option<u32>) {
        self.state.given_back.fetch_add(1, SeqCst);
        if self.mood() == Mood::Well {
            self.store.undo(charges, taken, units);
        }
    }

    fn check(&self, charges: &[Charge<'_>]) -> Result<(), Unsupported> {
        self.store.check(charges)
    }

    fn health(&self) -> BoxFuture<Condition> {
        match self.mood() {
            Mood::Well => Box::pin(ready(Condition::well("shaky", "as ever"))),
            Mood::Hanging => Box::pin(pending()),
            mood => Box::pin(ready(Condition::failing("shaky", format!("{mood:?}")))),
        }
    }
}

/// Every call of a store that wants an answer, by name.
pub(crate) fn call<S: Store>(store: &S, name: &str, charge: Charge<'_>) -> Answer<S::Future> {
    match name {
        "take" => store.take(&[charge]),
        "settle" => store.settle(&charge, -1),
        "reset" => store.reset(&charge),
        "block" => store.block(&charge, Duration::from_secs(1)),
        _ => store.unblock(&charge),
    }
}

/// The names that [`call`] knows.
pub(crate) const CALLS: [&str; 5] = ["take", "settle", "reset", "block", "unblock"];

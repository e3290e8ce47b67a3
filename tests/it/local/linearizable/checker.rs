//! Searches an order of the calls (Wing and Gong's algorithm, with Lowe's cache).

use std::{collections::HashSet, fmt::Debug, hash::Hash};

/// An operation on an account.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Call {
    Take(u32),
    Adjustment(i64),
    /// Undoes units of a charge that left the account full at `receipt`.
    Undo {
        units: u32,
        receipt: u64,
    },
    Reset,
}

/// The reported state of an account: `full` and `retry` are nanoseconds from the call, and `None`
/// where the test does not read them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Said {
    pub(crate) allowed: bool,
    pub(crate) remaining: u64,
    pub(crate) waits: Option<Waits>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Waits {
    pub(crate) full: u64,
    pub(crate) retry: Option<u64>,
}

impl Said {
    fn is_said_by(&self, model: &Self) -> bool {
        let waits = self.waits.is_none() || self.waits == model.waits;
        (self.allowed, self.remaining) == (model.allowed, model.remaining) && waits
    }
}

/// One call: it took effect at one moment between `start` and `end`, at one of these instants.
#[derive(Clone, Debug)]
pub(crate) struct Operation {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) instants: Vec<u64>,
    pub(crate) call: Call,
    pub(crate) said: Option<Said>,
}

/// A model of an account.
pub(crate) trait Model {
    type State: Clone + Debug + Default + Eq + Hash;

    fn apply(&self, state: &mut Self::State, call: Call, now: u64) -> Said;
}

/// Returns `true` if some order of the operations, starting from a new account, explains all
/// results.
pub(crate) fn explains<M: Model>(model: &M, history: &[Operation]) -> bool {
    assert!(history.len() <= 64, "too long to remember in a word");
    Search { model, history, tried: HashSet::new() }.goes_on(0, &M::State::default())
}

struct Search<'a, M: Model> {
    model: &'a M,
    history: &'a [Operation],
    tried: HashSet<(u64, M::State)>,
}

impl<M: Model> Search<'_, M> {
    /// Returns `true` if the operations that are not in `done` can follow this state.
    fn goes_on(&mut self, done: u64, state: &M::State) -> bool {
        let history = self.history;
        let left = || (0..history.len()).filter(|at| done & 1 << at == 0);
        let Some(first_end) = left().map(|at| history[at].end).min() else { return true };
        if !self.tried.insert((done, state.clone())) {
            return false;
        }
        // a call that began after another one ended comes after it
        let next: Vec<_> = left().filter(|at| history[*at].start <= first_end).collect();
        next.into_iter().any(|at| {
            let Operation { instants, call, said, .. } = &history[at];
            instants.iter().any(|now| {
                let mut after = state.clone();
                let expected = self.model.apply(&mut after, *call, *now);
                said.is_none_or(|said| said.is_said_by(&expected))
                    && self.goes_on(done | 1 << at, &after)
            })
        })
    }
}

//! How a store is doing.

use super::BoxFuture;

/// How a store is doing, in words for operators: what it is, whether it decides, and the stores
/// within. Told by [`Store::health`](super::Store::health).
///
/// With the feature `serde` it is written with these fields, `inner` only where there is any.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Condition {
    /// What kind of store it is: `"local"`, `"redis"`, `"breaker"`, …
    pub store: &'static str,
    /// Whether it decides.
    pub state: State,
    /// More, for a person to read: no key, no password.
    pub detail: String,
    /// The stores it wraps.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Vec::is_empty"))]
    pub inner: Vec<Self>,
}

/// Whether a store decides. A breaker that is closed, and a deadline that is kept, are well around a
/// store that fails; [`Condition::is_well`] asks all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum State {
    /// It does.
    Well,
    /// It does not. Of a wrapper: what it wraps does not, or is left alone.
    Failing,
    /// It does not say.
    Unknown,
}

impl Condition {
    /// A store that decides.
    #[must_use]
    pub fn well(store: &'static str, detail: impl Into<String>) -> Self {
        Self::new(store, State::Well, detail)
    }

    /// A store that does not, and why.
    #[must_use]
    pub fn failing(store: &'static str, detail: impl Into<String>) -> Self {
        Self::new(store, State::Failing, detail)
    }

    /// A store that does not say.
    #[must_use]
    pub fn unknown(store: &'static str) -> Self {
        Self::new(store, State::Unknown, "")
    }

    fn new(store: &'static str, state: State, detail: impl Into<String>) -> Self {
        Self { store, state, detail: detail.into(), inner: Vec::new() }
    }

    /// Around another store.
    #[must_use]
    pub fn around(mut self, inner: Self) -> Self {
        self.inner.push(inner);
        self
    }

    /// Whether it and every store within decide, or do not say.
    ///
    /// ```
    /// use tower_sluice::store::Condition;
    ///
    /// let here = Condition::well("local", "12 of 262144 slots in debt");
    /// let condition = Condition::failing("fallback", "decides here").around(here);
    /// assert!(!condition.is_well());
    /// ```
    #[must_use]
    pub fn is_well(&self) -> bool {
        self.state != State::Failing && self.inner.iter().all(Self::is_well)
    }

    /// What a wrapper tells that has nothing to add.
    pub(super) fn same(inner: &Self) -> (State, String) {
        (inner.state, String::new())
    }

    /// What a wrapper tells when the store within has told: as that is, unless it has more to say.
    pub(super) fn wrapping(
        store: &'static str,
        inner: BoxFuture<Self>,
        tell: impl FnOnce(&Self) -> (State, String) + Send + 'static,
    ) -> BoxFuture<Self> {
        Box::pin(async move {
            let inner = inner.await;
            let (state, detail) = tell(&inner);
            Self::new(store, state, detail).around(inner)
        })
    }
}

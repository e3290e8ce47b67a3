//! The health of a store.

use super::BoxFuture;

/// Health of a store and of the stores that it wraps.
///
/// Returned by [`Store::health`](super::Store::health). With feature `serde`, a `Health` can be
/// serialized, and an empty `inner` is omitted.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Health {
    /// The kind of the store: `"local"`, `"redis"`, `"breaker"`, …
    pub store: &'static str,
    /// The status of the store.
    pub status: Status,
    /// Details for people. Never contains a key or a password.
    pub detail: String,
    /// The wrapped stores.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Vec::is_empty"))]
    pub inner: Vec<Self>,
}

/// Status of one store, without the stores that it wraps.
///
/// For example, a closed breaker is healthy even if the wrapped store is failing.
/// [`Health::is_healthy`] includes wrapped stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Status {
    /// The store decides.
    Healthy,
    /// The store does not decide.
    ///
    /// A wrapper is failing if the wrapped store does not decide or is not called.
    Failing,
    /// The store does not report its health.
    Unknown,
}

impl Health {
    /// Creates a report of a store that decides.
    #[must_use]
    pub fn healthy(store: &'static str, detail: impl Into<String>) -> Self {
        Self::new(store, Status::Healthy, detail)
    }

    /// Creates a report of a store that does not decide, with the reason.
    #[must_use]
    pub fn failing(store: &'static str, detail: impl Into<String>) -> Self {
        Self::new(store, Status::Failing, detail)
    }

    pub(super) fn new(store: &'static str, status: Status, detail: impl Into<String>) -> Self {
        Self {
            store,
            status,
            detail: detail.into(),
            inner: Vec::new(),
        }
    }

    /// Adds the health of a store that this store wraps.
    pub(super) fn around(mut self, inner: Self) -> Self {
        self.inner.push(inner);
        self
    }

    /// Returns `true` if neither this store nor a wrapped store is failing.
    ///
    /// ```
    /// use tower_sluice::store::Health;
    ///
    /// let local = Health::healthy("local", "12 of 262144 accounts in use");
    /// let mut condition = Health::failing("fallback", "decides locally");
    /// condition.inner.push(local);
    /// assert!(!condition.is_healthy());
    /// ```
    #[must_use]
    pub fn is_healthy(&self) -> bool {
        self.status != Status::Failing && self.inner.iter().all(Self::is_healthy)
    }

    /// Returns the health of a wrapper. By default, its status is that of the inner store.
    pub(super) fn wrapping(
        store: &'static str,
        inner: BoxFuture<Self>,
        status: Option<Status>,
        detail: &'static str,
    ) -> BoxFuture<Self> {
        Box::pin(async move {
            let inner = inner.await;
            Self::new(store, status.unwrap_or(inner.status), detail).around(inner)
        })
    }
}

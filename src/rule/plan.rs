//! Which quotas a rule charges: fixed, chosen per request, or replaced while the server runs.

use std::{
    fmt,
    sync::{Arc, PoisonError, RwLock},
};

use http::request::Parts;
use smallvec::SmallVec;

use crate::{key::Key, quota::Quota};

/// Quotas charged all or none: made of a [`Quota`], an array, a slice or a `Vec`; an empty one
/// limits nothing. In a file (feature `serde`), a quota or a list of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quotas(SmallVec<[Quota; 1]>);

/// The most quotas of one rule.
pub(super) const MOST: usize = 255;

impl Quotas {
    /// What is charged: no more than a decision can tell apart.
    pub(crate) fn charged(&self) -> &[Quota] {
        &self.0[..self.0.len().min(MOST)]
    }

    #[track_caller]
    fn checked(self) -> Self {
        assert!(self.0.len() <= MOST, "rule: {} quotas; give at most {MOST}", self.0.len());
        self
    }
}

/// As [`Limiter::take`](crate::Limiter::take) wants them.
impl AsRef<[Quota]> for Quotas {
    fn as_ref(&self) -> &[Quota] {
        &self.0
    }
}

impl From<Quota> for Quotas {
    fn from(quota: Quota) -> Self {
        Self(SmallVec::from_buf([quota]))
    }
}

impl<const N: usize> From<[Quota; N]> for Quotas {
    fn from(quotas: [Quota; N]) -> Self {
        Self(quotas.into_iter().collect())
    }
}

impl From<&[Quota]> for Quotas {
    fn from(quotas: &[Quota]) -> Self {
        Self(quotas.into())
    }
}

impl From<Vec<Quota>> for Quotas {
    fn from(quotas: Vec<Quota>) -> Self {
        Self(quotas.into())
    }
}

/// Where a rule's quotas come from.
///
/// An account keeps its state when its quotas change, so neither a new plan nor a change while the
/// server runs refills anybody. Plans of one rule should share their periods; quotas of different
/// scale belong in rules of different names.
///
/// Let a client not choose between plans request by request: an account ends where it is full under
/// the plan of the moment, and with it, by a [token bucket](crate::Algorithm::TokenBucket), what it
/// owes under a larger one.
///
/// ```
/// use tower_sluice::{Plan, Quota, Rule, key::Header};
///
/// #[derive(Clone)]
/// struct Paid;
///
/// let plan = Plan::from_fn(|parts, _key| match parts.extensions.get::<Paid>() {
///     Some(Paid) => Quota::per_minute(600).into(),
///     None => Quota::per_minute(60).into(),
/// });
/// Rule::new("user", Header::new("x-api-key"), plan);
/// ```
#[derive(Clone)]
pub struct Plan(Source);

#[derive(Clone)]
enum Source {
    Fixed(Quotas),
    Chosen(Arc<dyn Fn(&Parts, &Key) -> Quotas + Send + Sync>),
    Live(LivePlan),
}

impl Plan {
    /// The quotas that `choose` gives for the head of the request and its key; the first 255 count.
    pub fn from_fn(choose: impl Fn(&Parts, &Key) -> Quotas + Send + Sync + 'static) -> Self {
        Self(Source::Chosen(Arc::new(choose)))
    }

    /// What this request is charged under; where that is made for it, it is kept in `made`.
    #[inline]
    pub(super) fn quotas<'a>(
        &'a self,
        parts: &Parts,
        key: &Key,
        made: &'a mut Option<Quotas>,
    ) -> &'a [Quota] {
        match &self.0 {
            Source::Fixed(quotas) => quotas,
            Source::Chosen(choose) => made.insert(choose(parts, key)),
            Source::Live(live) => made.insert(live.quotas()),
        }
        .charged()
    }

    /// Whether there is never anything to charge.
    pub(super) fn is_unlimited(&self) -> bool {
        matches!(&self.0, Source::Fixed(quotas) if quotas.0.is_empty())
    }

    pub(super) fn fixed(&self) -> Option<&[Quota]> {
        match &self.0 {
            Source::Fixed(quotas) => Some(&quotas.0),
            Source::Chosen(_) | Source::Live(_) => None,
        }
    }

    pub(super) fn live(&self) -> Option<&LivePlan> {
        match &self.0 {
            Source::Live(live) => Some(live),
            Source::Fixed(_) | Source::Chosen(_) => None,
        }
    }
}

impl<Q: Into<Quotas>> From<Q> for Plan {
    fn from(quotas: Q) -> Self {
        Self(Source::Fixed(quotas.into()))
    }
}

impl From<&LivePlan> for Plan {
    fn from(live: &LivePlan) -> Self {
        Self(Source::Live(live.clone()))
    }
}

impl fmt::Debug for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Source::Fixed(quotas) => fmt::Debug::fmt(quotas, f),
            Source::Chosen(_) => f.write_str("Plan(fn)"),
            Source::Live(live) => fmt::Debug::fmt(live, f),
        }
    }
}

/// Quotas that are replaced while the server runs: a handle to keep, and a [`Plan`] for a rule.
///
/// ```
/// use tower_sluice::{LivePlan, PeerIp, Quota, Rule};
///
/// let live = LivePlan::new(Quota::per_second(10));
/// let rule = Rule::new("ip", PeerIp::new(), &live);
/// live.replace(Quota::per_second(5)); // from the next request on; nobody is refilled
/// ```
#[derive(Clone, Debug)]
pub struct LivePlan(Arc<RwLock<Quotas>>);

impl LivePlan {
    /// A plan that begins with `quotas`.
    ///
    /// # Panics
    ///
    /// When there are more than 255.
    #[track_caller]
    pub fn new(quotas: impl Into<Quotas>) -> Self {
        Self(Arc::new(RwLock::new(quotas.into().checked())))
    }

    /// Puts `quotas` in the place of those before, for every rule that has this plan.
    ///
    /// # Panics
    ///
    /// When there are more than 255.
    #[track_caller]
    pub fn replace(&self, quotas: impl Into<Quotas>) {
        let quotas = quotas.into().checked();
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = quotas;
    }

    /// The quotas as they are now.
    #[must_use]
    pub fn quotas(&self) -> Quotas {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

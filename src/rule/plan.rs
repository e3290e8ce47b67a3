//! Parts of a rule: plans, which are quotas that are fixed, chosen per request, or replaced at run time;
//! costs; and deadlines.

use std::{
    fmt,
    sync::{Arc, atomic::AtomicU32},
    time::Duration,
};

use arc_swap::{ArcSwap, Guard};

use super::{controller::Controller, quotas::Quotas};
use crate::{
    advice::{count_early, is_early},
    key::{Key, RequestHead},
    quota::Quota,
};

/// Source of a rule's quotas.
///
/// A change of a limit does not refill an account. A change of the period, the algorithm or the unit
/// is another account, which starts full, and the old one is still there when the old quota returns.
/// See [changing a rule while it runs](crate::guide::plans#changing-a-rule-while-it-runs).
///
/// Do not let a client choose its plan per request: of plans with different accounts, it gets the sum of
/// what each allows. A store
/// drops an account that is full under the current plan. With a
/// [token bucket](crate::Algorithm::TokenBucket), a client that alternates between two limits could
/// use the units of the larger one twice.
///
/// ```
/// use tower_sluice::{Plan, Quota, Rule, key::HeaderKey};
///
/// #[derive(Clone)]
/// struct Paid;
///
/// let plan = Plan::from_fn(|head, _key| match head.extensions.get::<Paid>() {
///     Some(Paid) => Quota::per_minute(600).into(),
///     None => Quota::per_minute(60).into(),
/// });
/// Rule::new("user", HeaderKey::new("x-api-key"), plan);
/// ```
#[derive(Clone)]
pub struct Plan(PlanKind);

#[derive(Clone)]
enum PlanKind {
    Fixed(Quotas),
    Chosen(Arc<ChosenPlan>),
    Live(LivePlan),
}

/// Quotas that a function chooses.
struct ChosenPlan {
    choose: Choose,
    /// The requests so far. The quotas of the first ones are checked.
    requests: AtomicU32,
}

type Choose = Box<dyn Fn(&RequestHead<'_>, &Key) -> Quotas + Send + Sync>;

impl ChosenPlan {
    fn quotas(&self, head: &RequestHead<'_>, key: &Key) -> Quotas {
        let quotas = (self.choose)(head, key);
        if is_early(&self.requests) {
            count_early(&self.requests);
            quotas.warn_if_equal();
        }
        quotas
    }
}

/// Quotas of one request, of a plan that is not fixed.
pub(super) enum MadeQuotas {
    Chosen(Quotas),
    Live(Guard<Arc<Quotas>>),
}

impl MadeQuotas {
    #[inline]
    fn charged(&self) -> &[Quota] {
        match self {
            Self::Chosen(quotas) => quotas.charged(),
            Self::Live(quotas) => quotas.charged(),
        }
    }
}

impl Plan {
    /// Creates a plan that chooses the quotas from the request head and the key.
    ///
    /// Only the first 255 quotas are charged. Their names in header fields are not checked.
    pub fn from_fn(
        choose: impl Fn(&RequestHead<'_>, &Key) -> Quotas + Send + Sync + 'static,
    ) -> Self {
        let choose = Box::new(choose);
        Self(PlanKind::Chosen(Arc::new(ChosenPlan {
            choose,
            requests: AtomicU32::new(0),
        })))
    }

    /// Returns the quotas of a request. Keeps the quotas in `stored` if they are not fixed.
    #[inline(always)]
    pub(super) fn quotas<'a>(
        &'a self,
        head: &RequestHead<'_>,
        key: &Key,
        stored: &'a mut Option<MadeQuotas>,
    ) -> &'a [Quota] {
        let made = match &self.0 {
            PlanKind::Fixed(quotas) => return quotas.charged(),
            PlanKind::Chosen(chosen) => MadeQuotas::Chosen(chosen.quotas(head, key)),
            PlanKind::Live(live) => MadeQuotas::Live(live.quotas.load()),
        };
        stored.insert(made).charged()
    }

    /// Returns `true` if the plan never charges a request.
    pub(super) fn is_unlimited(&self) -> bool {
        self.fixed().is_some_and(<[_]>::is_empty)
    }

    pub(super) fn fixed(&self) -> Option<&[Quota]> {
        match &self.0 {
            PlanKind::Fixed(quotas) => Some(quotas.as_ref()),
            PlanKind::Chosen(_) | PlanKind::Live(_) => None,
        }
    }

    pub(super) fn live(&self) -> Option<&LivePlan> {
        match &self.0 {
            PlanKind::Live(live) => Some(live),
            PlanKind::Fixed(_) | PlanKind::Chosen(_) => None,
        }
    }
}

impl<Q: Into<Quotas>> From<Q> for Plan {
    fn from(quotas: Q) -> Self {
        Self(PlanKind::Fixed(quotas.into()))
    }
}

impl From<&LivePlan> for Plan {
    fn from(live: &LivePlan) -> Self {
        Self(PlanKind::Live(live.clone()))
    }
}

impl fmt::Debug for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            PlanKind::Fixed(quotas) => fmt::Debug::fmt(quotas, f),
            PlanKind::Chosen(_) => f.write_str("Plan(fn)"),
            PlanKind::Live(live) => fmt::Debug::fmt(live, f),
        }
    }
}

/// Quotas that can be replaced at run time.
///
/// Clones share the quotas. A `&LivePlan` converts to a [`Plan`].
///
/// A layer is built only if its store supports the current quotas, and if their names in header fields
/// are unique. New quotas are not checked. Those that the store does not support are errors of the store:
/// [`fail_open`](crate::StoreExt::fail_open) and [`fail_closed`](crate::StoreExt::fail_closed) then reject
/// requests with 503. If a new quota has the name of another one, header fields have two members with this
/// name. To check new quotas first, build a layer with them and drop it.
///
/// A new limit does not refill accounts, even if `initial` or `burst` changes. An exception is a token
/// bucket whose burst becomes smaller and then larger again: see [`Plan`].
/// [`initial`](Quota::with_initial) units apply only to new accounts. A new period, algorithm or unit
/// starts new accounts.
///
/// ```
/// use tower_sluice::{LivePlan, PeerIp, Quota, Rule};
///
/// let live = LivePlan::new(Quota::per_second(10));
/// let rule = Rule::new("ip", PeerIp::new(), &live);
/// live.replace(Quota::per_second(5)); // from the next request on; no account is refilled
/// ```
#[derive(Clone, Debug)]
pub struct LivePlan {
    /// A lock or a counter would slow down requests on several threads.
    quotas: Arc<ArcSwap<Quotas>>,
    /// The controller of an [`Adaptive`](super::Adaptive) limit.
    pub(crate) controller: Option<Arc<Controller>>,
}

impl LivePlan {
    /// Creates a plan with these quotas.
    ///
    /// # Panics
    ///
    /// Panics if there are more than 255 quotas.
    #[track_caller]
    pub fn new(quotas: impl Into<Quotas>) -> Self {
        let quotas = ArcSwap::from_pointee(quotas.into().checked());
        Self {
            quotas: Arc::new(quotas),
            controller: None,
        }
    }

    /// Creates the plan that a controller changes.
    pub(super) fn of(controller: Arc<Controller>) -> Self {
        Self {
            quotas: controller.quotas.clone(),
            controller: Some(controller),
        }
    }

    /// Replaces the quotas in all rules that use them.
    ///
    /// # Panics
    ///
    /// Panics if there are more than 255 quotas.
    #[track_caller]
    pub fn replace(&self, quotas: impl Into<Quotas>) {
        let quotas = quotas.into().checked();
        quotas.warn_if_equal();
        self.quotas.store(Arc::new(quotas));
    }

    /// Returns the current quotas.
    #[must_use]
    pub fn quotas(&self) -> Quotas {
        Quotas::clone(&self.quotas.load())
    }
}

/// Number of units, either fixed or read from the request.
///
/// A request of cost 0 is always allowed, even for a blocked key. If clients can influence the
/// cost, make the cost at least 1, for example with `.max(1)`.
///
/// ```
/// use tower_sluice::Cost;
///
/// Cost::from(5);
/// Cost::from_fn(|head| if head.path() == "/export" { 50 } else { 1 });
/// ```
#[derive(Clone)]
pub struct Cost {
    units: u32,
    /// Reads the units from the request, instead of `units`.
    read: Option<Arc<dyn Fn(&RequestHead<'_>) -> u32 + Send + Sync>>,
}

impl Cost {
    /// Creates a number of units that `read` computes from the head of each request.
    pub fn from_fn(read: impl Fn(&RequestHead<'_>) -> u32 + Send + Sync + 'static) -> Self {
        Self {
            units: 0,
            read: Some(Arc::new(read)),
        }
    }

    #[inline]
    pub(super) fn of(&self, head: &RequestHead<'_>) -> u32 {
        self.read.as_ref().map_or(self.units, |read| read(head))
    }

    pub(super) fn fixed(&self) -> Option<u32> {
        self.read.is_none().then_some(self.units)
    }
}

impl From<u32> for Cost {
    fn from(units: u32) -> Self {
        Self { units, read: None }
    }
}

impl fmt::Debug for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.fixed() {
            Some(units) => write!(f, "Cost({units})"),
            None => f.write_str("Cost(fn)"),
        }
    }
}

/// Time budget of a request, which an outer middleware sets as a request extension.
///
/// The budget starts when the request reaches the layer, and includes the store call. A request that
/// would leave the queue after its budget is denied. The header `grpc-timeout` also sets a budget.
///
/// ```
/// use std::time::Duration;
/// use tower_sluice::rule::RequestDeadline;
///
/// let mut request = http::Request::new(());
/// request.extensions_mut().insert(RequestDeadline(Duration::from_millis(250)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestDeadline(pub Duration);

/// Returns the smallest of `max_wait`, the [`RequestDeadline`] and `grpc-timeout`.
pub(crate) fn longest_wait(head: &RequestHead<'_>, max_wait: Duration) -> Duration {
    let own = head
        .extensions
        .get::<RequestDeadline>()
        .map(|deadline| deadline.0);
    let grpc = head
        .headers
        .get("grpc-timeout")
        .and_then(|value| grpc_timeout(value.as_bytes()));
    [own, grpc]
        .into_iter()
        .flatten()
        .fold(max_wait, Duration::min)
}

/// Parses the value of `grpc-timeout`, such as `100m` for 100 ms (gRPC over HTTP/2, "Timeout").
fn grpc_timeout(value: &[u8]) -> Option<Duration> {
    let (unit, digits) = value.split_last()?;
    if digits.is_empty() || digits.len() > 8 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let n: u64 = std::str::from_utf8(digits).ok()?.parse().ok()?;
    match unit {
        b'H' => Some(Duration::from_secs(n * 3_600)),
        b'M' => Some(Duration::from_secs(n * 60)),
        b'S' => Some(Duration::from_secs(n)),
        b'm' => Some(Duration::from_millis(n)),
        b'u' => Some(Duration::from_micros(n)),
        b'n' => Some(Duration::from_nanos(n)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_valid_grpc_timeouts_are_parsed() {
        assert_eq!(grpc_timeout(b"100m"), Some(Duration::from_millis(100)));
        assert_eq!(
            grpc_timeout(b"99999999H"),
            Some(Duration::from_secs(99_999_999 * 3_600))
        );
        for garbage in ["", "m", "1", "-1S", "1s", "123456789S", "1.5S", "\u{e9}S"] {
            assert_eq!(grpc_timeout(garbage.as_bytes()), None, "{garbage}");
        }
    }
}

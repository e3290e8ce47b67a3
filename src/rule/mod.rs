//! Rules: who pays, how much there is, and what a request costs.

#[cfg(feature = "axum")]
mod by_route;
mod check;
mod mode;
mod plan;
#[cfg(feature = "axum")]
mod route;
#[cfg(all(feature = "axum", feature = "serde"))]
mod routes;
mod rules;
#[cfg(feature = "serde")]
mod settings;
#[cfg(feature = "axum")]
mod stray;
#[cfg(feature = "serde")]
mod table;
mod units;

use std::{cell::OnceCell, fmt, slice, sync::Arc, time::Duration};

use http::{StatusCode, request::Parts};

pub(crate) use self::check::check;
#[cfg(all(feature = "axum", feature = "serde"))]
pub use self::routes::RouteSettings;
#[cfg(feature = "serde")]
pub use self::settings::RuleSettings;
#[cfg(feature = "axum")]
pub use self::{
    by_route::{ByRoute, by_route, try_by_route},
    route::RouteError,
};
pub use self::{
    check::RuleError,
    mode::{Missing, Mode},
    plan::{LivePlan, Plan, Quotas},
    rules::{Aside, Rules, Shape},
    units::Units,
};
use crate::{
    deadline,
    key::{Everyone, Key, KeyError, KeyExtractor, KeyKind},
    load::Switch,
    name::RuleName,
    store::Charge,
};

/// The longest key a rule takes unless told otherwise, in bytes.
const KEY_LEN: usize = 1024;

/// A name, an extractor, the quotas of each of its keys, and the cost of a request.
///
/// ```
/// use tower_sluice::{Missing, Quota, Rule, key::Header};
///
/// let rule = Rule::new(
///     "user",
///     Header::new("x-api-key"),
///     [Quota::per_second(5).burst(20), Quota::per_day(10_000)],
/// )
/// .cost(2)
/// .missing(Missing::Skip);
/// ```
#[derive(Clone)]
#[must_use]
pub struct Rule<K> {
    name: RuleName,
    extractor: K,
    plan: Plan,
    cost: Units,
    headroom: Units,
    max_wait: Duration,
    mode: Option<Arc<dyn Fn(&Parts) -> Mode + Send + Sync>>,
    missing: Missing,
    report_only: Switch,
    /// Whether it is flipped by who made the rule.
    may_report: bool,
    max_key_len: usize,
}

impl<K> Rule<K> {
    /// A rule of one quota, of several that are charged together, or of a [`Plan`].
    ///
    /// # Panics
    ///
    /// When `name` is no [`RuleName`]. A name from outside is parsed to a `RuleName` and given to
    /// [`Rule::named`].
    #[track_caller]
    pub fn new(name: &str, extractor: K, plan: impl Into<Plan>) -> Self {
        match RuleName::new(name) {
            Ok(name) => Self::named(name, extractor, plan),
            Err(wrong) => panic!("{wrong}"),
        }
    }

    /// [`Rule::new`] with a name that is already checked.
    pub fn named(name: RuleName, extractor: K, plan: impl Into<Plan>) -> Self {
        Self {
            name,
            extractor,
            plan: plan.into(),
            cost: Units::from(1),
            headroom: Units::from(0),
            max_wait: Duration::ZERO,
            mode: None,
            missing: Missing::default(),
            report_only: Switch::off(),
            may_report: false,
            max_key_len: KEY_LEN,
        }
    }

    #[cfg(feature = "axum")]
    fn with<E>(self, extractor: E) -> Rule<E> {
        let Self { name, plan, cost, headroom, max_wait, mode, missing, .. } = self;
        let Self { report_only, may_report, max_key_len, .. } = self;
        Rule {
            name,
            extractor,
            plan,
            cost,
            headroom,
            max_wait,
            mode,
            missing,
            report_only,
            may_report,
            max_key_len,
        }
    }

    /// Charges the quotas of `plan` instead of those it was made with.
    pub fn plan(self, plan: impl Into<Plan>) -> Self {
        Self { plan: plan.into(), ..self }
    }

    /// Sets the cost of a request: a number of units, or [`Units::from_fn`]. Defaults to 1.
    ///
    /// A request of cost 0 passes uncharged, even if its key or its quota is blocked. Where clients
    /// influence the cost, let it be at least 1.
    pub fn cost(self, cost: impl Into<Units>) -> Self {
        Self { cost: cost.into(), ..self }
    }

    /// Units that a request must leave over, so that those who need not may still pass: priorities
    /// are made of this. 0 unless set.
    ///
    /// ```
    /// use tower_sluice::{Quota, Rule, Units, key::Everyone};
    ///
    /// // batch jobs stop while 20 units are left for everybody else
    /// let batch = |parts: &http::request::Parts| parts.headers.contains_key("x-batch");
    /// Rule::new("site", Everyone, Quota::per_second(100))
    ///     .headroom(Units::from_fn(move |parts| if batch(parts) { 20 } else { 0 }));
    /// ```
    pub fn headroom(self, units: impl Into<Units>) -> Self {
        Self { headroom: units.into(), ..self }
    }

    /// Lets a request wait for its place, at most so long, instead of refusing it: a burst is
    /// smoothed into even spacing, first come first served. A request with a deadline of its own
    /// (`grpc-timeout`, or a [`Deadline`](crate::Deadline) extension) waits no longer than that.
    ///
    /// A request that waits has been admitted: a block of its key, another plan or the layer's switch
    /// reaches requests that come later.
    ///
    /// A request that is dropped while it waits gives its units back if nobody has queued behind it.
    /// Otherwise they are lost to the account: those behind keep their places, and nobody can make
    /// handlers run closer together by queueing and leaving.
    ///
    /// For GCRA and paced fixed windows that are not soft.
    pub fn max_wait(self, time: Duration) -> Self {
        Self { max_wait: time, ..self }
    }

    /// Chooses per request whether the rule charges it, leaves it alone, exempts it from every
    /// rule, or insists on an identity.
    ///
    /// ```
    /// use tower_sluice::{Mode, PeerIp, Quota, Rule};
    ///
    /// Rule::new("ip", PeerIp::new(), Quota::per_second(10)).mode(|parts| {
    ///     match parts.uri.path() {
    ///         "/health" => Mode::Exempt,
    ///         path if path.starts_with("/static/") => Mode::Skip,
    ///         _ => Mode::Charge,
    ///     }
    /// });
    /// ```
    pub fn mode(self, mode: impl Fn(&Parts) -> Mode + Send + Sync + 'static) -> Self {
        Self { mode: Some(Arc::new(mode)), ..self }
    }

    /// What becomes of a request without an identity; refused with 400 unless set.
    pub fn missing(self, missing: Missing) -> Self {
        Self { missing, ..self }
    }

    /// Counts, and refuses nobody: the decision says what would have been.
    pub fn report_only(self) -> Self {
        Self { report_only: Switch::on(), ..self }
    }

    /// [Refuses nobody](Rule::report_only) while `switch` is on. A clone of the rule goes by the
    /// same switch.
    ///
    /// ```
    /// use tower_sluice::{PeerIp, Quota, Rule, Switch};
    ///
    /// let trial = Switch::on();
    /// let rule = Rule::new("ip", PeerIp::new(), Quota::per_second(10)).report_only_while(&trial);
    /// trial.set(false); // it has proved itself: from the next request on it refuses
    /// ```
    pub fn report_only_while(self, switch: &Switch) -> Self {
        Self { report_only: switch.clone(), may_report: true, ..self }
    }

    /// The longest key taken, in bytes; 1 KiB unless set. A longer one is refused with 400.
    pub fn max_key_len(self, bytes: usize) -> Self {
        Self { max_key_len: bytes, ..self }
    }
}

impl Rule<Everyone> {
    /// A rule that charges nothing and refuses nobody: the opposite of
    /// [`Quota::blocked`](crate::Quota::blocked).
    pub fn unlimited() -> Self {
        Self::named(RuleName::default(), Everyone, [])
    }
}

impl<K: KeyExtractor> Rule<K> {
    /// Hands the charge of the request with this head to `then`, if it has one.
    #[inline]
    fn lend<T>(
        &self,
        parts: &Parts,
        then: impl FnOnce(Option<&Charge<'_>>) -> T,
    ) -> Result<T, Aside> {
        let mode = self.mode.as_ref().map_or(Mode::Charge, |mode| mode(parts));
        if mode == Mode::Exempt {
            return Err(Aside::Exempt);
        } else if mode == Mode::Skip || self.plan.is_unlimited() {
            return Ok(then(None));
        }
        // the key stays where the extractor has put it: moving it costs as much as hashing it
        let found = self.extractor.extract(parts);
        let instead = OnceCell::new();
        let key = match &found {
            Ok(Some(key)) if key.len() <= self.max_key_len && !key.is_blank() => key,
            _ => match instead.get_or_init(|| self.instead(&found, mode == Mode::Require)) {
                Ok(Some(key)) => key,
                Err(error) if !self.report_only.is_on() => {
                    return Err(Aside::Refused(error.clone()));
                }
                Ok(None) | Err(_) => return Ok(then(None)),
            },
        };
        let mut made = None;
        let quotas = self.plan.quotas(parts, key, &mut made);
        let mut charge = Charge::new(self.name, key, quotas)
            .cost(self.cost.of(parts))
            .headroom(self.headroom.of(parts));
        if !self.max_wait.is_zero() {
            charge = charge.max_wait(deadline::within(parts, self.max_wait));
        }
        if self.report_only.is_on() {
            charge = charge.report_only();
        }
        Ok(then(Some(&charge)))
    }

    /// The key of a request that has none to be charged, if it is to be charged all the same.
    #[cold]
    fn instead(
        &self,
        found: &Result<Option<Key>, KeyError>,
        required: bool,
    ) -> Result<Option<Key>, KeyError> {
        let error = match found {
            Ok(Some(key)) if key.len() > self.max_key_len => {
                let why = format!("key of {} bytes; at most {}", key.len(), self.max_key_len);
                return Err(KeyError::refused(StatusCode::BAD_REQUEST, why));
            }
            Ok(Some(key)) if key.is_blank() => KeyError::missing("key"),
            Ok(None) if required => KeyError::missing("key"),
            Err(error) if error.is_missing() => error.clone(),
            found => return found.clone(),
        };
        match self.missing {
            Missing::Reject(status) => Err(error.with_status(status)),
            _ if required => Err(error),
            Missing::Skip => Ok(None),
            Missing::Share => Ok(Some(Key::unidentified())),
        }
    }
}

impl<K: KeyExtractor> Rules for Rule<K> {
    #[inline]
    fn charge(
        &self,
        parts: &Parts,
        before: &[Charge<'_>],
        then: &mut dyn FnMut(&[Charge<'_>]),
    ) -> Result<(), Aside> {
        self.lend(parts, |charge| match charge {
            Some(charge) => rules::extend(before, *charge, then),
            None => then(before),
        })
    }

    #[inline]
    fn charges<T>(&self, parts: &Parts, then: impl FnOnce(&[Charge<'_>]) -> T) -> Result<T, Aside> {
        self.lend(parts, |charge| then(charge.map_or(&[], slice::from_ref)))
    }

    fn describe<'a>(&'a self, shapes: &mut Vec<Shape<'a>>) {
        let kind = self.extractor.kind();
        let shares = self.missing == Missing::Share;
        shapes.push(Shape {
            name: self.name,
            key_kind: if shares { kind.or(KeyKind::Unidentified) } else { kind },
            quotas: self.plan.fixed(),
            live: self.plan.live(),
            cost: self.cost.fixed(),
            headroom: self.headroom.fixed(),
            queues: !self.max_wait.is_zero(),
            report_only: self.report_only.is_on(),
            may_report: self.may_report,
            report_only_switch: Some(&self.report_only),
            instead_of: None,
            key_lints: self.extractor.lints(),
            leaves_methods: false,
        });
    }
}

impl<K: fmt::Debug> fmt::Debug for Rule<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rule")
            .field("name", &self.name)
            .field("extractor", &self.extractor)
            .field("plan", &self.plan)
            .field("cost", &self.cost)
            .finish_non_exhaustive()
    }
}

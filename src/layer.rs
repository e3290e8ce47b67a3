//! The layer: constructors and knobs.

use std::{fmt, sync::Arc};

use http::{request::Parts, response};
use tower::Layer;

use crate::{
    access::AccessList,
    decision::Decision,
    explain::{self, Explanation},
    fingerprint::Secret,
    gate::Gate,
    headers::{Headers, Items, Template},
    key::{KeyError, KeyExtractor, PeerIp},
    lint::{self, Finding, Knobs, Lint, Lints},
    load::{Counters, Elastic, Switch},
    name::RuleName,
    quota::Quota,
    reject::TooManyRequests,
    rule::{self, Plan, Rule, RuleError, Rules},
    service::RateLimit,
    settings::{After, Settings},
    settle::{Settle, Unsettled},
    store::{CannotFail, LocalStore, OwnedCharges, Store},
};

/// Limits the services it is laid around.
///
/// The layer is its own builder: a constructor says who pays, how much there is and where accounts
/// live; setters change what has a good default.
///
/// ```
/// use tower_sluice::{Headers, LocalStore, Quota, RateLimitLayer, Rule, key::{Everyone, PeerIp}};
///
/// // ten a second for each address
/// RateLimitLayer::per_ip(Quota::per_second(10));
///
/// // and a thousand for all: one decision, all charged or none
/// let layer = RateLimitLayer::rules(
///     (
///         Rule::new("ip", PeerIp::new(), Quota::per_second(10).burst(20)),
///         Rule::new("site", Everyone, Quota::per_second(1_000)),
///     ),
///     LocalStore::new(),
/// )
/// .headers(Headers::Draft11);
/// ```
///
/// # What is one limit
///
/// Accounts live in the store. So a clone of a layer is the same limit: laid around several routes,
/// and in the services made for each connection, it counts them together. (Of tower's own
/// `RateLimitLayer` every service counts for itself, so that a limit multiplies with its routes.)
///
/// Two layers on one store, of which a clone is the same store, charge one account where rule name
/// and key are the same. With the same quotas they are one limit; a request that passes both is
/// charged by both. With other quotas the second is refused when it is built, where they are
/// fixed: give rules names then, since [`new`](RateLimitLayer::new) calls every one `default`. To
/// change a quota while the server runs, use a [`LivePlan`](crate::LivePlan), not a second layer.
/// Quotas chosen per request, those given to a [`Limiter`](crate::Limiter), and other processes on
/// a Redis server are not seen: there it is up to you that one name has one plan.
///
/// ```
/// use tower_sluice::{LocalStore, PeerIp, Quota, RateLimitLayer, Rule};
///
/// let store = LocalStore::new();
/// let rule = |name, quota| Rule::new(name, PeerIp::new(), quota);
/// let login = RateLimitLayer::rules(rule("login", Quota::per_minute(5)), store.clone());
/// let pages = RateLimitLayer::rules(rule("pages", Quota::per_second(50)), store.clone());
///
/// let mistake = RateLimitLayer::try_rules(rule("pages", Quota::per_hour(9)), store);
/// assert!(mistake.is_err());
/// ```
///
/// # What is probably a mistake
///
/// What would refuse or confuse every request is an error of
/// [`try_rules`](RateLimitLayer::try_rules). What is legal and probably not meant, as a quota that
/// never refuses, is told by [`lints`](RateLimitLayer::lints), for a test to assert that it is
/// empty, and in the log (feature `tracing`). Build a layer once and clone it: one that is built
/// for every request counts nothing, and makes a whole store each time.
///
/// ```
/// use tower_sluice::{Headers, Quota, RateLimitLayer};
///
/// let layer = RateLimitLayer::per_ip(Quota::per_second(10)).headers(Headers::XRateLimit);
/// assert_eq!(layer.lints(), []);
/// ```
#[must_use]
pub struct RateLimitLayer<K, S, R = TooManyRequests> {
    pub(crate) rules: Arc<K>,
    pub(crate) store: Arc<S>,
    reject: Arc<R>,
    items: Arc<Items>,
    headers: Headers,
    pub(crate) settings: Settings,
    lints: Lints,
}

impl RateLimitLayer<Rule<PeerIp>, LocalStore> {
    /// Limits every peer address to `quota`, in an embedded store of its own.
    ///
    /// With axum, serve the app with `into_make_service_with_connect_info::<SocketAddr>()`: only
    /// so a request knows its [peer](PeerIp). Behind a proxy every peer is the proxy: there, give
    /// [`new`](RateLimitLayer::new) a [`ClientIp`](crate::ClientIp).
    #[track_caller]
    pub fn per_ip(quota: Quota) -> Self {
        Self::new(PeerIp::new(), quota, LocalStore::new())
    }
}

impl<K, S> RateLimitLayer<Rule<K>, S>
where
    K: KeyExtractor,
    S: Store<Error: CannotFail>,
{
    /// Limits every key to a [`Plan`]: a quota, several that are charged all or none, or chosen per
    /// request; under the rule name `default`.
    ///
    /// # Panics
    ///
    /// Where [`try_rules`](RateLimitLayer::try_rules) gives an error.
    #[track_caller]
    pub fn new(extractor: K, plan: impl Into<Plan>, store: S) -> Self {
        Self::rules(Rule::named(RuleName::default(), extractor, plan), store)
    }
}

impl<K, S> RateLimitLayer<K, S>
where
    K: Rules,
    S: Store<Error: CannotFail>,
{
    /// Limits by several rules in one decision: all are charged, or none.
    ///
    /// # Panics
    ///
    /// Where [`try_rules`](RateLimitLayer::try_rules) gives an error; use that for rules from
    /// configuration.
    #[track_caller]
    pub fn rules(rules: K, store: S) -> Self {
        match Self::try_rules(rules, store) {
            Ok(layer) => layer,
            Err(wrong) => panic!("{wrong}"),
        }
    }

    /// [`rules`](RateLimitLayer::rules) for rules from outside.
    ///
    /// # Errors
    ///
    /// When two rules have one name, two quotas would be called the same in header fields, a fixed
    /// cost, with what must be left over, is above a quota's limit, the store cannot do what the
    /// rules ask, or it serves a layer with other quotas for a rule of this name.
    pub fn try_rules(rules: K, store: S) -> Result<Self, RuleError> {
        let mut shapes = Vec::new();
        rules.describe(&mut shapes);
        rule::check(&shapes, &store)?;
        let items = Items::new(&shapes)?;
        let settings = Settings::new(shapes.iter().map(|shape| shape.name));
        Ok(Self {
            rules: Arc::new(rules),
            store: Arc::new(store),
            reject: Arc::default(),
            items: Arc::new(items),
            headers: Headers::default(),
            settings,
            lints: Lints::default(),
        })
    }
}

impl<K: Rules, S, R> RateLimitLayer<K, S, R> {
    /// What is legal and probably a mistake, as the layer is now; the text of each names the rule,
    /// the value and the fix. The kinds are those of [`Lint`]. Quotas of a [`LivePlan`](crate::LivePlan) are judged as they are at
    /// the moment. The same is in the log, at warn, when the layer is first put around a service
    /// (feature `tracing`).
    ///
    /// ```
    /// use tower_sluice::{Lint, LocalStore, Quota, RateLimitLayer, key::Everyone};
    ///
    /// let quotas = [Quota::per_second(10), Quota::per_minute(600)];
    /// let layer = RateLimitLayer::new(Everyone, quotas, LocalStore::with_capacity(1));
    /// assert_eq!(layer.lints()[0].lint(), Lint::DominatedQuota);
    /// ```
    #[must_use]
    pub fn lints(&self) -> Vec<Finding> {
        let mut shapes = Vec::new();
        self.rules.describe(&mut shapes);
        let knobs = Knobs {
            headers: self.headers,
            queue: self.settings.queue,
            settles: self.settings.after.is_some(),
            adjusted: self.settings.after.as_ref().and_then(After::adjusted),
        };
        self.lints.sift(lint::find(&shapes, &knobs))
    }
}

impl<K, S, R> RateLimitLayer<K, S, R> {
    /// Which header fields tell clients what is left; [`Headers::Draft11`] unless set.
    pub fn headers(mut self, headers: Headers) -> Self {
        self.lints.anew();
        Self { headers, ..self }
    }

    /// Allows one kind of what [`lints`](RateLimitLayer::lints) finds, as meant so.
    ///
    /// ```
    /// use tower_sluice::{Lint, LocalStore, Quota, RateLimitLayer, key::Everyone};
    ///
    /// let quotas = [Quota::per_second(10), Quota::per_minute(600)];
    /// let layer = RateLimitLayer::new(Everyone, quotas, LocalStore::with_capacity(1))
    ///     .allow_lint(Lint::DominatedQuota); // clients are to read of both
    /// assert_eq!(layer.lints(), []);
    /// ```
    pub fn allow_lint(mut self, lint: Lint) -> Self {
        self.lints.allow(lint);
        self
    }

    /// Sends the [`headers`](RateLimitLayer::headers) on refusals only.
    pub fn headers_only_when_denied(mut self) -> Self {
        self.settings.only_denied = true;
        self
    }

    /// Puts the [`Decision`](crate::Decision) into the extensions of the request, for handlers,
    /// and of the response, for layers outside.
    pub fn expose_decision(mut self) -> Self {
        self.settings.expose = true;
        self
    }

    /// Tells in the span field and the debug line `ratelimit.key` (feature `tracing`), and in
    /// [explanations](RateLimitLayer::explain), whose account decided: by a
    /// [fingerprint](crate::Fingerprint) of its key, never by the key. Nothing stands there unless
    /// asked for.
    ///
    /// ```
    /// use tower_sluice::{Key, Quota, RateLimitLayer, Secret};
    ///
    /// let secret = Secret::new("correct horse battery staple")?; // from configuration
    /// let layer = RateLimitLayer::per_ip(Quota::per_second(10)).fingerprint(secret);
    ///
    /// // "who is 3f…?": the fingerprint of whom you suspect
    /// let suspected = Key::from(std::net::Ipv4Addr::new(203, 0, 113, 9)).fingerprint(&secret);
    /// # Ok::<(), tower_sluice::SecretError>(())
    /// ```
    pub fn fingerprint(mut self, secret: impl Into<Secret>) -> Self {
        self.settings.secret = Some(secret.into());
        self
    }

    /// From so many percent of a limit used a request that passes is counted in
    /// `ratelimit.near_limit` (feature `metrics`); 80 unless set.
    ///
    /// # Panics
    ///
    /// When `percent` is above 100.
    #[cfg(feature = "metrics")]
    #[track_caller]
    pub fn near_limit(mut self, percent: u8) -> Self {
        assert!(percent <= 100, "near limit: {percent} percent; give 0 to 100");
        self.settings.meter = self.settings.meter.near_limit(percent);
        self
    }

    /// Adds up to `percent` of itself, at random, to the wait that a refusal tells, so that the
    /// clients refused together do not come back together; 0 unless set.
    ///
    /// # Panics
    ///
    /// When `percent` is above 10.
    #[track_caller]
    pub fn retry_jitter(mut self, percent: u8) -> Self {
        assert!(percent <= 10, "retry jitter: {percent} percent; give 0 to 10");
        self.settings.jitter = percent;
        self
    }

    /// Lets CORS preflights pass uncharged. Defaults to charging them as any other request.
    ///
    /// A CORS layer outside of this one, as the [guide](crate::guide::choosing) orders them, answers
    /// preflights itself, and makes this unnecessary. It is for services that answer preflights
    /// inside of the limiter, since a browser shows a denied preflight as an opaque failure.
    ///
    /// A preflight has the method `OPTIONS`, an `Origin` and an `Access-Control-Request-Method`
    /// ([Fetch](https://fetch.spec.whatwg.org/#cors-preflight-request)), no `Content-Type`, and no
    /// body: no `Transfer-Encoding`, and no `Content-Length` other than 0. The
    /// [deny list](RateLimitLayer::deny) is looked at before.
    ///
    /// # Limitations
    ///
    /// Anyone can send such a request. In HTTP/2 and HTTP/3 a body may come without a
    /// `Content-Length`, and the head does not show it. Do not use this around a service that acts
    /// upon `OPTIONS`: a gRPC server, which ignores the method, a handler for any method, or a layer
    /// that overrides the method. There every call can be sent as a preflight, unlimited.
    ///
    /// ```
    /// use tower_sluice::{Quota, RateLimitLayer};
    ///
    /// let layer = RateLimitLayer::per_ip(Quota::per_second(10)).exempt_preflights();
    /// ```
    pub fn exempt_preflights(mut self) -> Self {
        self.settings.exempt_preflights = true;
        self
    }

    /// Lets requests on this list pass without asking any rule or store. Health checks belong here.
    /// A request on this list passes even if it is on a [deny list](RateLimitLayer::deny).
    ///
    /// ```
    /// use tower_sluice::{AccessList, Quota, RateLimitLayer};
    ///
    /// let layer = RateLimitLayer::per_ip(Quota::per_second(10))
    ///     .allow(AccessList::from_fn(|parts| parts.uri.path() == "/health"))
    ///     .allow(AccessList::networks(["10.0.0.0/8"])?)
    ///     .deny(AccessList::networks(["203.0.113.0/24"])?);
    /// # Ok::<(), tower_sluice::NetworkError>(())
    /// ```
    pub fn allow(mut self, list: AccessList) -> Self {
        self.settings.allow.push(list);
        self
    }

    /// Denies requests on this list with 403, unless they are [allowed](RateLimitLayer::allow). A
    /// request whose key or address cannot be read is denied as well, with the status of its
    /// [`KeyError`].
    pub fn deny(mut self, list: AccessList) -> Self {
        self.settings.deny.push(list);
        self
    }

    /// Turns the layer off and on while the server runs.
    pub fn switch(mut self, switch: &Switch) -> Self {
        self.settings.switch = switch.clone();
        self
    }

    /// Denies nobody, not even a request on a [deny list](RateLimitLayer::deny):
    /// [decisions](RateLimitLayer::expose_decision) and [counters](RateLimitLayer::count) report what
    /// would have been denied. No header fields are sent for a request that would have been denied.
    pub fn report_only(mut self) -> Self {
        self.settings.report_only = Switch::on();
        self
    }

    /// [Refuses nobody](RateLimitLayer::report_only) while `switch` is on: to try limits on live
    /// traffic, and to step back from them.
    pub fn report_only_while(mut self, switch: &Switch) -> Self {
        self.settings.report_only = switch.clone();
        self
    }

    /// Lets requests pass beyond their quota while the system has room.
    pub fn elastic(mut self, elastic: Elastic) -> Self {
        self.settings.elastic = Some(elastic);
        self
    }

    /// Counts what the layer decides.
    pub fn count(mut self, counters: &Counters) -> Self {
        self.settings.counters = Some(counters.clone());
        self
    }

    /// Bounds the requests that [wait](Rule::max_wait) for their place at a time. Defaults to 1 024.
    /// Requests beyond it are decided without waiting, and charged nothing if they are denied.
    ///
    /// One key has a bound of its own: [`max_waiters_per_key`](RateLimitLayer::max_waiters_per_key).
    pub fn max_waiters(mut self, most: usize) -> Self {
        self.settings.queue.all = most;
        self.lints.anew();
        self
    }

    /// Bounds the requests of one key that [wait](Rule::max_wait) for their place at a time. Requests
    /// beyond it are decided without waiting, and charged nothing if they are denied.
    ///
    /// Defaults to the units that the rule's tightest quota has per period or at once, whichever is
    /// more, but at most to a 64th of [`max_waiters`](RateLimitLayer::max_waiters), and at least to 1.
    /// All requests share the one key of [`Everyone`](crate::key::Everyone), which has no bound by
    /// default. A request counts for each of its rules that let it wait.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_sluice::{LocalStore, PeerIp, Quota, RateLimitLayer, Rule};
    ///
    /// let rule = Rule::new("ip", PeerIp::new(), Quota::per_second(10)).max_wait(Duration::from_secs(2));
    /// let layer = RateLimitLayer::rules(rule, LocalStore::new()).max_waiters_per_key(20);
    /// ```
    ///
    /// # Limitations
    ///
    /// With keys that a client may invent, such as names that nobody has verified, one client still
    /// fills the layer: 64 keys are enough. Let requests wait under keys that cost something, or
    /// under a second rule.
    pub fn max_waiters_per_key(mut self, most: usize) -> Self {
        self.settings.queue.per_key = Some(most);
        self.lints.anew();
        self
    }

    /// Answers refused requests with `reject`; [`TooManyRequests`] unless set.
    pub fn reject<R2>(self, reject: R2) -> RateLimitLayer<K, S, R2> {
        let Self { rules, store, items, headers, settings, lints, .. } = self;
        let reject = Arc::new(reject);
        RateLimitLayer { rules, store, reject, items, headers, settings, lints }
    }
}

impl<K, S, R> RateLimitLayer<K, S, R>
where
    K: Rules,
    S: Store<Error: CannotFail>,
{
    /// Explains what the layer would answer to the request with this head, now, and charges nothing
    /// for it: for support, and for pages that operators look at.
    ///
    /// What a store cannot say without charging, as a governor limiter, it says instead.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use http::Request;
    /// use tower_sluice::{LocalStore, Quota, RateLimitLayer, key::Header};
    ///
    /// let quota = Quota::per_minute(5);
    /// let layer = RateLimitLayer::new(Header::new("x-api-key"), quota, LocalStore::new());
    ///
    /// let (head, ()) = Request::get("/").header("x-api-key", "alice").body(()).unwrap().into_parts();
    /// let would = layer.explain(&head).await;
    /// assert!(would.is_allowed());
    /// assert!(would.to_string().contains("(5/min, gcra), Key(..): cost 1, 5 left"));
    /// # });
    /// ```
    pub async fn explain(&self, parts: &Parts) -> Explanation {
        let Settings { report_only, elastic, secret, .. } = &self.settings;
        let explanation = match self.charged(parts) {
            Ok(Ok(charges)) => self.look(charges).await,
            Ok(Err(why)) => return Explanation::free(why),
            Err(error) => Explanation::unkeyed(error).looked(),
        };
        let refused = !explanation.is_allowed();
        let beyond = explanation.decision().is_some_and(Decision::may_pass_beyond);
        let room = || elastic.as_ref().and_then(Elastic::try_enter).is_some();
        let explanation = explanation.told_by(secret.as_ref());
        if refused && report_only.is_on() {
            explanation.passes("the layer only reports")
        } else if refused && beyond && room() {
            explanation.passes("the layer is elastic, and there is room")
        } else {
            explanation
        }
    }

    /// Explains a decision of this layer about the request with this head, such as a handler finds
    /// in the [extensions](RateLimitLayer::expose_decision): the rules are asked again for quotas,
    /// costs and keys, and no store is.
    pub fn explain_decision(&self, decision: &Decision, parts: &Parts) -> Explanation {
        decision.explain().rules(&*self.rules, parts).told_by(self.settings.secret.as_ref())
    }

    /// What a request is charged, or why nothing limits it.
    fn charged(&self, parts: &Parts) -> Result<Result<OwnedCharges, &'static str>, KeyError> {
        if let Some(why) = self.settings.passes(parts)? {
            return Ok(Err(why));
        }
        let charges = explain::charged(&*self.rules, parts)?;
        Ok(charges.ok_or("no rule charges it"))
    }

    async fn look(&self, charges: OwnedCharges) -> Explanation {
        let crowded = charges.with(|charges| self.settings.is_crowded(charges));
        let hurry = self.settings.report_only.is_on() || crowded;
        let charges = if hurry { charges.hurried() } else { charges };
        match Explanation::check(&*self.store, &charges) {
            Ok(()) => {
                let looked = Explanation::look_at(&*self.store, &charges).await;
                looked.unwrap_or_else(CannotFail::absurd)
            }
            Err(why) => Explanation::unsaid(why),
        }
    }
}

impl<K, S, R> RateLimitLayer<K, S, R>
where
    K: Rules,
    S: Store + Send + Sync + 'static,
    S::Future: 'static,
{
    /// Settles every request's charges by the head of its response: they are kept, given back as
    /// far as they have not flowed back by themselves, or become another number of units. Without a
    /// response (an error, a panic, a dropped connection) they are kept.
    ///
    /// ```
    /// use http::StatusCode;
    /// use tower_sluice::{Quota, RateLimitLayer, Settle};
    ///
    /// // only failed logins count
    /// let layer = RateLimitLayer::per_ip(Quota::per_minute(5)).settle(|response| {
    ///     match response.status {
    ///         StatusCode::UNAUTHORIZED => Settle::Keep,
    ///         _ => Settle::Refund,
    ///     }
    /// });
    /// ```
    pub fn settle(
        mut self,
        classify: impl Fn(&response::Parts) -> Settle + Send + Sync + 'static,
    ) -> Self {
        self.after().classify = Some(Arc::new(classify));
        self
    }

    /// Puts a [`Reservation`](crate::Reservation) into every request's extensions, by which the
    /// handler settles to the actual cost. What it does not settle stays charged, also where the
    /// client goes away or the handler panics.
    ///
    /// ```
    /// use axum::{Router, routing::post};
    /// use tower_sluice::{Quota, RateLimitLayer, Reservation};
    ///
    /// async fn complete(reservation: Reservation) -> &'static str {
    ///     reservation.settle(7); // it cost less than was reserved
    ///     "…"
    /// }
    ///
    /// let layer = RateLimitLayer::per_ip(Quota::per_minute(1_000)).reserve();
    /// let app: Router = Router::new().route("/", post(complete)).layer(layer);
    /// ```
    pub fn reserve(mut self) -> Self {
        self.after().unsettled = Unsettled::Keep;
        self
    }

    /// [`reserve`](RateLimitLayer::reserve) where a charge that is not settled becomes `units`, if
    /// that is more than was charged: what a request costs whose end nobody hears of.
    ///
    /// ```
    /// use tower_sluice::{Quota, RateLimitLayer};
    ///
    /// // one unit while it runs; a request that breaks off has cost fifty
    /// let layer = RateLimitLayer::per_ip(Quota::per_minute(1_000)).reserve_at_least(50);
    /// ```
    pub fn reserve_at_least(mut self, units: u32) -> Self {
        self.after().unsettled = Unsettled::AtLeast(units);
        self
    }

    /// [`reserve`](RateLimitLayer::reserve) where a charge that is not settled is given back, also
    /// to a client that disconnects before its handler is done.
    ///
    /// # What it does not protect against
    ///
    /// **Clients that disconnect are not limited.** Whoever sends a request and closes the connection
    /// before the response has run the handler, as far as it got, for nothing, and as often as it
    /// likes. Use it where only finished work costs anything and the work is cheap to begin;
    /// otherwise use [`reserve`](RateLimitLayer::reserve) and call
    /// [`refund`](crate::Reservation::refund) where the handler knows that nothing was used.
    ///
    /// ```
    /// use tower_sluice::{Quota, RateLimitLayer};
    ///
    /// let layer = RateLimitLayer::per_ip(Quota::per_minute(10)).reserve_refunding_disconnects();
    /// ```
    pub fn reserve_refunding_disconnects(mut self) -> Self {
        self.after().unsettled = Unsettled::Refund;
        self
    }

    fn after(&mut self) -> &mut After {
        let Self { rules, store, settings, .. } = self;
        settings.after.get_or_insert_with(|| {
            let mut shapes = Vec::new();
            rules.describe(&mut shapes);
            let rules = shapes.iter().map(|shape| shape.name).collect();
            let (accounts, unsettled) = (store.clone(), Unsettled::Keep);
            After { accounts, rules, unsettled, classify: None }
        })
    }
}

impl<I, K: Rules, S, R> Layer<I> for RateLimitLayer<K, S, R> {
    type Service = RateLimit<I, K, S, R>;

    fn layer(&self, inner: I) -> Self::Service {
        self.lints.tell(|| self.lints());
        let template = Template::new(self.headers, self.items.clone());
        let gate = Gate {
            rules: self.rules.clone(),
            store: self.store.clone(),
            reject: self.reject.clone(),
            template: Arc::new(template.for_all()),
            settings: self.settings.clone(),
        };
        RateLimit::new(inner, Arc::new(gate))
    }
}

impl<K, S, R> Clone for RateLimitLayer<K, S, R> {
    fn clone(&self) -> Self {
        Self {
            rules: self.rules.clone(),
            store: self.store.clone(),
            reject: self.reject.clone(),
            items: self.items.clone(),
            headers: self.headers,
            settings: self.settings.clone(),
            lints: self.lints.clone(),
        }
    }
}

impl<K: fmt::Debug, S: fmt::Debug, R> fmt::Debug for RateLimitLayer<K, S, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitLayer")
            .field("rules", &self.rules)
            .field("store", &self.store)
            .field("headers", &self.headers)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

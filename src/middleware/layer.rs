//! The layer, which is its own builder.

use std::{
    convert::Infallible,
    fmt,
    panic::Location,
    ptr,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use http_body::Body;

use super::{
    access::AccessList,
    adjust::{AdjustConfig, Adjustment},
    config::{LayerConfig, Override},
    drain::DrainConfig,
    hold::{HoldConfig, HoldUntil},
    overcommit::Overcommit,
    penalty::{Penalty, RulePenalty},
    queue::QueueHandle,
    retry_after::RetryAfter,
};
use crate::{
    decision::{Decision, Slot},
    explain::Explanation,
    fingerprint::FingerprintKey,
    head::{RequestHead, ResponseHead},
    headers::{HeaderPolicy, check_names},
    key::{KeyExtractor, PeerIp},
    log::warn,
    observe::OnDecision,
    quota::Quota,
    reject::TooManyRequests,
    rule::{self, Attempts, Candidates, Plan, Rule, RuleError, RuleName, Rules},
    store::{CannotFail, DynStore, LocalStore, Store, StoreExt, certain, literal},
    toggle::Toggle,
};

/// Layer that limits the rate of a service.
///
/// A constructor takes the rules and the store. Setters change the defaults.
///
/// ```
/// use tower_sluice::{Headers, LocalStore, Quota, RateLimitLayer, Rule, key::{Everyone, PeerIp}};
///
/// // Ten requests per second for each address.
/// RateLimitLayer::per_ip(Quota::per_second(10));
///
/// // In addition, a thousand for the whole site. Both rules are charged, or none.
/// let layer = RateLimitLayer::rules(
///     (
///         Rule::new("ip", PeerIp::new(), Quota::per_second(10).with_burst(20)),
///         Rule::new("site", Everyone, Quota::per_second(1_000)),
///     ),
///     LocalStore::new(),
/// )
/// .headers(Headers::RateLimit);
/// ```
///
/// The type parameters are the rules `K`, the store `S`, and the [`Reject`](crate::Reject) `R`. Without
/// parameters, `RateLimitLayer` is the type of a [`boxed`](RateLimitLayer::boxed) layer, for a field of a
/// struct or an argument of a function.
///
/// The layer never fails: a denial is a response, and the error is that of the inner service. It needs
/// no `HandleErrorLayer`.
///
/// # Shared limits
///
/// All clones of a layer share their limits, because the store holds the accounts. In contrast,
/// each service of `tower::limit::RateLimitLayer` has its own limit.
///
/// Two layers on one store share an account if the rule name and the key are equal. The second
/// layer cannot be built if the rules have different fixed quotas. Give such rules distinct names.
/// [`new`](RateLimitLayer::new) uses the name `default`. To change a quota at run time, use a
/// [`LivePlan`](crate::LivePlan).
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
/// # Mistakes
///
/// [`try_rules`](RateLimitLayer::try_rules) returns an error for settings that would deny all
/// requests or charge the wrong accounts. The log warns about mistakes that show only later (feature
/// `tracing`): see [the list](crate::guide::troubleshooting#warnings-in-the-log).
///
/// # Limitations
///
/// Build a layer once and clone it. A layer that is built for every request limits nothing.
///
/// Different quotas under one rule name are not detected if they are chosen per request, or belong
/// to a [`Limiter`](crate::Limiter) or another process.
///
/// The inner service must be `Clone`. The layer clones the service for each request that is rejected,
/// that waits, or whose store answers later, such as Redis.
#[must_use]
pub struct RateLimitLayer<
    K = Arc<dyn Rules + Send + Sync>,
    S = Arc<DynStore<Infallible>>,
    R = TooManyRequests,
> {
    pub(crate) rules: Arc<K>,
    pub(crate) store: Arc<S>,
    pub(super) reject: Arc<R>,
    pub(crate) settings: LayerConfig,
}

impl RateLimitLayer<Rule<PeerIp>, LocalStore> {
    /// Limits every peer address to `quota`, in a new embedded store.
    ///
    /// With axum, serve the app with `into_make_service_with_connect_info::<SocketAddr>()`, which
    /// provides the [peer address](PeerIp). Behind a proxy, use [`new`](RateLimitLayer::new) with a
    /// [`ClientIp`](crate::ClientIp), because the proxy is then the peer of every request.
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
    /// Limits every key to a [`Plan`], under the rule name `default`.
    ///
    /// A plan is one quota, several quotas, or a function that chooses quotas per request.
    ///
    /// Two such layers on one store share the accounts of their keys, and the log warns. To share a limit,
    /// clone the layer. For two limits, use [`rules`](RateLimitLayer::rules) with names.
    ///
    /// # Panics
    ///
    /// Panics if [`try_rules`](RateLimitLayer::try_rules) returns an error.
    #[track_caller]
    pub fn new(extractor: K, plan: impl Into<Plan>, store: S) -> Self {
        let layer = Self::rules(Rule::named(RuleName::default(), extractor, plan), store);
        if let Some(rules) = layer.store.known_rules() {
            rules.check_unnamed(Location::caller());
        }
        layer
    }
}

impl<K, S> RateLimitLayer<K, S>
where
    K: Rules,
    S: Store<Error: CannotFail>,
{
    /// Limits requests by one or more rules.
    ///
    /// A request is charged to all rules or to none.
    ///
    /// # Panics
    ///
    /// Panics if [`try_rules`](RateLimitLayer::try_rules) returns an error. Use `try_rules` for
    /// rules from configuration.
    #[track_caller]
    pub fn rules(rules: K, store: S) -> Self {
        literal(Self::try_rules(rules, store))
    }

    /// Fallible form of [`rules`](RateLimitLayer::rules), for rules from configuration.
    ///
    /// # Errors
    ///
    /// Fails if:
    ///
    /// - two rules have the same name, or two fixed or current quotas have the same name in header fields;
    /// - a fixed cost plus the fixed headroom exceeds a limit of a rule, or of each alternative;
    /// - there are more than 126 sets of alternatives;
    /// - the store does not support the rules;
    /// - another layer on the store has a rule with the same name and different quotas.
    pub fn try_rules(rules: K, store: S) -> Result<Self, RuleError> {
        let infos = rule::infos(&rules);
        rule::check(&infos)?;
        check_names(&infos)?;
        // Last, because a store keeps the quotas of a layer.
        rule::register(&infos, &store)?;
        let accounts = store.known_rules().map(|rules| ptr::from_ref(rules).addr());
        let settings = LayerConfig::new(&infos, accounts);
        Ok(Self {
            rules: Arc::new(rules),
            store: Arc::new(store),
            reject: Arc::default(),
            settings,
        })
    }
}

impl<K: Rules, S, R> RateLimitLayer<K, S, R> {
    /// Warns about a live plan that denies every request, once per layer and its clones.
    pub(super) fn advise(&self) {
        if !cfg!(feature = "tracing") || self.settings.advised.swap(true, Relaxed) {
            return;
        }
        for info in rule::infos(&*self.rules) {
            let limit = info
                .live
                .and_then(|live| info.exceeded(live.quotas().charged()));
            let Some(limit) = limit else { continue };
            let rule = info.name;
            let need = info.min_need();
            warn!(
                target: "tower_sluice::lint",
                lint = "cost_above_limit",
                "rule {rule}: cost plus headroom {need} is above the current limit {limit} of its live \
                 plan, so every request is denied until the plan is replaced; lower the cost or raise \
                 the burst"
            );
        }
    }
}

impl<K, S, R> RateLimitLayer<K, S, R> {
    /// Sets the header fields that report quotas to clients.
    ///
    /// Defaults to [`Headers::RateLimit`](crate::Headers::RateLimit) with every response. Use
    /// [`Headers::only_when_denied`](crate::Headers::only_when_denied) to send the fields with
    /// rejections only.
    pub fn headers(mut self, headers: impl Into<HeaderPolicy>) -> Self {
        self.settings.headers = headers.into();
        self
    }

    /// Inserts the [`Decision`](crate::Decision) into the extensions of the request and the
    /// response. If the layer calls no store, as for a request on an allow list, the decision has the
    /// source [`Bypass`](crate::decision::Source::Bypass) and no outcomes.
    ///
    /// With the feature `axum`, the decision is also an extractor:
    ///
    /// ```
    /// # #[cfg(feature = "axum")] {
    /// use axum::{Router, routing::get};
    /// use tower_sluice::{Decision, Quota, RateLimitLayer};
    ///
    /// async fn left(decision: Decision) -> String {
    ///     format!("{:?} units left", decision.remaining())
    /// }
    ///
    /// let layer = RateLimitLayer::per_ip(Quota::per_second(10)).expose_decision();
    /// let app: Router = Router::new().route("/", get(left)).layer(layer);
    /// # }
    /// ```
    pub fn expose_decision(mut self) -> Self {
        self.settings.exposes_decision = true;
        self
    }

    /// Adds a [fingerprint](crate::fingerprint::Fingerprint) of the key to spans, logs and
    /// explanations.
    ///
    /// - Spans have the fingerprint in the field `ratelimit.key`. If several rules apply, the key
    ///   is that of the rule with the [decisive quota](crate::Decision::binding).
    /// - The debug log has the same field (feature `tracing`).
    /// - [Explanations](RateLimitLayer::explain) print fingerprints instead of keys.
    ///
    /// By default, there are no fingerprints. The key itself is never logged.
    ///
    /// ```
    /// use tower_sluice::{Key, Quota, RateLimitLayer, fingerprint::FingerprintKey};
    ///
    /// let secret = FingerprintKey::new("correct horse battery staple")?; // from configuration
    /// let layer = RateLimitLayer::per_ip(Quota::per_second(10)).fingerprint(secret);
    ///
    /// // Who is 3f…? Compare with the fingerprint of a suspect.
    /// let suspected = Key::from(std::net::Ipv4Addr::new(203, 0, 113, 9)).fingerprint(&secret);
    /// # Ok::<(), tower_sluice::fingerprint::FingerprintKeyError>(())
    /// ```
    ///
    /// # Panics
    ///
    /// Panics if an admin page watches the layer (`Admin::watch`).
    #[track_caller]
    pub fn fingerprint(mut self, secret: impl Into<FingerprintKey>) -> Self {
        self.settings.assert_not_on_admin_page("fingerprint");
        self.settings.secret = Some(secret.into());
        self
    }

    /// Sets the wait that denials report. Defaults to [`RetryAfter::Earliest`].
    ///
    /// Other values make clients that were denied at the same time retry at different times.
    ///
    /// ```
    /// use tower_sluice::{Quota, RateLimitLayer, middleware::RetryAfter};
    ///
    /// let layer = RateLimitLayer::per_ip(Quota::per_second(10)).retry_after(RetryAfter::Queue);
    /// ```
    ///
    /// # Panics
    ///
    /// Panics if the percentage of [`RetryAfter::Jitter`] is above 10.
    #[track_caller]
    pub fn retry_after(mut self, retry_after: RetryAfter) -> Self {
        if let RetryAfter::Jitter(percent) = retry_after {
            assert!(
                percent <= 10,
                "retry jitter: {percent} percent; give 0 to 10"
            );
        }
        self.settings.retries.set_policy(retry_after);
        self
    }

    /// Adds the field `retry-after-ms` to rejections: the wait in milliseconds, rounded up and at least 1.
    ///
    /// The clients of language models read it before `Retry-After`. With a burst below the units of one
    /// second, whole seconds are too coarse: at 10 units per second with a burst of 1, two hundred clients
    /// that obey them need 199 s instead of 20. With this field and [`RetryAfter::Queue`], clients that read
    /// it need 22 s. For other clients, let requests wait: see [`RetryAfter`](RetryAfter#whole-seconds).
    ///
    /// ```
    /// use tower_sluice::{Quota, RateLimitLayer, middleware::RetryAfter};
    ///
    /// let layer = RateLimitLayer::per_ip(Quota::per_second(10).with_burst(1))
    ///     .retry_after(RetryAfter::Queue)
    ///     .retry_after_ms();
    /// ```
    pub fn retry_after_ms(mut self) -> Self {
        self.settings.retries.in_milliseconds = true;
        self
    }

    /// Lets CORS preflights pass without a charge. By default, they are charged.
    ///
    /// Use this for a service that answers preflights itself. If a CORS layer is outside the
    /// limiter, as the [guide](crate::guide::choosing) recommends, that layer answers preflights.
    ///
    /// A preflight has the method `OPTIONS`, an `Origin`, an `Access-Control-Request-Method`, no
    /// `Content-Type` and no body ([Fetch](https://fetch.spec.whatwg.org/#cors-preflight-request)).
    /// The [deny list](RateLimitLayer::deny) is checked first.
    ///
    /// # Limitations
    ///
    /// **Any client can send such a request without a limit.** In HTTP/2 and HTTP/3, the request
    /// may even have a body. Do not use this around a service that acts on `OPTIONS`, such as:
    ///
    /// - a gRPC server, which ignores the method,
    /// - a handler for any method,
    /// - a layer that overrides the method.
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

    /// Lets requests on this list, such as health checks, pass without a charge.
    ///
    /// An allow list takes precedence over a [deny list](RateLimitLayer::deny).
    ///
    /// ```
    /// use tower_sluice::{AccessList, Quota, RateLimitLayer};
    ///
    /// let layer = RateLimitLayer::per_ip(Quota::per_second(10))
    ///     .allow(AccessList::from_fn(|head| head.path() == "/health"))
    ///     .allow(AccessList::networks(["10.0.0.0/8"])?)
    ///     .deny(AccessList::networks(["203.0.113.0/24"])?);
    /// # Ok::<(), tower_sluice::key::NetworkError>(())
    /// ```
    pub fn allow(mut self, list: AccessList) -> Self {
        self.settings.allow.push(list);
        self
    }

    /// Rejects requests on this list with 403, unless an [allow list](RateLimitLayer::allow)
    /// contains them.
    ///
    /// If the key or address of a request cannot be read, the request is rejected with the status
    /// of the [`KeyError`](crate::key::KeyError).
    pub fn deny(mut self, list: AccessList) -> Self {
        self.settings.deny.push(list);
        self
    }

    /// Turns the layer on and off at run time.
    ///
    /// While the toggle is off, every request passes without a charge. Its handler finds no
    /// [slot](RateLimitLayer::expose_slot), and the extractor of one fails: extract an
    /// `Option<Extension<Slot>>` there.
    ///
    /// # Panics
    ///
    /// Panics if an admin page watches the layer (`Admin::watch`).
    #[track_caller]
    pub fn enabled(mut self, toggle: impl Into<Toggle>) -> Self {
        self.settings.assert_not_on_admin_page("enabled");
        self.settings.enabled = toggle.into();
        self
    }

    /// Makes the layer report-only while the toggle is on, to try or suspend limits.
    ///
    /// Requests that would be denied then pass, even requests on a [deny
    /// list](RateLimitLayer::deny). [Hooks](RateLimitLayer::on_decision) still show the denials, and
    /// [decisions](RateLimitLayer::expose_decision) those by quotas. Responses to such requests have
    /// no quota fields.
    ///
    /// ```
    /// use tower_sluice::{Quota, RateLimitLayer, middleware::Toggle};
    ///
    /// let trial = Toggle::on();
    /// let layer = RateLimitLayer::per_ip(Quota::per_second(10)).report_only(&trial);
    /// trial.set(false); // the layer denies from the next request on
    /// ```
    ///
    /// # Panics
    ///
    /// Panics if an admin page watches the layer (`Admin::watch`).
    #[track_caller]
    pub fn report_only(mut self, toggle: impl Into<Toggle>) -> Self {
        self.settings.assert_not_on_admin_page("report_only");
        self.settings.report_only = toggle.into();
        self
    }

    /// Admits requests above their quota while the system has capacity.
    pub fn overcommit(mut self, overcommit: Overcommit) -> Self {
        self.settings.overcommit = Some(overcommit);
        self
    }

    /// Calls a hook with each decision, in addition to earlier hooks.
    ///
    /// [`Counters`](crate::middleware::Counters) are a hook, and so is a closure. See [`OnDecision`]
    /// for an example.
    pub fn on_decision(mut self, hook: impl OnDecision) -> Self {
        self.settings.hooks.push(Arc::new(hook));
        self
    }

    /// Sets the end of the time for which a request holds its [slots](Quota::concurrent). Defaults to
    /// [`HoldUntil::Body`].
    ///
    /// ```
    /// use tower_sluice::{Quota, RateLimitLayer, middleware::HoldUntil};
    ///
    /// // Only the work before the response counts, and not the time to send the response.
    /// let layer = RateLimitLayer::per_ip(Quota::concurrent(5)).hold_until(HoldUntil::Head);
    /// ```
    pub fn hold_until(mut self, until: HoldUntil) -> Self {
        self.hold().until = until;
        self
    }

    /// Holds [slots](Quota::concurrent) in response bodies of the type `B`.
    ///
    /// The layer itself holds slots in the bodies of axum and tonic (features `axum` and `tonic`).
    /// Any other body needs this function or [`HoldUntil::Head`]. Otherwise, the layer rejects
    /// requests that need slots with 503 without a store call, and warns once. Rates need no such
    /// function. Of [alternatives](Rule::or), a request needs all up to the first that fits.
    ///
    /// A body such as `Full<Bytes>` cannot contain another body. Let the service box its bodies.
    ///
    /// ```
    /// use bytes::Bytes;
    /// use http_body_util::{BodyExt, combinators::UnsyncBoxBody};
    /// use tower::BoxError;
    /// use tower_sluice::{Quota, RateLimitLayer, middleware::SlotBody};
    ///
    /// type Body = UnsyncBoxBody<Bytes, BoxError>;
    ///
    /// let layer = RateLimitLayer::per_ip(Quota::concurrent(5))
    ///     .hold_with(|body: Body, slot| SlotBody::new(body, slot).boxed_unsync());
    /// ```
    pub fn hold_with<B: 'static>(
        mut self,
        wrap: impl Fn(B, Slot) -> B + Send + Sync + 'static,
    ) -> Self {
        self.hold().set_wrap(wrap);
        self
    }

    /// Inserts the [`Slot`] of a request into the extensions of the request and of the response.
    ///
    /// The slots are held until the last clone is dropped. Move a clone into a WebSocket, an
    /// upgraded connection or a spawned task, whose work goes on after the response.
    ///
    /// ```
    /// use http::{Request, StatusCode};
    /// use tower_sluice::{Quota, RateLimitLayer, middleware::Slot};
    ///
    /// // With axum, the argument `slot: Slot` extracts the slot.
    /// async fn export<B>(request: Request<B>) -> StatusCode {
    ///     let slot = request.extensions().get::<Slot>().cloned();
    ///     tokio::spawn(async move {
    ///         // … the export
    ///         drop(slot);
    ///     });
    ///     StatusCode::ACCEPTED
    /// }
    ///
    /// let layer = RateLimitLayer::per_ip(Quota::concurrent(2)).expose_slot();
    /// ```
    ///
    /// If several layers around each other expose a slot, the handler gets that of the innermost.
    pub fn expose_slot(mut self) -> Self {
        self.hold().exposed = true;
        self
    }

    /// Sets the function that finds responses which show an overload, for
    /// [adaptive](crate::rule::Adaptive) limits. Defaults to the status 503 and 504.
    ///
    /// ```
    /// use tower_sluice::{LocalStore, RateLimitLayer, key::Everyone, rule::Adaptive};
    ///
    /// let limit = Adaptive::gradient();
    /// let layer = RateLimitLayer::new(Everyone, limit.plan(), LocalStore::new())
    ///     .overload_if(|response| response.headers.contains_key("x-overloaded"));
    /// ```
    pub fn overload_if(
        mut self,
        is_overloaded: impl Fn(&ResponseHead<'_>) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.hold().overloaded = Arc::new(is_overloaded);
        self
    }

    /// Sets the maximum number of requests that [queue](Rule::max_wait) at once. Defaults to 1,024.
    ///
    /// Beyond the maximum, a request that would have to queue is denied without a charge. A request
    /// that may queue also counts while the store decides on it.
    ///
    /// [`max_waiters_per_key`](RateLimitLayer::max_waiters_per_key) sets the maximum of one key.
    pub fn max_waiters(mut self, most: usize) -> Self {
        self.settings.queue_bounds.all = most;
        self
    }

    /// Sets the maximum number of requests of one key that [queue](Rule::max_wait) at once.
    ///
    /// Beyond the maximum, a request that would have to queue is denied without a charge. A request
    /// that may queue also counts while the store decides on it.
    ///
    /// By default, a quota permits as many requests as have their turn within
    /// [`max_wait`](Rule::max_wait), one for each [interval](Quota::interval), but at least as many as its
    /// units and its burst. Slots permit as many as there are. The maximum is the smallest of these numbers,
    /// at least one, and at most a 64th of [`max_waiters`](RateLimitLayer::max_waiters): 16. The key of all
    /// requests, and one of clients that are not known, such as that of a
    /// [proxy](crate::Key::of_proxy), have no maximum by default.
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
    /// A client that can invent keys, such as unverified names, can fill the queue of the layer
    /// with 64 keys. Use a queue only with keys that a client cannot invent.
    pub fn max_waiters_per_key(mut self, most: usize) -> Self {
        self.settings.queue_bounds.per_key = Some(most);
        self
    }

    /// Returns a handle that ends all waits of the layer and its clones, for the shutdown of a service.
    ///
    /// A graceful shutdown lasts until all requests have ended, also those that still wait. See
    /// [shutdown](crate::guide::production#shutdown).
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_sluice::{LocalStore, PeerIp, Quota, RateLimitLayer, Rule};
    ///
    /// let rule = Rule::new("ip", PeerIp::new(), Quota::per_second(10)).max_wait(Duration::from_secs(30));
    /// let layer = RateLimitLayer::rules(rule, LocalStore::new());
    /// let queue = layer.queue_handle();
    /// // At shutdown:
    /// queue.close();
    /// assert!(queue.is_closed());
    /// ```
    #[must_use]
    pub fn queue_handle(&self) -> QueueHandle
    where
        S: Store + Send + Sync + 'static,
    {
        QueueHandle::new(self.settings.queue.clone(), self.store.clone())
    }

    /// Sets the response to denied requests. Defaults to [`TooManyRequests`].
    pub fn reject<R2>(self, reject: R2) -> RateLimitLayer<K, S, R2> {
        let Self {
            rules,
            store,
            settings,
            ..
        } = self;
        RateLimitLayer {
            rules,
            store,
            reject: Arc::new(reject),
            settings,
        }
    }

    /// Sets the part of a rejected request's body that the layer reads, and the time for it. Defaults
    /// to 64 KiB and one second.
    ///
    /// Over HTTP/1, a client or proxy that is still sending when the server closes the connection
    /// may see a broken connection instead of the rejection: nginx then answers 502. The layer
    /// therefore reads the rest of the body before it responds, and drops each frame at once. The
    /// inner service is released before.
    ///
    /// If the body does not end within `bytes` and `time`, the response has `connection: close`. A request
    /// with a body gets that field as well, and its body is not read at all, if:
    ///
    /// - its declared length is above `bytes`, or `bytes` is 0;
    /// - the request has `Expect` or `Upgrade`, or the method `CONNECT`;
    /// - the type of the body is not known. The layer knows the bodies of axum and tonic, `Incoming`
    ///   of hyper (feature `axum`), and the boxed bodies of http-body-util. Use
    ///   [`drain_with`](RateLimitLayer::drain_with) for others.
    ///
    /// Over HTTP/2 and later, the layer reads no body, because the server ends the stream alone.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_sluice::{Quota, RateLimitLayer};
    ///
    /// // Denied uploads of up to 1 MiB keep their connection.
    /// let layer = RateLimitLayer::per_ip(Quota::per_second(10)).drain(1 << 20, Duration::from_secs(2));
    /// ```
    ///
    /// # Panics
    ///
    /// Panics if `bytes` is not 0, and `time` is 0 or above one minute.
    ///
    /// # Limitations
    ///
    /// A client that sends slowly delays its own rejection by up to `time`. Meanwhile, the request
    /// counts in layers around this one, such as a limit of concurrent requests.
    ///
    /// A handler that rejects a request itself, as by [`Decision::rejection`], reads the body itself.
    #[track_caller]
    pub fn drain(mut self, bytes: u64, time: Duration) -> Self {
        self.drain_config().set_bounds(bytes, time);
        self
    }

    /// Reads bodies of rejected requests that have the type `B`, within the bounds of
    /// [`drain`](RateLimitLayer::drain).
    ///
    /// The function returns the body to read, usually its argument. Use it for the body of a layer
    /// outside of the limiter, or of another server. Without it, the rejection of a request with such a
    /// body has `connection: close`, and the log warns once.
    ///
    /// ```
    /// use axum::body::Body;
    /// use tower_sluice::{Quota, RateLimitLayer};
    ///
    /// /// The body that a layer outside of the limiter makes.
    /// struct Counted {
    ///     body: Body,
    /// }
    ///
    /// let layer = RateLimitLayer::per_ip(Quota::per_second(10))
    ///     .drain_with(|counted: Counted| counted.body);
    /// ```
    pub fn drain_with<B: 'static, D>(
        mut self,
        body_of: impl Fn(B) -> D + Send + Sync + 'static,
    ) -> Self
    where
        D: Body + Send + 'static,
    {
        self.drain_config().set_reader(body_of);
        self
    }

    fn hold(&mut self) -> &mut HoldConfig {
        Arc::make_mut(&mut self.settings.hold)
    }

    fn drain_config(&mut self) -> &mut DrainConfig {
        Arc::make_mut(&mut self.settings.drain)
    }
}

impl<K, S, R> RateLimitLayer<K, S, R>
where
    K: Rules,
    S: Store<Error: CannotFail> + Sync,
{
    /// Explains the decision that a request would get now, without a charge.
    ///
    /// The explanation of a store that cannot [peek](StoreExt::peek), such as `GovernorStore`, says
    /// so.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use http::Request;
    /// use tower_sluice::{LocalStore, Quota, RateLimitLayer, key::HeaderKey};
    ///
    /// let quota = Quota::per_minute(5);
    /// let layer = RateLimitLayer::new(HeaderKey::new("x-api-key"), quota, LocalStore::new());
    ///
    /// let request = Request::get("/").header("x-api-key", "alice").body(()).unwrap();
    /// let would = layer.explain(&request).await;
    /// assert!(would.is_allowed());
    /// assert!(would.to_string().contains("(5/min, gcra), Key(..), cost 1: 4 of 5 left"));
    /// # });
    /// ```
    pub async fn explain<'a>(&self, head: impl Into<RequestHead<'a>>) -> Explanation {
        let owned = |all: Candidates<'_, '_>| Ok(self.settings.owned_now(all));
        let mut explanation = match self.with_charges(&head.into(), owned, Err) {
            Ok(charges) => {
                let attempts = &mut Attempts::default();
                let peeked = rule::decide(&*self.store, &charges, attempts, S::peek).await;
                let mut decision = certain(peeked);
                charges.with(|all| {
                    if !decision.is_allowed() {
                        self.settings.mark_overload(&mut decision, all.charges);
                    }
                    Explanation::dry_run(Ok(decision)).charges(all.charges)
                })
            }
            Err(bypass) => Explanation::dry_run(Err(bypass)),
        };
        explanation.secret = self.settings.secret;
        if !explanation.is_allowed() {
            let decision = explanation.decision.as_ref().ok();
            let reason = self.settings.override_denial(decision);
            explanation.allowed_because = reason.as_ref().map(Override::text);
        }
        explanation
    }

    /// Explains a decision of this layer, such as a decision from the
    /// [extensions](RateLimitLayer::expose_decision).
    ///
    /// The rules are evaluated again to find quotas, costs and keys. The store is not called.
    pub fn explain_decision<'a>(
        &self,
        decision: &Decision,
        head: impl Into<RequestHead<'a>>,
    ) -> Explanation {
        let mut explanation = decision.explain().rules(&*self.rules, head);
        explanation.secret = self.settings.secret;
        explanation
    }
}

impl<K, S, R> RateLimitLayer<K, S, R>
where
    K: Rules,
    S: Store<Error = Infallible> + Send + Sync + 'static,
    S::Future: 'static,
{
    /// Adjusts the charges of every request to its response.
    ///
    /// The function keeps, refunds or changes each charge. A refund does not return units that were
    /// already refilled over time. If there is no response, because of an error, a panic or a
    /// disconnect, the charge is kept.
    ///
    /// ```
    /// use http::StatusCode;
    /// use tower_sluice::{Quota, RateLimitLayer, middleware::Adjustment};
    ///
    /// // Only failed logins are charged.
    /// let layer = RateLimitLayer::per_ip(Quota::per_minute(5)).adjust(|response| {
    ///     match response.status {
    ///         StatusCode::UNAUTHORIZED => Adjustment::Keep,
    ///         _ => Adjustment::Refund,
    ///     }
    /// });
    /// ```
    pub fn adjust(
        mut self,
        classify: impl Fn(&ResponseHead<'_>) -> Adjustment + Send + Sync + 'static,
    ) -> Self {
        self.adjust_config().classify = Some(Arc::new(classify));
        self
    }

    /// Inserts a [`ChargeHandle`](crate::middleware::ChargeHandle) into the extensions of every
    /// request.
    ///
    /// The handler adjusts the charge to the actual cost. `unadjusted` is the policy for a charge
    /// that nobody adjusts, because the client disconnects or the handler panics.
    ///
    /// ```
    /// use axum::{Router, routing::post};
    /// use tower_sluice::{
    ///     Quota, RateLimitLayer,
    ///     middleware::{Adjustment, ChargeHandle},
    /// };
    ///
    /// async fn complete(charge: ChargeHandle) -> &'static str {
    ///     charge.adjust_to(7);
    ///     "…"
    /// }
    ///
    /// // A request is charged one unit at first, and fifty if it breaks off.
    /// let layer = RateLimitLayer::per_ip(Quota::per_minute(1_000))
    ///     .expose_charge(Adjustment::AtLeast(50));
    /// let app: Router = Router::new().route("/", post(complete)).layer(layer);
    /// ```
    pub fn expose_charge(mut self, unadjusted: Adjustment) -> Self {
        self.adjust_config().exposed = Some(unadjusted);
        self
    }

    /// Blocks the keys of a rule that have too many strikes.
    ///
    /// Requests on an [allow list](RateLimitLayer::allow), and those that run because the layer or the
    /// rule is report-only, have no strikes. [`Limiter::unblock`](crate::Limiter::unblock) ends a block
    /// at once.
    ///
    /// # Panics
    ///
    /// Panics if the layer has no rule of this name, or if the key of the rule is [never that of a
    /// client](KeyExtractor::can_be_client), as with `Everyone`.
    #[track_caller]
    pub fn penalty(mut self, rule: &str, penalty: Penalty) -> Self {
        let infos = rule::infos(&*self.rules);
        let penalty = RulePenalty::new(rule, penalty, &infos, self.store.clone().boxed());
        self.settings.penalties.push(Arc::new(penalty));
        self
    }

    /// Erases the types of the rules and of the store, so that a struct or a function can name the layer.
    ///
    /// The limits stay those of this layer.
    ///
    /// ```
    /// use tower_sluice::{Quota, RateLimitLayer};
    ///
    /// struct App {
    ///     limit: RateLimitLayer,
    /// }
    ///
    /// let app = App { limit: RateLimitLayer::per_ip(Quota::per_second(10)).boxed() };
    /// ```
    pub fn boxed(self) -> RateLimitLayer<Arc<dyn Rules + Send + Sync>, Arc<DynStore<Infallible>>, R>
    where
        K: Send + Sync + 'static,
    {
        let Self {
            rules,
            store,
            reject,
            settings,
        } = self;
        RateLimitLayer {
            rules: Arc::new(rules),
            store: Arc::new(store.boxed()),
            reject,
            settings,
        }
    }

    fn adjust_config(&mut self) -> &mut AdjustConfig {
        let Self {
            rules,
            store,
            settings,
            ..
        } = self;
        settings
            .adjustment
            .get_or_insert_with(|| AdjustConfig::new(&rule::infos(&**rules), store.clone().boxed()))
    }
}

impl<K, S, R> Clone for RateLimitLayer<K, S, R> {
    fn clone(&self) -> Self {
        Self {
            rules: self.rules.clone(),
            store: self.store.clone(),
            reject: self.reject.clone(),
            settings: self.settings.clone(),
        }
    }
}

impl<K: fmt::Debug, S: fmt::Debug, R> fmt::Debug for RateLimitLayer<K, S, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitLayer")
            .field("rules", &self.rules)
            .field("store", &self.store)
            .finish_non_exhaustive()
    }
}

//! The layer: constructors and knobs.

use std::{fmt, sync::Arc};

use tower::Layer;

use crate::{
    gate::{Gate, Settings},
    headers::{Headers, Item, Plan},
    key::{KeyExtractor, PeerIp},
    name::RuleName,
    quota::Quota,
    reject::TooManyRequests,
    rule::{self, Quotas, Rule, RuleError, Rules},
    service::RateLimit,
    store::{CannotFail, LocalStore, Store},
};

/// Limits the services it is laid around.
///
/// The layer is its own builder: a constructor says who pays, how much there is and where accounts
/// live; setters change what has a good default. Accounts live in the store, so clones of a layer,
/// and the services it makes, share their limits.
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
/// .headers(Headers::Draft07);
/// ```
#[must_use]
pub struct RateLimitLayer<K, S, R = TooManyRequests> {
    rules: Arc<K>,
    store: Arc<S>,
    reject: Arc<R>,
    items: Vec<Item>,
    headers: Headers,
    settings: Settings,
}

impl RateLimitLayer<Rule<PeerIp>, LocalStore> {
    /// Limits every peer address to `quota`, in an embedded store of its own.
    ///
    /// With axum, serve the app with `into_make_service_with_connect_info::<SocketAddr>()`: only
    /// so a request knows its [peer](PeerIp).
    pub fn per_ip(quota: Quota) -> Self {
        Self::new(PeerIp::new(), quota, LocalStore::new())
    }
}

impl<K, S> RateLimitLayer<Rule<K>, S>
where
    K: KeyExtractor,
    S: Store<Error: CannotFail>,
{
    /// Limits every key to `quotas`, all charged or none, under the rule name `default`.
    ///
    /// # Panics
    ///
    /// Where [`try_rules`](RateLimitLayer::try_rules) gives an error.
    #[track_caller]
    pub fn new(extractor: K, quotas: impl Into<Quotas>, store: S) -> Self {
        Self::rules(Rule::named(RuleName::default(), extractor, quotas), store)
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
    /// cost is above a quota's limit, or the store cannot do what the rules ask.
    pub fn try_rules(rules: K, store: S) -> Result<Self, RuleError> {
        let mut shapes = Vec::new();
        rules.describe(&mut shapes);
        rule::check(&shapes, &store)?;
        let items = Item::list(&shapes)?;
        Ok(Self {
            rules: Arc::new(rules),
            store: Arc::new(store),
            reject: Arc::default(),
            items,
            headers: Headers::default(),
            settings: Settings::default(),
        })
    }
}

impl<K, S, R> RateLimitLayer<K, S, R> {
    /// Which header fields tell clients what is left; [`Headers::Draft11`] unless set.
    pub fn headers(self, headers: Headers) -> Self {
        Self { headers, ..self }
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

    /// Charges CORS preflights too. By default they pass: a browser shows a refused preflight as
    /// an opaque failure.
    pub fn count_preflights(mut self) -> Self {
        self.settings.preflights = true;
        self
    }

    /// Answers refused requests with `reject`; [`TooManyRequests`] unless set.
    pub fn reject<R2>(self, reject: R2) -> RateLimitLayer<K, S, R2> {
        let Self { rules, store, items, headers, settings, .. } = self;
        RateLimitLayer { rules, store, reject: Arc::new(reject), items, headers, settings }
    }
}

impl<I, K, S, R> Layer<I> for RateLimitLayer<K, S, R> {
    type Service = RateLimit<I, K, S, R>;

    fn layer(&self, inner: I) -> Self::Service {
        let gate = Gate {
            rules: self.rules.clone(),
            store: self.store.clone(),
            reject: self.reject.clone(),
            plan: Arc::new(Plan::new(self.headers, self.items.clone())),
            settings: self.settings,
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
            settings: self.settings,
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

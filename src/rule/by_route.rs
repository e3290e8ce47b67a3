//! Separate quotas for each route, with a check for mistakes in the routes.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
};

use axum::extract::MatchedPath;
use http::Method;

use super::{
    Bypass, Plan, Rule, RuleInfo, Rules,
    route::{Route, RouteError},
};
use crate::{
    key::{Everyone, KeyExtractor, RequestHead},
    log::warn,
    store::{Charge, literal},
};

/// Creates rules with separate quotas for each route.
///
/// A route is a method and an axum template. Requests to any other route use the quotas `default`.
///
/// All clients share the quotas of a route. Use [`each`](ByRoute::each) to count each key
/// separately.
///
/// ```
/// use http::Method;
/// use tower_sluice::{LocalStore, PeerIp, Quota, RateLimitLayer, by_route};
///
/// let routes = by_route(
///     [
///         (Method::POST, "/url", Quota::per_second(10)),
///         (Method::DELETE, "/url/{id}", Quota::per_second(5)),
///     ],
///     Quota::per_second(50),
/// )
/// .any_method("/login", Quota::per_minute(5));
/// let layer = RateLimitLayer::rules(routes.each(PeerIp::new()), LocalStore::new());
/// ```
///
/// # Methods
///
/// | request | charged by |
/// |---|---|
/// | a method and template with quotas | that route |
/// | `HEAD` without quotas | the `GET` route, because axum uses the handler of `GET` |
/// | another method of the path | [`any_method`](ByRoute::any_method), or else the rule `other` |
/// | any method to a gRPC path, `/package.Service/Method` | that route, because gRPC servers ignore the method |
///
/// Use `any_method` for a handler that answers several methods, such as `axum::routing::any`, and
/// for methods beyond `GET`, `HEAD`, `POST`, `PUT`, `DELETE`, `PATCH`, `OPTIONS`, `TRACE` and
/// `CONNECT`.
///
/// # Templates
///
/// Write a template exactly as in the router, with the same names of parameters, and with the
/// prefix of nested routers: `/api/url/{id}`.
///
/// A gRPC method, `/package.Service/Method`, also works without an axum router, and in a router that
/// matches whole services. For a service without a package, use `any_method`.
///
/// Add the layer with `Router::layer`, because axum matches routes inside the router. A layer
/// around the router charges all requests to the rule `other`.
///
/// The rule cannot know the routes of the router. After the first 1,000 requests, the log names the
/// routes that none of them met (`route_never_met`). To find a mistake
/// earlier, send one request to each route in a test, and check the `RateLimit` header field.
///
/// # Names
///
/// The name of a rule is its route, such as `POST /url`. The default rule is named `other`. A name
/// above 64 characters is cut and ends with a hash. Characters that are not printable ASCII are
/// percent-encoded.
///
/// To read routes and quotas from a file, use [`RouteSettings`](crate::RateLimitLayer) (feature
/// `serde`).
///
/// # Panics
///
/// Panics if [`try_by_route`] returns an error.
#[track_caller]
pub fn by_route<P: AsRef<str>, Q: Into<Plan>>(
    routes: impl IntoIterator<Item = (Method, P, Q)>,
    default: impl Into<Plan>,
) -> ByRoute<Everyone> {
    literal(try_by_route(routes, default))
}

/// Fallible form of [`by_route`], for routes known only at run time.
///
/// ```
/// use http::Method;
/// use tower_sluice::{Quota, rule::try_by_route};
///
/// let routes = [(Method::GET, "url", Quota::per_second(5))];
/// let error = try_by_route(routes, Quota::per_second(9)).unwrap_err();
/// assert_eq!(error.to_string(), "route \"GET url\": path \"url\" does not start with a slash; add it");
/// ```
///
/// # Errors
///
/// Fails for:
///
/// - two routes with the same method and template
/// - a template without a leading slash, with a query, or with the syntax of axum 0.7 (`/:id`)
/// - a method that is not one of the nine [standard methods](by_route#methods), such as `get` or
///   `PSOT`
pub fn try_by_route<P: AsRef<str>, Q: Into<Plan>>(
    routes: impl IntoIterator<Item = (Method, P, Q)>,
    default: impl Into<Plan>,
) -> Result<ByRoute<Everyone>, RouteError> {
    let mut rules = ByRoute::of(default.into());
    for (method, template, plan) in routes {
        rules.add(Route::new(Some(method.as_str()), template.as_ref())?, plan.into())?;
    }
    Ok(rules)
}

/// Rules created by [`by_route`].
#[derive(Clone, Debug)]
#[must_use]
pub struct ByRoute<K> {
    routes: Vec<(Route, Rule<K>)>,
    other: Rule<K>,
    check: Arc<RouteCheck>,
}

impl ByRoute<Everyone> {
    pub(super) fn of(default: Plan) -> Self {
        let other = Rule::new("other", Everyone, default);
        Self { routes: Vec::new(), other, check: Arc::new(RouteCheck::new(0)) }
    }
}

impl<K: Clone> ByRoute<K> {
    /// Sets the quotas of a path, for all methods that have no route of their own.
    ///
    /// ```
    /// use http::Method;
    /// use tower_sluice::{Quota, by_route};
    ///
    /// let routes = by_route([(Method::GET, "/report", Quota::per_second(5))], Quota::per_second(99))
    ///     .any_method("/report", Quota::per_minute(1));
    /// ```
    ///
    /// # Panics
    ///
    /// Panics if [`by_route`] would panic for the template.
    #[track_caller]
    pub fn any_method(self, template: impl AsRef<str>, plan: impl Into<Plan>) -> Self {
        literal(self.try_any_method(template, plan))
    }

    /// Fallible form of [`any_method`](ByRoute::any_method), for a template known only at run time.
    ///
    /// # Errors
    ///
    /// Fails if [`try_by_route`] would fail for the template.
    pub fn try_any_method(
        mut self,
        template: impl AsRef<str>,
        plan: impl Into<Plan>,
    ) -> Result<Self, RouteError> {
        self.add(Route::new(None, template.as_ref())?, plan.into())?;
        Ok(self)
    }

    pub(super) fn add(&mut self, route: Route, plan: Plan) -> Result<(), RouteError> {
        if self.routes.iter().any(|(one, _)| *one == route) {
            return Err(RouteError::duplicate(&route));
        }
        let rule = Rule::named(route.name(), self.other.extractor.clone(), plan);
        self.routes.push((route, rule));
        self.check = Arc::new(RouteCheck::new(self.routes.len()));
        Ok(())
    }
}

impl<K> ByRoute<K> {
    /// Counts each key of `extractor` separately. By default, all clients share the quotas.
    pub fn each<E: Clone>(self, extractor: E) -> ByRoute<E> {
        let named = |rule: Rule<K>| Rule::named(rule.name, extractor.clone(), rule.plan);
        ByRoute {
            routes: self.routes.into_iter().map(|(route, rule)| (route, named(rule))).collect(),
            other: named(self.other),
            check: self.check,
        }
    }

    /// Returns the rule that charges a request.
    fn rule(&self, head: &RequestHead<'_>) -> &Rule<K> {
        let matched = head.extensions.get::<MatchedPath>().map(MatchedPath::as_str);
        let rank = |(at, (route, _)): (usize, &(Route, _))| Some((route.rank(head, matched)?, at));
        let met = self.routes.iter().enumerate().filter_map(rank).min().map(|(_, at)| at);
        if cfg!(feature = "tracing") && self.check.count(met) {
            self.warn_unmet();
        }
        met.map_or(&self.other, |at| &self.routes[at].1)
    }

    /// Logs the routes that no request has met.
    #[cold]
    fn warn_unmet(&self) {
        let unmet = self.routes.iter().zip(&self.check.met).filter(|(_, met)| !met.load(Relaxed));
        let unmet: Vec<_> = unmet.map(|((route, _), _)| format!("\"{route}\"")).collect();
        if !unmet.is_empty() {
            warn!(
                target: "tower_sluice::lint",
                lint = "route_never_met",
                "none of the first {SAMPLE} requests met {}: write each path exactly as in the \
                 router, with the path it is nested under and the names of its parameters, and \
                 add the layer to the Router that has the route, not around it; ignore this \
                 warning if the routes are rarely used",
                unmet.join(", ")
            );
        }
    }
}

impl<K: KeyExtractor> super::rules::sealed::Sealed for ByRoute<K> {}

impl<K: KeyExtractor> Rules for ByRoute<K> {
    fn charge(
        &self,
        head: &RequestHead<'_>,
        before: &[Charge<'_>],
        then: &mut dyn FnMut(&[Charge<'_>]),
    ) -> Result<(), Bypass> {
        self.rule(head).charge(head, before, then)
    }

    fn info<'a>(&'a self, infos: &mut Vec<RuleInfo<'a>>) {
        for (_, rule) in &self.routes {
            rule.info(infos);
            if let Some(info) = infos.last_mut() {
                info.instead_of = Some(self.other.name);
            }
        }
        self.other.info(infos);
    }
}

/// The number of requests after which unmet routes are logged.
const SAMPLE: u32 = 1_000;

/// The routes that the first requests have met.
#[derive(Debug)]
struct RouteCheck {
    /// One flag per route.
    met: Box<[AtomicBool]>,
    requests: AtomicU32,
}

impl RouteCheck {
    fn new(routes: usize) -> Self {
        let met = (0..routes).map(|_| AtomicBool::new(false)).collect();
        Self { met, requests: AtomicU32::new(0) }
    }

    /// Counts a request. Returns `true` for the last request of the sample.
    #[inline]
    fn count(&self, met: Option<usize>) -> bool {
        if self.requests.load(Relaxed) >= SAMPLE {
            return false;
        }
        if let Some(flag) = met.and_then(|route| self.met.get(route)) {
            flag.store(true, Relaxed);
        }
        self.requests.fetch_add(1, Relaxed) == SAMPLE - 1
    }
}

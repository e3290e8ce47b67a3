//! Separate quotas for each route.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    },
};

use axum::extract::{MatchedPath, OriginalUri};
use http::Method;

use super::{
    Bypass, Candidates, Plan, Rule, RuleError, RuleInfo, RuleName, Rules,
    rules::{Then, sealed::Sealed},
};
use crate::{
    advice::{FEW, FirstCheck, SAMPLE, count_and_is_last, is_early},
    key::{Everyone, KeyExtractor, METHODS, RequestHead},
    log::warn,
    store::literal,
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
/// The rule cannot know the routes of the router. The log warns (`route_never_met`):
///
/// - of a template that lacks its prefix
/// - if none of the first 20 requests has passed a router
/// - after the first 1,000 requests, of routes that none of them met
///
/// To find any mistake before, send one request to each route in a test, and check the `RateLimit`
/// header field.
///
/// # Names
///
/// The name of a rule is its route, such as `POST /url`. The default rule is named `other`. A name
/// above 64 characters is cut and ends with a hash. Characters that are not printable ASCII are
/// percent-encoded.
///
/// To read routes and quotas from a file, use `RouteSettings` of this module (feature `serde`).
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
) -> Result<ByRoute<Everyone>, RuleError> {
    let mut rules = ByRoute::of(default.into());
    for (method, template, plan) in routes {
        rules.add(Some(method.as_str()), template.as_ref(), plan.into())?;
    }
    Ok(rules)
}

/// Rules created by [`by_route`].
#[derive(Clone, Debug)]
#[must_use]
pub struct ByRoute<K> {
    routes: Vec<RoutedRule<K>>,
    other: Rule<K>,
    check: Arc<RouteCheck>,
}

#[derive(Clone, Debug)]
struct RoutedRule<K> {
    route: Route,
    rule: Rule<K>,
}

/// The first requests, which are checked for signs of a wrong template or place of the layer.
#[derive(Debug, Default)]
struct RouteCheck {
    requests: AtomicU32,
    /// Looks for a request with a matched route.
    matched: FirstCheck<FEW>,
    /// `true` once the log has a template without its prefix.
    has_warned: AtomicBool,
}

impl ByRoute<Everyone> {
    pub(super) fn of(default: Plan) -> Self {
        let other = Rule::new("other", Everyone, default);
        Self {
            routes: Vec::new(),
            other,
            check: Arc::default(),
        }
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
    pub fn any_method(mut self, template: impl AsRef<str>, plan: impl Into<Plan>) -> Self {
        literal(self.add(None, template.as_ref(), plan.into()));
        self
    }

    pub(super) fn add(
        &mut self,
        method: Option<&str>,
        path: &str,
        plan: Plan,
    ) -> Result<(), RuleError> {
        let route = Route::new(method, path)?;
        let mut known = self.routes.iter().map(|routed| &routed.route);
        if known.any(|known| known.method == route.method && known.path == route.path) {
            return Err(RuleError::Route(format!(
                "route \"{route}\" is given twice; drop one"
            )));
        }
        let name = RuleName::derived(&route.to_string());
        let rule = Rule::named(name, self.other.extractor.clone(), plan);
        self.routes.push(RoutedRule { route, rule });
        Ok(())
    }
}

impl<K> ByRoute<K> {
    /// Counts each key of `extractor` separately. By default, all clients share the quotas.
    pub fn each<E: Clone>(self, extractor: E) -> ByRoute<E> {
        let named = |rule: Rule<K>| Rule::named(rule.name, extractor.clone(), rule.plan);
        let routes = self.routes.into_iter();
        ByRoute {
            routes: routes
                .map(|routed| RoutedRule {
                    route: routed.route,
                    rule: named(routed.rule),
                })
                .collect(),
            other: named(self.other),
            check: self.check,
        }
    }

    /// Returns the rule that charges a request.
    fn rule(&self, head: &RequestHead<'_>) -> &Rule<K> {
        let matched = head.extensions.get::<MatchedPath>();
        let matched = matched.map(MatchedPath::as_str);
        let routes = self.routes.iter();
        let ranked = routes.filter_map(|routed| Some((routed.route.rank(head, matched)?, routed)));
        let best = ranked.min_by_key(|(rank, _)| *rank);
        let best = best.map(|(_, routed)| routed);
        if is_early(&self.check.requests) {
            self.record(head, matched, best.map(|routed| &routed.route));
        }
        best.map_or(&self.other, |routed| &routed.rule)
    }

    /// Checks one of the first requests, whose route of these rules is `best`.
    #[cold]
    fn record(&self, head: &RequestHead<'_>, matched: Option<&str>, best: Option<&Route>) {
        match (best, matched) {
            (Some(route), _) => {
                route.met.store(true, Relaxed);
                self.check.matched.record_hit();
            }
            (None, Some(matched)) => {
                self.check.matched.record_hit();
                self.check_prefix(head, matched);
            }
            (None, None) => {
                let has_grpc = self.routes.iter().any(|routed| routed.route.grpc);
                // Only a router sets it, also for paths that it does not know.
                let is_in_router = head.extensions.get::<OriginalUri>().is_some();
                if !has_grpc && !is_in_router && self.check.matched.record_miss() {
                    warn_of_unmatched();
                }
            }
        }
        if count_and_is_last(&self.check.requests) {
            self.warn_unmet();
        }
    }

    /// Looks for a template that lacks its prefix.
    fn check_prefix(&self, head: &RequestHead<'_>, matched: &str) {
        let mut routes = self.routes.iter().map(|routed| &routed.route);
        if let Some(route) = routes.find(|route| route.lacks_prefix(head, matched))
            && !self.check.has_warned.swap(true, Relaxed)
        {
            warn_of_prefix(route, matched);
        }
    }

    /// Logs the routes that no request of the sample has met.
    #[cold]
    fn warn_unmet(&self) {
        let routes = self.routes.iter().map(|routed| &routed.route);
        let unmet = routes.filter(|route| !route.met.load(Relaxed));
        let unmet: Vec<_> = unmet.map(|route| format!("\"{route}\"")).collect();
        if !unmet.is_empty() {
            warn!(
                target: "tower_sluice::lint",
                lint = "route_never_met",
                "none of the first {SAMPLE} requests met {}: write each path exactly as in the router, \
                 with the path it is nested under and the names of its parameters, and add the \
                 layer to the Router that has the route, not around it; ignore this warning if the \
                 routes are rarely used",
                unmet.join(", ")
            );
        }
    }
}

fn warn_of_prefix(route: &Route, matched: &str) {
    warn!(
        target: "tower_sluice::lint",
        lint = "route_never_met",
        "a request of the route {matched} is charged to the rule `other`, and not to \"{route}\": write \
         each path as in the outermost router, with the path it is nested under: {matched:?} (logged \
         once); ignore this warning if the two are different routes"
    );
}

fn warn_of_unmatched() {
    warn!(
        target: "tower_sluice::lint",
        lint = "route_never_met",
        "none of the first {FEW} requests has a matched route, so the rule `other` charges them: add the \
         layer to the axum Router that has the routes, by Router::layer, and not around it"
    );
}

impl<K: KeyExtractor> Sealed for ByRoute<K> {
    fn append_charges(
        &self,
        head: &RequestHead<'_>,
        before: Candidates<'_, '_>,
        then: &mut Then<'_>,
    ) -> Result<(), Bypass> {
        self.rule(head).append_charges(head, before, then)
    }
}

impl<K: KeyExtractor> Rules for ByRoute<K> {
    fn info<'a>(&'a self, infos: &mut Vec<RuleInfo<'a>>) {
        self.routes
            .iter()
            .for_each(|routed| routed.rule.info(infos));
        self.other.info(infos);
    }
}

/// A path as in the router, with an optional method.
#[derive(Clone, Debug)]
struct Route {
    method: Option<Method>,
    path: Box<str>,
    /// `true` for a path of a gRPC service, whose routes apply to all HTTP methods.
    grpc: bool,
    /// `true` once a request has met the route.
    met: Arc<AtomicBool>,
}

impl Route {
    fn new(method: Option<&str>, path: &str) -> Result<Self, RuleError> {
        let route = Self {
            method: method.map(|name| known_method(name, path)).transpose()?,
            path: path.into(),
            grpc: is_grpc(path),
            met: Arc::default(),
        };
        match path_fault(path) {
            Some(fault) => Err(RuleError::Route(format!(
                "route {:?}: path {path:?} {fault}",
                route.to_string()
            ))),
            None => Ok(route),
        }
    }

    /// Returns `true` if the request seems to have this route, in a router that is nested under a path.
    fn lacks_prefix(&self, head: &RequestHead<'_>, matched: &str) -> bool {
        let method = self.method.as_ref();
        method.is_none_or(|method| method == head.method)
            && !self.met.load(Relaxed)
            && self.path.len() > 1
            && matched.len() > self.path.len()
            && matched.ends_with(&*self.path)
    }

    /// Returns the rank of the match, from 0 for the best, or `None` without a match.
    ///
    /// To the rank of the path, an exact method adds 0, `HEAD` as `GET` 1, and any method 2.
    fn rank(&self, head: &RequestHead<'_>, matched: Option<&str>) -> Option<u8> {
        // A router may match a whole service, and tonic matches nothing.
        let base = if self.grpc && head.path() == &*self.path {
            0
        } else if matched == Some(&*self.path) {
            3
        } else {
            return None;
        };
        match &self.method {
            Some(method) if *method == head.method => Some(base),
            // axum answers `HEAD` with the handler of `GET`.
            Some(method) if *method == Method::GET && head.method == Method::HEAD => Some(base + 1),
            method => (method.is_none() || self.grpc).then_some(base + 2),
        }
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.method {
            Some(method) => write!(f, "{method} {}", self.path),
            None => f.write_str(&self.path),
        }
    }
}

/// Returns the method with this name. The error has the path of the route.
fn known_method(name: &str, path: &str) -> Result<Method, RuleError> {
    let mut methods = METHODS.into_iter();
    methods.find(|known| known == name).ok_or_else(|| {
        let known = METHODS.each_ref().map(Method::as_str).join(", ");
        RuleError::Route(format!(
            "route \"{name} {path}\": method {name:?} is unknown; give one of {known}, or only the path, \
             for every method (any_method)"
        ))
    })
}

/// Returns the reason why no request matches a path, and the fix.
fn path_fault(path: &str) -> Option<&'static str> {
    if !path.starts_with('/') {
        Some("does not start with a slash; add it")
    } else if path.contains(|c: char| c.is_ascii_control()) {
        Some("contains a control character; drop it")
    } else if path.contains([' ', '?', '#']) {
        Some("contains a space, a query or a fragment; drop it")
    } else if path.contains("/:") || path.contains("/*") {
        Some("has a parameter in the syntax of axum 0.7; write {name} or {*name}")
    } else {
        None
    }
}

/// Returns `true` for `/package.Service/Method` and `/package.Service/{*rest}`.
///
/// A service without a package may also be a plain path.
fn is_grpc(path: &str) -> bool {
    let parts = path.strip_prefix('/').and_then(|path| path.split_once('/'));
    let Some((service, method)) = parts else {
        return false;
    };
    let is_name = |name: &str| name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    let is_method = is_name(method) || method.starts_with('{');
    service.contains('.') && service.split('.').all(is_name) && is_method && !method.contains('/')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grpc_paths_have_a_package_a_service_and_a_method() {
        for (path, grpc) in [
            ("/hello.Greeter/SayHello", true),
            ("/grpc.health.v1.Health/{*rest}", true),
            ("/a.b/{method}", true),
            ("/users/list", false),
            ("/v1.0/users", false),
            ("/a..b/c", false),
            ("/a.b", false),
            ("/a.b/c/d", false),
            ("/a.b/", false),
            ("/a.b/{x}/d", false),
        ] {
            assert_eq!(is_grpc(path), grpc, "{path}");
        }
    }
}

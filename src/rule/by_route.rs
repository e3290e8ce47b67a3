//! Separate quotas for each route, with a check for mistakes in the routes.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
};

use axum::extract::MatchedPath;
use http::Method;

use super::{
    Bypass, Plan, Rule, RuleInfo, RuleName, Rules,
    route::{RouteError, RouteTemplate},
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
/// Use `any_method` for a handler that answers several methods, such as `axum::routing::any`.
///
/// # Templates
///
/// Write a template as in the router, including the prefix of nested routers: `/api/url/{id}`. The
/// names of parameters do not matter.
///
/// A gRPC template is `/package.Service/Method` or `/package.Service/{*rest}`. gRPC templates also
/// work without an axum router. For a service without a package, use `any_method`.
///
/// Add the layer with `Router::layer`, because axum matches routes inside the router. A layer
/// around the router charges all requests to the rule `other`.
///
/// The log reports some mistakes in templates. To find others, send one
/// request to each route in a test, and check the `RateLimit` header field.
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
/// Panics if no request can match a route, or if two routes are equal. [`try_by_route`] returns the
/// error.
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
/// let result = try_by_route([(Method::GET, "/url/:id", Quota::per_second(5))], Quota::per_second(9));
/// assert_eq!(
///     result.unwrap_err().to_string(),
///     "route \"/url/:id\": \":id\" is the syntax of axum 0.7; use {id}",
/// );
/// ```
///
/// # Errors
///
/// Fails if two routes have the same method and path, or if no request can match a route. For
/// example, no request matches:
///
/// - a template without a leading slash, with a query, with the syntax of axum 0.7, or with
///   unbalanced braces
/// - a standard method in lower case
pub fn try_by_route<P: AsRef<str>, Q: Into<Plan>>(
    routes: impl IntoIterator<Item = (Method, P, Q)>,
    default: impl Into<Plan>,
) -> Result<ByRoute<Everyone>, RouteError> {
    let mut rules = ByRoute::of(default.into());
    for (method, template, plan) in routes {
        rules.add(RouteTemplate::new(Some(method), template.as_ref())?, plan.into())?;
    }
    Ok(rules)
}

/// Rules created by [`by_route`].
#[derive(Clone, Debug)]
#[must_use]
pub struct ByRoute<K> {
    routes: Vec<(RouteTemplate, Rule<K>)>,
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
        self.add(RouteTemplate::new(None, template.as_ref())?, plan.into())?;
        Ok(self)
    }

    pub(super) fn add(&mut self, route: RouteTemplate, plan: Plan) -> Result<(), RouteError> {
        if let Some((one, _)) = self.routes.iter().find(|(one, _)| one.is_same(&route)) {
            return Err(RouteError::duplicate(one, &route));
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
        let rank =
            |(at, (route, _)): (usize, &(RouteTemplate, _))| Some((route.rank(head, matched)?, at));
        match self.routes.iter().enumerate().filter_map(rank).min() {
            Some((_, at)) => {
                self.check.mark_matched(at);
                &self.routes[at].1
            }
            None => {
                let routes = self.routes.iter().map(|(route, rule)| (route, rule.name));
                self.check.check(head.uri.path(), matched, routes);
                &self.other
            }
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

/// The number of unmatched requests that are checked for a misspelled route.
const SAMPLE: u32 = 100;

/// Detects mistakes in the routes of a `by_route`. Each kind of mistake is logged once.
#[derive(Debug)]
pub(super) struct RouteCheck {
    /// One flag per route, set by its first request.
    matched_routes: Box<[AtomicBool]>,
    unmatched: AtomicBool,
    checked: AtomicU32,
    /// Indexes of routes without requests, each with a similar template of the router.
    similar: Mutex<Vec<(usize, String)>>,
}

impl RouteCheck {
    pub(super) fn new(routes: usize) -> Self {
        Self {
            matched_routes: (0..routes).map(|_| AtomicBool::new(false)).collect(),
            unmatched: AtomicBool::new(false),
            checked: AtomicU32::new(0),
            similar: Mutex::default(),
        }
    }

    #[inline]
    pub(super) fn mark_matched(&self, route: usize) {
        if let Some(flag) = self.matched_routes.get(route).filter(|flag| !flag.load(Relaxed)) {
            flag.store(true, Relaxed);
        }
    }

    /// Checks a request that matches no route of the rule. `matched` is the template of the router.
    #[inline]
    pub(super) fn check<'a>(
        &self,
        path: &str,
        matched: Option<&str>,
        routes: impl Iterator<Item = (&'a RouteTemplate, RuleName)>,
    ) {
        match matched {
            _ if !cfg!(feature = "tracing") => {}
            None if !self.unmatched.load(Relaxed) => self.check_unmatched(path, routes),
            Some(matched) if self.checked.load(Relaxed) < SAMPLE => {
                self.check_similar(matched, routes);
            }
            _ => {}
        }
    }

    /// Logs a warning if a request for the path of a route has no `MatchedPath` extension.
    #[cold]
    fn check_unmatched<'a>(
        &self,
        path: &str,
        mut routes: impl Iterator<Item = (&'a RouteTemplate, RuleName)>,
    ) {
        if let Some((_, rule)) = routes.find(|(route, _)| route.matches_path(path))
            && !self.unmatched.swap(true, Relaxed)
        {
            warn_unmatched(rule);
        }
    }

    #[cold]
    fn check_similar<'a>(
        &self,
        matched: &str,
        routes: impl Iterator<Item = (&'a RouteTemplate, RuleName)>,
    ) {
        let checked = self.checked.fetch_add(1, Relaxed) + 1;
        let Ok(mut similar) = self.similar.lock() else { return };
        let (mut warnings, mut index) = (Vec::new(), 0);
        for (route, rule) in routes {
            let has_matched = self.matched_routes.get(index).is_none_or(|flag| flag.load(Relaxed));
            let known = similar.iter().position(|(known, _)| *known == index);
            if known.is_none() && !has_matched && is_similar(route.template(), matched) {
                similar.push((index, matched.to_owned()));
            }
            if checked == SAMPLE
                && !has_matched
                && let Some((_, matched)) = similar.iter().find(|(known, _)| *known == index)
            {
                warnings.push((rule, matched.clone()));
            }
            index += 1;
        }
        // Log subscribers may run any code, so the lock is released first.
        drop(similar);
        warnings.iter().for_each(|(rule, matched)| warn_similar(*rule, matched));
    }
}

/// Returns `true` if `matched` ends with `template`, ignoring case and final slashes.
fn is_similar(template: &str, matched: &str) -> bool {
    let bare = |path: &str| path.trim_end_matches('/').to_ascii_lowercase();
    let (template, matched) = (bare(template), bare(matched));
    !template.is_empty() && matched.ends_with(&template)
}

fn warn_unmatched(rule: RuleName) {
    warn!(
        target: "tower_sluice::lint",
        lint = "no_matched_path",
        "a request for the path of rule {rule} has no MatchedPath extension, so rule other charges \
         it: add the layer to the Router that has the route, not around it; a Router has \
         no templates for a service added with nest_service"
    );
}

fn warn_similar(rule: RuleName, matched: &str) {
    warn!(
        target: "tower_sluice::lint",
        lint = "route_never_met",
        "rule {rule} matched none of the first requests, and rule other charges requests for \
         {matched:?}: write templates as in the router, with the path they are nested under; \
         ignore this warning if both are routes"
    );
}

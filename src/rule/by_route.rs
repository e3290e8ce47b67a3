//! A quota for each route.

use std::sync::Arc;

use axum::extract::MatchedPath;
use http::{Method, request::Parts};

use super::{
    Aside, Plan, Rule, Rules, Shape,
    route::{Route, RouteError},
    stray::Stray,
};
use crate::{
    key::{Everyone, KeyExtractor},
    store::Charge,
};

/// Gives each route, by method and axum template, quotas of its own, and all other requests
/// together `default`: one layer on one store.
///
/// A route is limited for everybody together; [`each`](ByRoute::each) counts every key apart.
/// Responses carry the policies of the rules that charged the request, and name no other route.
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
/// | a method that the route has quotas for | that route |
/// | `HEAD` | the route's `HEAD`, else its `GET`, since axum answers with the handler of `GET` |
/// | another method | [`any_method`](ByRoute::any_method) of the path, else the rule `other` |
/// | any method to a path of gRPC, `/package.Service/Method` | that route, since servers of gRPC ignore the method |
///
/// A handler that answers several methods, such as one made by `axum::routing::any`, is limited by
/// `any_method`. [`Lint::OtherMethods`](crate::Lint::OtherMethods) reports routes whose other
/// methods have a much looser `other`.
///
/// # Templates
///
/// A template is written as the router has it, with the path it is nested under: `/api/url/{id}`.
/// Names of parameters do not matter. A path of gRPC may name a method, which the router of
/// tonic does not match by itself, or be `/package.Service/{*rest}`. It is compared with the path
/// of the request too, so that it also holds where no axum router is. (A service without a package
/// looks like any other path: limit it by `any_method`.)
///
/// axum sets the matched template inside the `Router`, so the layer is added to it by
/// `Router::layer`. Around a router all requests are charged by `other`; the log says so once
/// (`no_matched_path` in [`lint`](crate::lint)), and also when a template of the router looks like
/// one that has met no request (`route_never_met`). A typo beyond that is not seen: a test that
/// sends one request to each route and reads `RateLimit` finds it.
///
/// # Names
///
/// A rule is called after its route, `POST /url`, and the default `other`. A longer name than 64
/// characters is cut and ends in a hash of the whole; characters that are not printable ASCII are
/// percent-encoded. Routes and quotas from a file are
/// [`RouteSettings`](crate::RateLimitLayer) (feature `serde`).
///
/// # Panics
///
/// When no request could match a route, or two routes are one. [`try_by_route`] returns the error.
#[track_caller]
pub fn by_route<P: AsRef<str>, Q: Into<Plan>>(
    routes: impl IntoIterator<Item = (Method, P, Q)>,
    default: impl Into<Plan>,
) -> ByRoute<Everyone> {
    match try_by_route(routes, default) {
        Ok(rules) => rules,
        Err(wrong) => panic!("{wrong}"),
    }
}

/// [`by_route`] for routes from outside.
///
/// ```
/// use http::Method;
/// use tower_sluice::{Quota, try_by_route};
///
/// let old = try_by_route([(Method::GET, "/url/:id", Quota::per_second(5))], Quota::per_second(9));
/// assert_eq!(
///     old.unwrap_err().to_string(),
///     "route \"/url/:id\": \":id\" is written as for axum 0.7; use {id}",
/// );
/// ```
///
/// # Errors
///
/// When no request could match a route (its template does not start with a slash, has a query, is
/// in the syntax of axum 0.7, or has braces that do not match; its method is in lower case), or
/// two routes have one method and differ in the names of parameters at most.
pub fn try_by_route<P: AsRef<str>, Q: Into<Plan>>(
    routes: impl IntoIterator<Item = (Method, P, Q)>,
    default: impl Into<Plan>,
) -> Result<ByRoute<Everyone>, RouteError> {
    let mut rules = ByRoute::of(default.into());
    for (method, template, plan) in routes {
        rules.add(Route::new(Some(method), template.as_ref())?, plan.into())?;
    }
    Ok(rules)
}

/// The rules of [`by_route`].
#[derive(Clone, Debug)]
#[must_use]
pub struct ByRoute<K> {
    routes: Vec<(Route, Rule<K>)>,
    other: Rule<K>,
    stray: Arc<Stray>,
}

impl ByRoute<Everyone> {
    pub(super) fn of(default: Plan) -> Self {
        let other = Rule::new("other", Everyone, default);
        Self { routes: Vec::new(), other, stray: Arc::new(Stray::new(0)) }
    }
}

impl<K: Clone> ByRoute<K> {
    /// Limits a path whatever the method, where no route of that method is given.
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
    /// As [`by_route`].
    #[track_caller]
    pub fn any_method(self, template: impl AsRef<str>, plan: impl Into<Plan>) -> Self {
        match self.try_any_method(template, plan) {
            Ok(rules) => rules,
            Err(wrong) => panic!("{wrong}"),
        }
    }

    /// [`any_method`](ByRoute::any_method) for a template from outside.
    ///
    /// # Errors
    ///
    /// As [`try_by_route`].
    pub fn try_any_method(
        mut self,
        template: impl AsRef<str>,
        plan: impl Into<Plan>,
    ) -> Result<Self, RouteError> {
        self.add(Route::new(None, template.as_ref())?, plan.into())?;
        Ok(self)
    }

    pub(super) fn add(&mut self, route: Route, plan: Plan) -> Result<(), RouteError> {
        if let Some((one, _)) = self.routes.iter().find(|(one, _)| one.is_as(&route)) {
            return Err(RouteError::twice(one, &route));
        }
        let rule = Rule::named(route.name(), self.other.extractor.clone(), plan);
        self.routes.push((route, rule));
        self.stray = Arc::new(Stray::new(self.routes.len()));
        Ok(())
    }
}

impl<K> ByRoute<K> {
    /// Counts every key of `extractor` apart.
    pub fn each<E: Clone>(self, extractor: E) -> ByRoute<E> {
        let each = |(route, rule)| (route, Rule::with(rule, extractor.clone()));
        ByRoute {
            routes: self.routes.into_iter().map(each).collect(),
            other: self.other.with(extractor.clone()),
            stray: self.stray,
        }
    }

    /// The rule that charges the request with this head.
    fn rule(&self, parts: &Parts) -> &Rule<K> {
        let matched = parts.extensions.get::<MatchedPath>().map(MatchedPath::as_str);
        let rank = |(at, (route, _)): (usize, &(Route, _))| Some((route.rank(parts, matched)?, at));
        match self.routes.iter().enumerate().filter_map(rank).min() {
            Some((_, at)) => {
                self.stray.meet(at);
                &self.routes[at].1
            }
            None => {
                let routes = self.routes.iter().map(|(route, rule)| (route, rule.name));
                self.stray.look(parts.uri.path(), matched, routes);
                &self.other
            }
        }
    }
}

impl<K: KeyExtractor> Rules for ByRoute<K> {
    fn charge(
        &self,
        parts: &Parts,
        before: &[Charge<'_>],
        then: &mut dyn FnMut(&[Charge<'_>]),
    ) -> Result<(), Aside> {
        self.rule(parts).charge(parts, before, then)
    }

    fn describe<'a>(&'a self, shapes: &mut Vec<Shape<'a>>) {
        let all = |route: &Route| {
            let mut beside = self.routes.iter().filter(|(beside, _)| beside.has_path_of(route));
            beside.any(|(beside, _)| beside.takes_all_methods())
        };
        for (route, rule) in &self.routes {
            rule.describe(shapes);
            if let Some(shape) = shapes.last_mut() {
                shape.instead_of = Some(self.other.name);
                shape.leaves_methods = !all(route);
                // `other` has the same extractor, and reports its lints
                shape.key_lints.clear();
            }
        }
        self.other.describe(shapes);
    }
}

//! A quota of its own for each route.

use axum::extract::MatchedPath;
use http::{Method, request::Parts};

use super::{Aside, Quotas, Rule, Rules, Shape};
use crate::{
    key::{Everyone, KeyExtractor},
    store::Charge,
};

/// Gives each route, by method and axum template, a quota of its own, and all others together
/// `default`: one layer on one store.
///
/// The rules are called `POST /url`, and the default `other`. What is limited is the route for
/// everybody together; [`each`](ByRoute::each) counts every key apart.
///
/// ```
/// use http::Method;
/// use tower_sluice::{LocalStore, PeerIp, Quota, RateLimitLayer, by_route};
///
/// let routes = by_route(
///     [
///         (Method::POST, "/url", Quota::per_second(10)),
///         (Method::DELETE, "/url/{id}", Quota::per_minute(5)),
///     ],
///     Quota::per_second(100),
/// );
/// let layer = RateLimitLayer::rules(routes.each(PeerIp::new()), LocalStore::new());
/// ```
///
/// # Panics
///
/// When method and template together are no [`RuleName`](crate::RuleName): longer than 64
/// characters, or not printable ASCII.
#[track_caller]
pub fn by_route<Q: Into<Quotas>>(
    routes: impl IntoIterator<Item = (Method, &'static str, Q)>,
    default: impl Into<Quotas>,
) -> ByRoute<Everyone> {
    let rule = |(method, path, quotas): (Method, &'static str, Q)| {
        let rule = Rule::new(&format!("{method} {path}"), Everyone, quotas.into());
        Route { method, path, rule }
    };
    ByRoute {
        routes: routes.into_iter().map(rule).collect(),
        other: Rule::new("other", Everyone, default.into()),
    }
}

/// The rules of [`by_route`].
#[derive(Clone, Debug)]
#[must_use]
pub struct ByRoute<K> {
    routes: Vec<Route<K>>,
    other: Rule<K>,
}

#[derive(Clone, Debug)]
struct Route<K> {
    method: Method,
    path: &'static str,
    rule: Rule<K>,
}

impl<K> ByRoute<K> {
    /// Counts every key of `extractor` apart.
    pub fn each<E: Clone>(self, extractor: E) -> ByRoute<E> {
        let route = |Route { method, path, rule }| Route {
            method,
            path,
            rule: Rule::with(rule, extractor.clone()),
        };
        ByRoute {
            routes: self.routes.into_iter().map(route).collect(),
            other: self.other.with(extractor.clone()),
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
        let path = parts.extensions.get::<MatchedPath>().map(MatchedPath::as_str);
        let here = |route: &&Route<K>| Some(route.path) == path && route.method == parts.method;
        let rule = self.routes.iter().find(here).map_or(&self.other, |route| &route.rule);
        rule.charge(parts, before, then)
    }

    fn describe<'a>(&'a self, shapes: &mut Vec<Shape<'a>>) {
        let first = shapes.len();
        self.routes.iter().for_each(|route| route.rule.describe(shapes));
        let routes = first..shapes.len();
        self.other.describe(shapes);
        let other = shapes.last().map(|other| other.name);
        for route in &mut shapes[routes] {
            route.instead_of = other;
            // `other` has the same, and says it
            route.key_lints.clear();
        }
    }
}

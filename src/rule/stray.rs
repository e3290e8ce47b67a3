//! Detects requests that no route of `by_route` takes, though one probably should.

use std::sync::{
    Mutex,
    atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
};

use super::route::Route;
use crate::name::RuleName;

/// Requests of the default rule that are compared with the routes.
const FIRST: u32 = 100;

/// Observations about the requests of one `by_route`. Each kind of mistake is logged once.
#[derive(Debug)]
pub(super) struct Stray {
    /// One flag for each route, set by its first request.
    met: Box<[AtomicBool]>,
    unmatched: AtomicBool,
    looked: AtomicU32,
    /// Routes, and templates of the router that look like theirs.
    near: Mutex<Vec<(usize, String)>>,
}

impl Stray {
    pub(super) fn new(routes: usize) -> Self {
        Self {
            met: (0..routes).map(|_| AtomicBool::new(false)).collect(),
            unmatched: AtomicBool::new(false),
            looked: AtomicU32::new(0),
            near: Mutex::default(),
        }
    }

    #[inline]
    pub(super) fn meet(&self, route: usize) {
        if let Some(met) = self.met.get(route).filter(|met| !met.load(Relaxed)) {
            met.store(true, Relaxed);
        }
    }

    /// Looks at a request that no route takes: the router matched another template, or none.
    #[inline]
    pub(super) fn look<'a>(
        &self,
        path: &str,
        matched: Option<&str>,
        routes: impl Iterator<Item = (&'a Route, RuleName)>,
    ) {
        match matched {
            _ if !cfg!(feature = "tracing") => {}
            None if !self.unmatched.load(Relaxed) => self.look_without(path, routes),
            Some(matched) if self.looked.load(Relaxed) < FIRST => self.look_near(matched, routes),
            _ => {}
        }
    }

    /// Logs a path that a router with one of the routes would have matched.
    #[cold]
    fn look_without<'a>(
        &self,
        path: &str,
        mut routes: impl Iterator<Item = (&'a Route, RuleName)>,
    ) {
        if let Some((_, rule)) = routes.find(|(route, _)| route.fits(path))
            && !self.unmatched.swap(true, Relaxed)
        {
            warn_unmatched(rule);
        }
    }

    #[cold]
    fn look_near<'a>(&self, matched: &str, routes: impl Iterator<Item = (&'a Route, RuleName)>) {
        let looked = self.looked.fetch_add(1, Relaxed) + 1;
        let Ok(mut near) = self.near.lock() else { return };
        let (mut said, mut at) = (Vec::new(), 0);
        for (route, rule) in routes {
            let is_met = self.met.get(at).is_none_or(|met| met.load(Relaxed));
            let known = near.iter().position(|(known, _)| *known == at);
            if known.is_none() && !is_met && is_near(route.template(), matched) {
                near.push((at, matched.to_owned()));
            }
            if looked == FIRST
                && !is_met
                && let Some((_, matched)) = near.iter().find(|(known, _)| *known == at)
            {
                said.push((rule, matched.clone()));
            }
            at += 1;
        }
        // a log is others' code
        drop(near);
        said.iter().for_each(|(rule, matched)| warn_near(*rule, matched));
    }
}

/// Returns `true` if the router's template differs from the route's by its case, a slash at the end,
/// or the path it is nested under.
fn is_near(template: &str, matched: &str) -> bool {
    let bare = |path: &str| path.trim_end_matches('/').to_ascii_lowercase();
    let (template, matched) = (bare(template), bare(matched));
    !template.is_empty() && matched.ends_with(&template)
}

#[cfg(feature = "tracing")]
fn warn_unmatched(rule: RuleName) {
    tracing::warn!(
        target: "tower_sluice::lint",
        lint = "no_matched_path",
        "a request for the path of rule {rule} came without a matched path, so that rule other \
         charges it: add the layer to the Router that has the route, not around it; a Router knows \
         no templates of a service that it nests by nest_service"
    );
}

#[cfg(not(feature = "tracing"))]
fn warn_unmatched(_: RuleName) {}

#[cfg(feature = "tracing")]
fn warn_near(rule: RuleName, matched: &str) {
    tracing::warn!(
        target: "tower_sluice::lint",
        lint = "route_never_met",
        "rule {rule} has met none of the first requests, and rule other charges those for \
         {matched:?}: write templates as the router has them, with the path they are nested under; \
         if both are routes, all is well"
    );
}

#[cfg(not(feature = "tracing"))]
fn warn_near(_: RuleName, _: &str) {}

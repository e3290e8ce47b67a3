//! Detects mistakes in the routes of `by_route`.

use std::sync::{
    Mutex,
    atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
};

use super::{RuleName, route::RouteTemplate};
use crate::log::warn;

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

//! Hooks that a layer calls with each decision.

use std::sync::{Arc, Mutex};

use http::StatusCode;
use tower_sluice::{
    Quota, RateLimitLayer,
    fingerprint::FingerprintKey,
    key::{Everyone, HeaderKey},
    middleware::{Counters, DecisionEvent, Overcommit},
};

use crate::support::{answer, get, store, with};

const TWO: Quota = Quota::per_hour(2);

/// The lines that a hook writes, one for each event.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

impl Lines {
    fn hook(&self) -> impl Fn(&DecisionEvent<'_>) + Send + Sync + 'static {
        let lines = self.clone();
        move |event: &DecisionEvent<'_>| {
            let rule = event.rule().map_or("-", |rule| rule.as_str());
            let left = event.decision.ok().and_then(|decision| decision.remaining());
            let left = left.map_or("-".to_owned(), |left| left.to_string());
            let runs = if event.is_admitted { "runs" } else { "rejected" };
            let runs = event.result().map_or(runs.to_owned(), |result| format!("{runs} {result}"));
            let line = format!("{} {runs} {rule} {left}", event.head.path());
            lines.0.lock().expect("no panic").push(line);
        }
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().expect("no panic"))
    }
}

#[tokio::test]
async fn every_hook_is_called_and_the_overage_is_admitted() {
    let (one, other, counters) = (Lines::default(), Lines::default(), Counters::new());
    let layer = RateLimitLayer::new(Everyone, Quota::per_hour(1), store());
    let layer = layer.overcommit(Overcommit::when(|| true));
    let layer = layer.on_decision(one.hook()).on_decision(other.hook());
    let layer = layer.on_decision(counters.clone());
    for _ in 0..2 {
        assert_eq!(answer(&layer, get("/")).await.status(), StatusCode::OK);
    }
    assert_eq!(one.take(), ["/ runs allowed default 0"; 2]);
    assert_eq!(other.take(), ["/ runs allowed default 0"; 2]);
    let counts = counters.snapshot();
    assert_eq!((counts.allowed, counts.overage, counts.denied), (2, 1, 0));
}

#[tokio::test]
async fn a_hook_gets_fingerprints_if_the_layer_has_them() {
    let secret = FingerprintKey::from(*b"sixteen bytes ..");
    let found = Arc::new(Mutex::new(Vec::new()));
    let shown = found.clone();
    let hook = move |event: &DecisionEvent<'_>| {
        shown.lock().expect("no panic").push(event.fingerprint());
    };
    let layer = RateLimitLayer::new(HeaderKey::new("x-user"), TWO, store()).on_decision(hook);
    answer(&layer, with(&[("x-user", "alice")])).await;
    answer(&layer.fingerprint(secret), with(&[("x-user", "alice")])).await;
    let alice = tower_sluice::Key::from("alice").fingerprint(&secret);
    assert_eq!(*found.lock().expect("no panic"), [None, Some(alice)]);
}

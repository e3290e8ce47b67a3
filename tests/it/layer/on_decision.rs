//! Hooks that a layer calls with each decision.

use std::sync::{Arc, Mutex};

use http::StatusCode;
use tower_sluice::{
    Decision, Quota, RateLimitLayer,
    fingerprint::FingerprintKey,
    key::{Everyone, HeaderKey},
    middleware::{Counters, DecisionEvent, Overcommit},
};

use crate::support::{answer, get, store, with};

const TWO: Quota = Quota::per_hour(2);

/// Returns a text with what an event reports.
fn text(event: &DecisionEvent<'_>) -> String {
    let rule = event.rule().map_or("-", |rule| rule.as_str());
    let left = event.decision.ok().and_then(Decision::remaining);
    let runs = if event.is_admitted { "runs" } else { "rejected" };
    format!("{} {runs} {:?} {rule} {left:?}", event.head.path(), event.result())
}

#[tokio::test]
async fn every_hook_is_called_and_the_overage_is_admitted() {
    let (texts, counters) = (Arc::<Mutex<Vec<String>>>::default(), Counters::new());
    let hook = |_| {
        let texts = texts.clone();
        move |event: &DecisionEvent<'_>| texts.lock().expect("no panic").push(text(event))
    };
    let layer = RateLimitLayer::new(Everyone, Quota::per_hour(1), store());
    let layer = layer.overcommit(Overcommit::when(|| true));
    let layer = layer.on_decision(hook(1)).on_decision(hook(2)).on_decision(counters.clone());
    for _ in 0..2 {
        assert_eq!(answer(&layer, get("/")).await.status(), StatusCode::OK);
    }
    let texts = std::mem::take(&mut *texts.lock().expect("no panic"));
    assert_eq!(texts, ["/ runs Some(\"allowed\") default Some(0)"; 4]);
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

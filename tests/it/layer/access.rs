//! Access lists, which are checked before the store: allow, then deny, then limits.

use std::{
    convert::Infallible,
    net::{IpAddr, SocketAddr},
};

use http::{Request, Response, StatusCode};
use tower::{Layer, service_fn};
use tower_sluice::{
    AccessList, ClientIp, Decision, LocalStore, PeerIp, Quota, RateLimitLayer, Rule,
    decision::Source,
    key::{Everyone, HeaderKey, Unreadable},
    middleware::Toggle,
    rule::{Applies, Rules},
    testing::FakeClock,
};

use crate::support::{Strict, answer, ask, driven::Counting, get, with};

const ONE: Quota = Quota::per_hour(1);

fn store() -> Counting<LocalStore> {
    Counting::new(FakeClock::new().store(64))
}

/// Returns a layer with these rules and a counter of its store calls.
fn layer<K: Rules>(rules: K) -> (RateLimitLayer<K, Counting<LocalStore>>, impl Fn() -> usize) {
    let store = store();
    (RateLimitLayer::rules(rules, store.clone()), move || store.takes())
}

fn from(peer: &str) -> Request<()> {
    let address: IpAddr = peer.parse().expect("an address");
    let mut request = get("/");
    request.extensions_mut().insert(SocketAddr::new(address, 4_711));
    request
}

async fn status<K: Rules>(
    layer: &RateLimitLayer<K, Counting<LocalStore>>,
    request: Request<()>,
) -> u16 {
    answer(layer, request).await.status().as_u16()
}

#[tokio::test]
async fn allow_comes_before_deny_and_deny_before_limits_and_only_limits_call_the_store() {
    let has = |name: &'static str| AccessList::from_fn(move |head| head.headers.contains_key(name));
    let (layer, takes) = layer(Rule::new("api", Everyone, ONE));
    let layer = layer.deny(has("x-bad")).allow(has("x-good")).deny(has("x-worse"));
    let (good, bad) = ([("x-good", "1")], [("x-bad", "1")]);
    for _ in 0..3 {
        assert_eq!(status(&layer, with(&good)).await, 200);
        assert_eq!(status(&layer, with(&bad)).await, 403);
        assert_eq!(status(&layer, with(&[("x-worse", "1")])).await, 403);
        assert_eq!(status(&layer, with(&[good[0], bad[0]])).await, 200);
    }
    assert_eq!(takes(), 0);
    assert_eq!(status(&layer, get("/")).await, 200);
    assert_eq!(status(&layer, get("/")).await, 429);
    assert_eq!(status(&layer, with(&good)).await, 200);
    assert_eq!(takes(), 2);
}

#[tokio::test]
async fn a_denied_request_reaches_no_service_and_its_response_has_no_limits() {
    let (layer, _) = layer(Rule::new("api", Everyone, ONE));
    let layer = layer.deny(AccessList::from_fn(|_| true)).expose_decision();
    let inner = Strict::default();
    let calls = inner.calls();
    let mut service = layer.layer(inner);
    let denied = ask(&mut service, get("/")).await;
    assert_eq!((denied.status(), calls()), (StatusCode::FORBIDDEN, 0));
    for name in ["ratelimit", "ratelimit-policy", "retry-after"] {
        assert!(!denied.headers().contains_key(name), "{name}");
    }
}

#[tokio::test]
async fn a_request_that_bypasses_the_store_has_a_decision_without_outcomes() {
    let new = || layer(Rule::new("api", Everyone, ONE)).0.expose_decision();
    let skipped = Rule::new("api", Everyone, ONE).applies(|_| Applies::Skip);
    let denied = new().deny(AccessList::from_fn(|_| true)).report_only(true);
    for layer in [new().allow(AccessList::from_fn(|_| true)), new().enabled(Toggle::off()), denied]
        .into_iter()
        .chain([layer(skipped).0.expose_decision()])
    {
        let seen = |request: Request<()>| async move {
            let decision = request.extensions().get::<Decision>().cloned();
            Ok::<_, Infallible>(Response::new(format!("{:?}", decision.map(|it| it.is_allowed()))))
        };
        let response = ask(&mut layer.layer(service_fn(seen)), get("/")).await;
        assert_eq!(response.body(), "Some(true)");
        let decision = response.extensions().get::<Decision>().expect("a decision");
        assert!(decision.is_allowed() && decision.outcomes().is_empty());
        assert_eq!(decision.source(), Source::Bypass);
    }
}

#[tokio::test]
async fn networks_match_plain_and_mapped_addresses() {
    let networks = ["10.0.0.0/8", "2001:db8:1::/48", "203.0.113.9", "2001:db8:2::7", "::1"];
    let (layer, _) = layer(Rule::new("api", Everyone, Quota::per_hour(1_000)));
    let layer = layer.deny(AccessList::networks(networks).expect("networks"));
    let held = [
        "10.0.0.0",
        "10.255.255.255",
        "::ffff:10.1.2.3",
        "203.0.113.9",
        "::ffff:203.0.113.9",
        "2001:db8:1::",
        "2001:db8:1:ffff:ffff:ffff:ffff:ffff",
        "2001:db8:2::7",
        "::1",
    ];
    for peer in held {
        assert_eq!(status(&layer, from(peer)).await, 403, "{peer}");
    }
    let others = ["9.255.255.255", "11.0.0.0", "203.0.113.8", "::ffff:11.0.0.1"];
    for peer in others.into_iter().chain(["2001:db8:2::", "2001:db8:2::6", "2001:db8::1", "::2"]) {
        assert_eq!(status(&layer, from(peer)).await, 200, "{peer}");
    }
    assert_eq!(status(&layer, get("/")).await, 500, "without a peer nothing is known");
}

#[tokio::test]
async fn a_network_in_mapped_form_matches_the_same_peers() {
    let mapped = AccessList::networks(["::ffff:10.0.0.0/104", "::ffff:203.0.113.9"]);
    let (layer, _) = layer(Rule::new("api", Everyone, Quota::per_hour(1_000)));
    let layer = layer.deny(mapped.expect("networks"));
    for peer in ["10.1.2.3", "::ffff:10.1.2.3", "203.0.113.9"] {
        assert_eq!(status(&layer, from(peer)).await, 403, "{peer}");
    }
    assert_eq!(status(&layer, from("11.1.2.3")).await, 200);
}

#[tokio::test]
async fn lists_of_all_networks_and_of_none_are_valid() {
    let (all, _) = layer(Rule::new("api", Everyone, Quota::per_hour(1_000)));
    let all = all.deny(AccessList::networks(["0.0.0.0/0", "::/0"]).expect("networks"));
    for peer in ["10.1.2.3", "::ffff:10.1.2.3", "2001:db8::1"] {
        assert_eq!(status(&all, from(peer)).await, 403, "{peer}");
    }
    let (none, _) = layer(Rule::new("api", Everyone, Quota::per_hour(1_000)));
    let none = none.deny(AccessList::networks([""; 0]).expect("no networks"));
    assert_eq!(status(&none, from("10.1.2.3")).await, 200);
}

#[test]
fn an_invalid_network_is_named_in_the_error() {
    let bad = ["10.0.0.1/8", "10.0.0.0/33", "2001:db8::/129", "10.0.0/8", "host", "", "10.0.0.0/"];
    for text in bad {
        let error = AccessList::networks(["192.0.2.0/24", text]).expect_err(text).to_string();
        assert!(error.starts_with(&format!("network {text:?} ")), "{error}");
    }
}

#[tokio::test]
async fn lists_match_the_keys_of_the_extractor() {
    let (layer, takes) = layer(Rule::new("api", HeaderKey::new("x-api-key"), ONE));
    let layer = layer
        .allow(AccessList::keys(HeaderKey::new("x-api-key"), ["partner", "monitor"]))
        .deny(AccessList::keys(HeaderKey::new("x-api-key"), ["leaked"]));
    let key = |key| with(&[("x-api-key", key)]);
    for _ in 0..2 {
        assert_eq!(status(&layer, key("partner")).await, 200);
        assert_eq!(status(&layer, key("monitor")).await, 200);
        assert_eq!(status(&layer, key("leaked")).await, 403);
    }
    // without a key a request matches no list, and with two keys it is denied
    assert_eq!(status(&layer, get("/")).await, 400);
    assert_eq!(status(&layer, with(&[("x-api-key", "partner"), ("x-api-key", "x")])).await, 400);
    assert_eq!(takes(), 0);
    assert_eq!(status(&layer, key("other")).await, 200);
    assert_eq!(status(&layer, key("other")).await, 429);
}

#[tokio::test]
async fn a_health_check_passes_without_a_key_or_a_peer() {
    let (layer, takes) = layer(Rule::new("ip", PeerIp::new(), ONE));
    let layer = layer.allow(AccessList::from_fn(|head| head.path() == "/health"));
    for _ in 0..3 {
        assert_eq!(status(&layer, get("/health")).await, 200);
    }
    assert_eq!(status(&layer, get("/")).await, 500);
    assert_eq!(takes(), 0);
}

#[tokio::test]
async fn a_key_sent_twice_is_denied_by_a_deny_list_and_passes_no_allow_list() {
    let listed = || AccessList::keys(HeaderKey::new("x-api-key"), ["listed"]);
    let many = || Rule::new("api", Everyone, Quota::per_hour(1_000));
    let key = |keys: &[&'static str]| {
        with(&keys.iter().map(|key| ("x-api-key", *key)).collect::<Vec<_>>())
    };
    let (deny, asked) = layer(many());
    let deny = deny.deny(listed());
    assert_eq!(status(&deny, key(&["listed"])).await, 403);
    for twice in [["listed", "x"], ["x", "listed"], ["listed", "listed"], ["x", "x"]] {
        assert_eq!(status(&deny, key(&twice)).await, 400, "{twice:?}");
    }
    assert_eq!(asked(), 0);
    for other in [&["x"][..], &[], &[""]] {
        assert_eq!(status(&deny, key(other)).await, 200, "{other:?}");
    }
    let (allow, asked) = layer(many());
    let allow = allow.allow(listed());
    assert_eq!(status(&allow, key(&["listed"])).await, 200);
    assert_eq!(asked(), 0);
    for (n, other) in [&["listed", "x"][..], &["listed", "listed"], &["x"], &[]].iter().enumerate()
    {
        assert_eq!(status(&allow, key(other)).await, 200, "{other:?}");
        assert_eq!(asked(), n + 1, "{other:?} is charged");
    }
}

#[tokio::test]
async fn an_unreadable_client_is_denied_by_a_deny_list_and_passes_no_allow_list() {
    let client = || ClientIp::behind(["10.0.0.7"]).expect("a network");
    let listed =
        |client| AccessList::client_networks(client, ["203.0.113.0/24"]).expect("networks");
    let forwarded = |peer, lines: &[&str]| {
        let mut request = from(peer);
        for line in lines {
            request.headers_mut().append("x-forwarded-for", line.parse().expect("a value"));
        }
        request
    };
    let many = || Rule::new("api", Everyone, Quota::per_hour(1_000));
    let long = format!("203.0.113.9, {}10.0.0.7", "10.0.0.7, ".repeat(40));
    let unreadable = [
        &["203.0.113.9, unknown"][..],
        &["203.0.113.9,"],
        &["203.0.113.9", ""],
        &["203.0.113.9, 300.1.1.1"],
        &[&long],
    ];
    for shared in [false, true] {
        let client = || if shared { client().unreadable(Unreadable::Share) } else { client() };
        let (deny, _) = layer(many());
        let deny = deny.deny(listed(client()));
        assert_eq!(status(&deny, forwarded("10.0.0.7", &["203.0.113.9"])).await, 403);
        assert_eq!(status(&deny, forwarded("203.0.113.9", &[])).await, 403);
        for lines in unreadable {
            assert_eq!(status(&deny, forwarded("10.0.0.7", lines)).await, 400, "{lines:?}");
        }
        assert_eq!(status(&deny, get("/")).await, 500, "no peer");
        for (peer, line) in [("10.0.0.7", "198.51.100.1"), ("198.51.100.1", "203.0.113.9, unknown")]
        {
            assert_eq!(status(&deny, forwarded(peer, &[line])).await, 200, "{line}");
        }
        // entries to the left of the client are not read
        assert_eq!(status(&deny, forwarded("10.0.0.7", &["unknown", "198.51.100.1"])).await, 200);

        let (allow, asked) = layer(many());
        let allow = allow.allow(listed(client()));
        for (n, lines) in unreadable.iter().enumerate() {
            assert_eq!(status(&allow, forwarded("10.0.0.7", lines)).await, 200);
            assert_eq!(asked(), n + 1, "{lines:?} is charged");
        }
    }
    let (hops, _) = layer(many());
    let hops = hops.deny(listed(ClientIp::hops(2)));
    assert_eq!(status(&hops, forwarded("10.0.0.7", &["203.0.113.9, 10.0.0.8"])).await, 403);
    assert_eq!(
        status(&hops, forwarded("10.0.0.7", &["203.0.113.9"])).await,
        400,
        "one hop too few"
    );
}

/// Allow lists are checked first, and a known entry of an allow list is final.
#[tokio::test]
async fn a_match_of_an_allow_list_overrides_an_unreadable_deny_list() {
    let (layer, asked) = layer(Rule::new("api", Everyone, ONE));
    let layer = layer
        .deny(AccessList::networks(["203.0.113.0/24"]).expect("a network"))
        .allow(AccessList::from_fn(|head| head.path() == "/health"));
    assert_eq!(status(&layer, get("/health")).await, 200);
    assert_eq!((status(&layer, get("/")).await, asked()), (500, 0));
    // a report-only layer allows requests that it would deny
    let report = layer.report_only(true);
    assert_eq!(status(&report, get("/")).await, 200);
}

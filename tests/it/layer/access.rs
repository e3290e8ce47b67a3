//! Access lists, which are checked before the store: allow, then deny, then limits.

use std::net::{IpAddr, SocketAddr};

use http::Request;
use tower_sluice::{
    AccessList, ClientIp, LocalStore, Quota, RateLimitLayer, Rule,
    key::{Everyone, HeaderKey, Unreadable},
    rule::Rules,
    testing::FakeClock,
};

use crate::support::{driven::Counting, get, status, with};

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

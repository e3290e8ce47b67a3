//! The client's address behind proxies, for any headers.

use std::net::SocketAddr;

use http::{HeaderName, StatusCode, request::Parts};
use tower_sluice::{
    AccessList, ClientIp, LocalStore, Quota, RateLimitLayer, Rule, key::Unreadable,
    middleware::Counters, rule::OnMissingKey,
};

use crate::support::{answer, get};

const LIST: &str = "x-forwarded-for";
const REAL: HeaderName = HeaderName::from_static("x-real-ip");

/// Trusts proxies of both address families.
fn proxies() -> ClientIp {
    ClientIp::behind(["10.0.0.0/8", "2001:db8:5::/48"]).expect("networks")
}

fn request(peer: &str, name: &str, lines: &[&str]) -> Parts {
    let mut parts = get("/").into_parts().0;
    if !peer.is_empty() {
        parts.extensions.insert::<SocketAddr>(peer.parse().expect("a peer"));
    }
    let name: HeaderName = name.parse().expect("a name");
    for line in lines {
        parts.headers.append(&name, line.parse().expect("a value"));
    }
    parts
}

/// Returns the address that is counted, or the error.
fn client(of: &ClientIp, peer: &str, name: &str, lines: &[&str]) -> String {
    let found = of.address(&request(peer, name, lines));
    found.map_or_else(|error| format!("{}: {error}", error.status()), |found| found.to_string())
}

fn listed(lines: &[&str]) -> String {
    client(&proxies(), "10.0.0.1:80", LIST, lines)
}

#[test]
fn an_untrusted_peer_is_the_client_regardless_of_its_headers() {
    for lines in [&["198.51.100.7"][..], &["10.0.0.2"], &["garbage"], &[]] {
        assert_eq!(client(&proxies(), "203.0.113.9:80", LIST, lines), "203.0.113.9");
        assert_eq!(client(&proxies(), "[::ffff:203.0.113.9]:80", LIST, lines), "203.0.113.9");
    }
}

#[test]
fn the_first_untrusted_entry_from_the_right_is_the_client() {
    assert_eq!(listed(&["203.0.113.9"]), "203.0.113.9");
    assert_eq!(listed(&["198.51.100.7, 203.0.113.9"]), "203.0.113.9", "spoofed");
    assert_eq!(listed(&["198.51.100.7, 203.0.113.9, 10.0.0.2, 10.9.9.9"]), "203.0.113.9");
    assert_eq!(listed(&["198.51.100.7", "203.0.113.9,10.0.0.2"]), "203.0.113.9", "two lines");
    assert_eq!(listed(&["203.0.113.9", "10.0.0.2"]), "203.0.113.9");
    assert_eq!(listed(&["203.0.113.9, [::ffff:10.0.0.2]:80, 2001:db8:5::1"]), "203.0.113.9");
    assert_eq!(listed(&["nonsense, \"x, 203.0.113.9:4711"]), "203.0.113.9");
}

#[test]
fn if_all_are_trusted_the_client_is_the_leftmost_entry_or_else_the_peer() {
    assert_eq!(listed(&["10.0.0.3, 10.0.0.2"]), "10.0.0.3");
    assert_eq!(listed(&[]), "10.0.0.1");
}

#[test]
fn an_invalid_entry_that_is_read_is_an_error_and_not_the_proxy() {
    let wrong = "400 Bad Request: header x-forwarded-for has an entry without a valid address";
    for lines in [
        &["unknown"][..],
        &[""],
        &[","],
        &["203.0.113.9,"],
        &["203.0.113.9", ""],
        &["203.0.113.9, _hidden, 10.0.0.2"],
        &["203.0.113.9, 010.0.0.1"],
        &["\"203.0.113.9\""],
    ] {
        assert_eq!(listed(lines), wrong, "{lines:?}");
    }
    let long = "400 Bad Request: header x-forwarded-for names more than 32 proxies, or is too long";
    assert_eq!(listed(&[&format!("203.0.113.9{}", ", 10.0.0.2".repeat(32))]), long);
    assert_eq!(listed(&[&format!("203.0.113.9{}", ", 10.0.0.2".repeat(31))]), "203.0.113.9");
    let blank = " ".repeat(5_000);
    assert_eq!(listed(&[&format!("203.0.113.9,{blank}10.0.0.2")]), long);
}

#[test]
fn forwarded_is_read_only_if_chosen() {
    let forwarded = proxies().forwarded();
    let read = |lines: &[&str]| client(&forwarded, "10.0.0.1:80", "forwarded", lines);
    assert_eq!(read(&["for=203.0.113.9;proto=https"]), "203.0.113.9");
    assert_eq!(read(&["for=\"[2001:db8::1]:443\", For=10.0.0.2"]), "2001:db8::1");
    for open in ["for=\"", "for=\"198.51.100.7", "a=\"b, for=198.51.100.7", ";;=,=\"", "\""] {
        let wrong = "400 Bad Request: header forwarded has a quoted string that does not end";
        assert_eq!(read(&[&format!("{open}, for=203.0.113.9")]), wrong, "{open}");
        assert_eq!(read(&[open, "for=203.0.113.9"]), "203.0.113.9", "not reached: {open}");
        assert_eq!(read(&[open, "for=10.0.0.2"]), wrong, "reached: {open}");
    }
    for left in
        ["unknown", "for", "a\\b", "x\"y\"z", "for=\"a,b\"", ";;=,=", "for=1.2.3.4;for=5.6.7.8"]
    {
        assert_eq!(read(&[&format!("{left}, for=203.0.113.9")]), "203.0.113.9", "{left}");
    }
    for garbage in ["for=unknown", "for=_gazonk", "proto=https", "for=\"203.0.113.9", ""] {
        assert!(read(&[garbage]).starts_with("400"), "{garbage}");
    }
    // only one of the two headers is read: a client could send the one that the proxies do not set
    assert_eq!(client(&forwarded, "10.0.0.1:80", LIST, &["198.51.100.7"]), "10.0.0.1");
    assert_eq!(client(&proxies(), "10.0.0.1:80", "forwarded", &["for=198.51.100.7"]), "10.0.0.1");
}

/// `Host: a,for=6.6.6.6;x=` is legal, and correct proxies quote it.
#[test]
fn quoted_text_is_not_read_as_an_element() {
    let forwarded = proxies().forwarded();
    let read = |line: &str| client(&forwarded, "10.0.0.1:80", "forwarded", &[line]);
    for element in [
        r#"for=203.0.113.9;proto=http;host="a,for=6.6.6.6;x=""#,
        r#"for=203.0.113.9;host=",for=6.6.6.6""#,
        r#"host=";for=6.6.6.6;x=";for=203.0.113.9"#,
        r#"host="a\",for=6.6.6.6;x=\"";for="203.0.113.9""#,
        r#"for="\2\0\3.0.113.9\:80";host="\\\",for=6.6.6.6""#,
        r#"for=203.0.113.9;host="\\";by=_x"#,
    ] {
        assert_eq!(read(element), "203.0.113.9", "{element}");
        assert_eq!(read(&format!("for=6.6.6.6, {element}, for=10.0.0.2")), "203.0.113.9");
    }
}

#[test]
fn an_element_that_is_not_valid_as_a_whole_is_an_error() {
    let forwarded = proxies().forwarded();
    let read = |line: &str| client(&forwarded, "10.0.0.1:80", "forwarded", &[line]);
    for element in [
        r#"for=203.0.113.9;host="a"b"#,
        r#"for=203.0.113.9;host=a"b""#,
        r#"for=203.0.113.9;host=a\b"#,
        r#"for=203.0.113.9;"host"=a"#,
        "for=203.0.113.9;host",
        "for=203.0.113.9;ho st=a",
        "for=203.0.113.9;=a",
    ] {
        assert!(read(element).starts_with("400"), "{element}");
        assert!(read(&format!("for=6.6.6.6, {element}, for=10.0.0.2")).starts_with("400"));
    }
}

#[test]
fn a_request_without_the_header_counts_as_the_proxy_or_is_rejected() {
    let strict = || proxies().reject_without_header(StatusCode::FORBIDDEN);
    let read = |of: &ClientIp, peer, lines: &[&str]| client(of, peer, LIST, lines);
    assert_eq!(read(&proxies(), "10.0.0.1:80", &[]), "10.0.0.1");
    let wrong = "403 Forbidden: no header x-forwarded-for from a trusted proxy";
    assert_eq!(read(&strict(), "10.0.0.1:80", &[]), wrong);
    assert_eq!(read(&strict(), "10.0.0.1:80", &["10.0.0.3"]), "10.0.0.3", "it is there");
    assert_eq!(read(&strict(), "203.0.113.9:80", &[]), "203.0.113.9", "no proxy");
    let real = strict().header(REAL);
    let wrong = "403 Forbidden: no header x-real-ip from a trusted proxy";
    assert_eq!(read(&real, "10.0.0.1:80", &["203.0.113.9"]), wrong);
    let any = ClientIp::behind_any_peer_dangerous();
    assert_eq!(read(&any, "10.0.0.1:80", &[]), "10.0.0.1");
    let any = any.reject_without_header(StatusCode::BAD_REQUEST);
    assert!(read(&any, "10.0.0.1:80", &[]).starts_with("400 Bad Request: no header"));
    let error = strict().address(&request("10.0.0.1:80", LIST, &[])).expect_err("rejected");
    assert!(!error.is_missing(), "no policy for missing identities lets it pass");
}

#[test]
fn a_single_header_holds_one_address_once() {
    let real = proxies().header(REAL);
    let read = |lines: &[&str]| client(&real, "10.0.0.1:80", REAL.as_str(), lines);
    assert_eq!(read(&[" 203.0.113.9 "]), "203.0.113.9");
    assert_eq!(read(&["10.0.0.5"]), "10.0.0.5", "it is the client, trusted or not");
    assert!(
        read(&["203.0.113.9", "203.0.113.9"]).ends_with("header x-real-ip is sent more than once")
    );
    assert!(read(&["198.51.100.7, 203.0.113.9"]).starts_with("400"));
    assert!(read(&[""]).starts_with("400"));
    assert_eq!(client(&real, "10.0.0.1:80", LIST, &["198.51.100.7"]), "10.0.0.1", "not read");
    assert_eq!(client(&proxies(), "10.0.0.1:80", REAL.as_str(), &["198.51.100.7"]), "10.0.0.1");
}

#[test]
fn hops_are_counted_from_the_right_without_a_peer() {
    let lines = ["198.51.100.7, 203.0.113.9", "10.0.0.2"];
    assert_eq!(client(&ClientIp::hops(1), "", LIST, &lines), "10.0.0.2");
    assert_eq!(client(&ClientIp::hops(2), "", LIST, &lines), "203.0.113.9");
    assert_eq!(client(&ClientIp::hops(3), "192.0.2.1:80", LIST, &lines), "198.51.100.7");
    let missing = "400 Bad Request: missing client's address in x-forwarded-for";
    assert_eq!(client(&ClientIp::hops(4), "192.0.2.1:80", LIST, &lines), missing);
    for blank in [&[][..], &[""], &[" \t"], &["", " "]] {
        assert_eq!(client(&ClientIp::hops(1), "192.0.2.1:80", LIST, blank), missing);
    }
    let garbage = client(&ClientIp::hops(2), "", LIST, &["203.0.113.9, unknown"]);
    assert!(garbage.starts_with("400"), "no step over it: {garbage}");
    let real = ClientIp::hops(3).header(REAL);
    assert_eq!(client(&real, "", REAL.as_str(), &["203.0.113.9"]), "203.0.113.9");
}

#[test]
fn behind_any_peer_the_leftmost_is_the_client() {
    let any = ClientIp::behind_any_peer_dangerous();
    let read = |lines: &[&str]| client(&any, "192.0.2.1:80", LIST, lines);
    assert_eq!(read(&["198.51.100.7, 203.0.113.9"]), "198.51.100.7");
    assert_eq!(read(&[]), "192.0.2.1");
    assert!(read(&["198.51.100.7, unknown, 203.0.113.9"]).starts_with("400"));
    assert!(client(&any, "", LIST, &[]).starts_with("500"), "no peer address");
}

#[tokio::test]
async fn an_unreadable_client_is_handled_by_its_own_policy() {
    let quota = Quota::per_minute(2);
    let unkeyed = |status: &&u16| ![200, 429].contains(*status);
    let statuses = async |of: ClientIp, line: &str| {
        // the policy for a missing key does not apply
        let rule = Rule::new("client", of, quota).on_missing_key(OnMissingKey::Skip);
        let counters = Counters::new();
        let layer = RateLimitLayer::rules(rule, LocalStore::new()).on_decision(counters.clone());
        let mut statuses = Vec::new();
        for _ in 0..3 {
            let request = http::Request::from_parts(request("10.0.0.1:80", LIST, &[line]), ());
            statuses.push(answer(&layer, request).await.status().as_u16());
        }
        assert_eq!(counters.snapshot().unkeyed, statuses.iter().filter(unkeyed).count() as u64);
        statuses
    };
    assert_eq!(statuses(proxies(), "unknown").await, [400, 400, 400]);
    let teapot = proxies().unreadable(Unreadable::Reject(StatusCode::IM_A_TEAPOT));
    assert_eq!(statuses(teapot, "unknown").await, [418, 418, 418]);
    let share = proxies().unreadable(Unreadable::Share);
    assert_eq!(statuses(share.clone(), "unknown").await, [200, 200, 429]);
    assert_eq!(statuses(share, "203.0.113.9").await, [200, 200, 429]);
    assert_eq!(statuses(ClientIp::hops(2), "203.0.113.9").await, [200, 200, 200], "missing: skip");
}

#[tokio::test]
async fn an_access_list_can_match_the_client_address() {
    let layer = RateLimitLayer::new(proxies(), Quota::blocked(), LocalStore::new());
    let list = |networks| AccessList::client_networks(proxies(), [networks]).expect("a network");
    let layer = layer.allow(list("203.0.113.0/24"));
    for (line, status) in [("203.0.113.9", 200), ("198.51.100.7", 403), ("unknown", 400)] {
        let request = http::Request::from_parts(request("10.0.0.1:80", LIST, &[line]), ());
        assert_eq!(answer(&layer, request).await.status(), status, "{line}");
    }
}

//! Clients behind a trusted proxy, 10.0.0.1, that appends the address of its caller.

use http::{HeaderName, HeaderValue, Request, StatusCode};
use proptest::prelude::*;
use tower_sluice::{AccessList, ClientIp};

use super::{Layer, from, ip, statuses, three, v4};

const FOR: &str = "x-forwarded-for";
const REAL: &str = "x-real-ip";
const FORWARDED: &str = "forwarded";
const ATTACKER: &str = "203.0.113.9";
const VICTIM: &str = "198.51.100.7";
const REQUESTS: u32 = 1_000;
/// Responses to the requests of one client.
const HELD: [(u16, usize); 2] = [(200, 3), (429, 997)];

fn behind() -> ClientIp {
    ClientIp::behind(["10.0.0.0/8"]).expect("a network")
}

fn proxied(lines: &[(&str, &str)]) -> Request<()> {
    from(ip("10.0.0.1"), lines)
}

/// Counts the responses to the attacker's requests. Each request has lines with another invented
/// address.
async fn attacked<const N: usize>(
    layer: &Layer<ClientIp>,
    lines: impl Fn(String) -> [(&'static str, String); N],
) -> Vec<(u16, usize)> {
    let requests = (0..REQUESTS).map(|n| {
        let lines = lines(v4(n).to_string());
        proxied(&lines.each_ref().map(|(name, value)| (*name, value.as_str())))
    });
    statuses(layer, requests).await
}

/// tollbooth and chi's httprate (2022) took the leftmost entry as the client. So did
/// adorsys/status-list-server #238 and everruns #2643 (2026), through an extractor that tries
/// several headers in turn.
#[tokio::test]
async fn ten_thousand_spoofed_entries_share_one_account() {
    let layer = three(behind());
    let spoofed = (0..10_000).map(|n| proxied(&[(FOR, &format!("{}, {ATTACKER}", v4(n)))]));
    assert_eq!(statuses(&layer, spoofed).await, [(200, 3), (429, 9_997)]);
    let more = attacked(&layer, |left| [(FOR, format!("{left}, {left}, 10.0.0.9, {ATTACKER}"))]);
    assert_eq!(more.await, [(429, 1_000)]);
    let past = (0..REQUESTS).map(|n| from(ip(VICTIM), &[(FOR, &v4(n).to_string())]));
    assert_eq!(statuses(&three(behind()), past).await, HELD, "sent past the proxy");
}

#[tokio::test]
async fn a_spoofed_address_does_not_charge_its_owner() {
    let layer = three(behind());
    for named in [format!("{VICTIM}, {ATTACKER}"), format!("10.0.0.1,{VICTIM},{ATTACKER}")] {
        statuses(&layer, (0..10).map(|_| proxied(&[(FOR, &named)]))).await;
    }
    let past = || from(ip(ATTACKER), &[(FOR, VICTIM)]);
    assert_eq!(
        statuses(&layer, [past()]).await,
        [(429, 1)],
        "without the proxy the peer is the client"
    );
    let victim = (0..3).map(|_| proxied(&[(FOR, VICTIM)]));
    assert_eq!(statuses(&layer, victim).await, [(200, 3)]);
}

#[tokio::test]
async fn lines_before_that_of_the_proxy_are_ignored() {
    let lines = |left| [(FOR, left), (FOR, ATTACKER.to_owned())];
    assert_eq!(attacked(&three(behind()), lines).await, HELD);
    let lines = |left: String| [(FOR, left.clone()), (FOR, left), (FOR, format!("{ATTACKER}:80"))];
    assert_eq!(attacked(&three(behind()), lines).await, HELD);
}

/// CVE-2026-46415 (Caddy Defender before 0.10.1), and the address part of GHSA-fq34-xw6c-fphf
/// (Fides before 2.69.1): the proxy was counted, so that one client used up the limit of all
/// clients. The other part, counters in each process, is covered by `tests/servers/exact.rs`.
#[tokio::test]
async fn clients_behind_a_proxy_have_separate_accounts() {
    for proxies in ["", ", 10.0.0.2", ", 10.0.0.2, [::ffff:10.0.0.3]:80"] {
        for peer in ["10.0.0.1", "::ffff:10.0.0.1"] {
            let layer = three(behind());
            let client = |n: u32| format!("{}{proxies}", v4(n));
            let requests = (0..3_000).map(|n| from(ip(peer), &[(FOR, &client(n % 1_000))]));
            assert_eq!(statuses(&layer, requests).await, [(200, 3_000)], "{peer}{proxies}");
            assert_eq!(statuses(&layer, [from(ip(peer), &[(FOR, &client(7))])]).await, [(429, 1)]);
        }
    }
}

#[tokio::test]
async fn ports_and_brackets_are_read() {
    let layer = three(behind());
    let ported = attacked(&layer, |left| [(FOR, format!("{left}, {ATTACKER}:4711"))]).await;
    assert_eq!(ported, HELD);
    let clients = (0..1_000).map(|n| proxied(&[(FOR, &format!("[2001:db8:{n:x}::1]:443"))]));
    assert_eq!(statuses(&layer, clients).await, [(200, 1_000)]);
}

#[tokio::test]
async fn garbage_is_rejected_and_not_charged() {
    let layer = three(behind());
    for garbage in ["unknown", "", "_hidden", "010.0.0.1", "1.2.3", "0x7f.1", ","] {
        let reached = [garbage.to_owned(), format!("{VICTIM}, {garbage}")];
        let requests = reached.iter().map(|line| proxied(&[(FOR, line)]));
        assert_eq!(statuses(&layer, requests).await, [(400, 2)], "{garbage:?}");
    }
    let itself = (0..3).map(|_| proxied(&[]));
    assert_eq!(statuses(&layer, itself).await, [(200, 3)], "the proxy's own account");
    assert_eq!(statuses(&layer, [proxied(&[(FOR, VICTIM)])]).await, [(200, 1)]);
    let left = attacked(&layer, |left| [(FOR, format!("unknown {left}, , {ATTACKER}"))]).await;
    assert_eq!(left, HELD, "entries that are not read do not matter");
}

#[tokio::test]
async fn an_open_quote_does_not_hide_the_client() {
    let layer = three(behind().forwarded());
    for sabotage in ["for=\"", "a=\"b, for=198.51.100.7", ";;=,=\"", "for=\"\\", "\"for=x"] {
        let one = || proxied(&[(FORWARDED, &format!("{sabotage}, for={ATTACKER}"))]);
        assert_eq!(statuses(&layer, [one(), one()]).await, [(400, 2)], "{sabotage}");
        let two = || proxied(&[(FORWARDED, sabotage), (FORWARDED, &format!("for={ATTACKER}"))]);
        assert_eq!(statuses(&layer, [two()]).await.len(), 1, "{sabotage}");
    }
    let quoted =
        |left| [(FORWARDED, format!("for=\"{left}")), (FORWARDED, format!("for={ATTACKER}"))];
    assert_eq!(attacked(&layer, quoted).await, [(429, 1_000)], "in a line of its own");
    let quoted = |left| [(FORWARDED, format!("for=\"{left}, for={ATTACKER}"))];
    assert_eq!(attacked(&layer, quoted).await, [(400, 1_000)], "its sender's own fault");
    let victim = (0..3).map(|_| proxied(&[(FORWARDED, &format!("for={VICTIM}"))]));
    assert_eq!(statuses(&layer, victim).await, [(200, 3)]);
}

/// Quotes a text as a correct proxy does.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

/// `Host` may contain commas, semicolons and equals signs, and the client chooses it.
#[tokio::test]
async fn a_host_that_looks_like_an_element_is_not_read_as_one() {
    for host in [
        "a,for={};x=",
        ",for={}",
        ";for={};x=",
        "\",for={};x=\"",
        "\\\",for={},x=\"",
        "a, for=\"{}\"",
        "\\",
    ] {
        let layer = three(behind().forwarded());
        let own =
            |left: String| format!("for={ATTACKER};host={}", quoted(&host.replace("{}", &left)));
        let alone = attacked(&layer, |left| [(FORWARDED, own(left))]);
        assert_eq!(alone.await, HELD, "{host}");
        let behind = |left: String| [(FORWARDED, format!("for=\"{left}\", {}", own(left.clone())))];
        assert_eq!(attacked(&layer, behind).await, [(429, 1_000)], "{host}");
    }
}

/// An open quote swaps quoted and unquoted text in the part that the proxy appends.
#[tokio::test]
async fn a_quote_that_shifts_the_element_of_the_proxy_is_an_error() {
    for host in [",for={};x=", ",for={};x=\"", ",for={},\"", ",for={};x=\\", ",for={},x=\",\""] {
        let layer = three(behind().forwarded());
        let own =
            |left: String| format!("for={ATTACKER};host={}", quoted(&host.replace("{}", &left)));
        for open in ["a=\"", "\"", "a=\"\\", "for=\"x\";a=\""] {
            for more in ["", ";by=\"_x\"", ";by=\"_x\";proto=\"http\""] {
                let shifted = (0..9).map(|n| {
                    let line = format!("{open}, {}{more}", own(v4(n).to_string()));
                    proxied(&[(FORWARDED, &line)])
                });
                assert_eq!(statuses(&layer, shifted).await, [(400, 9)], "{open} {host} {more}");
            }
        }
    }
}

/// A client that names the header in `connection` makes some proxies drop it. The request then
/// counts as one from the proxy, or from the inner one of two proxies.
#[tokio::test]
async fn a_dropped_header_does_not_pass_an_allow_list() {
    let within =
        |networks: &[&str]| AccessList::client_networks(behind(), networks).expect("networks");
    let allowing = three(behind()).allow(within(&["10.0.0.0/8"]));
    let dropped = || (0..REQUESTS).map(|_| proxied(&[]));
    assert_eq!(statuses(&allowing, dropped()).await, HELD, "it shares the proxy's account");
    let inner = || (0..REQUESTS).map(|_| proxied(&[(FOR, "10.0.0.2")]));
    assert_eq!(statuses(&allowing, inner()).await, HELD, "and that of the inner one of two");
    let denying = three(behind()).deny(within(&["10.0.0.0/8"]));
    assert_eq!(statuses(&denying, dropped()).await, [(403, 1_000)], "a deny list holds it");
    let elsewhere = three(behind()).deny(within(&["198.51.100.0/24"]));
    assert_eq!(
        statuses(&elsewhere, dropped()).await,
        HELD,
        "requests of the proxy are on no other list"
    );
    let strict = behind().reject_without_header(StatusCode::BAD_REQUEST);
    assert_eq!(statuses(&three(strict), dropped()).await, [(400, 1_000)]);

    // a client with a known address on the list passes
    let office = ClientIp::behind(["10.0.0.0/24"]).expect("a network");
    let list = AccessList::client_networks(office.clone(), ["10.1.0.0/16"]).expect("networks");
    let layer = three(office).allow(list);
    let known = (0..REQUESTS).map(|_| proxied(&[(FOR, "10.1.0.7")]));
    assert_eq!(statuses(&layer, known).await, [(200, 1_000)]);
    let direct = (0..REQUESTS).map(|_| from(ip("10.1.0.7"), &[]));
    assert_eq!(statuses(&layer, direct).await, [(200, 1_000)], "without a proxy, too");
}

fn line() -> impl Strategy<Value = Vec<u8>> {
    let special = proptest::sample::select(b"\"\\,;=:[] \tfor1.%".to_vec());
    let byte = prop_oneof![special, b' '..=b'~', 0x80_u8..];
    proptest::collection::vec(byte, 0..100)
}

proptest! {
    #![proptest_config(crate::support::regressions::keeping(file!()))]

    #[test]
    fn the_entry_of_the_proxy_is_the_client_regardless_of_text_before_it(
        lines in proptest::collection::vec(line(), 0..3),
        left in line(),
        host in line(),
    ) {
        let host = String::from_utf8_lossy(&host).into_owned();
        let element = format!(",for={ATTACKER};host={};proto=https", quoted(&host));
        for (name, client, own) in [
            (FOR, behind(), format!(",{ATTACKER}")),
            (FORWARDED, behind().forwarded(), element.clone()),
            (FORWARDED, behind().forwarded(), format!("{element},for=\"10.0.0.2\"")),
        ] {
            let mut parts = proxied(&[]).into_parts().0;
            let last = [&*left, own.as_bytes()].concat();
            for line in lines.iter().chain([&last]) {
                parts.headers.append(name, HeaderValue::from_bytes(line).expect("a value"));
            }
            match client.address(&parts) {
                // an open quote before the proxy's element of `Forwarded` is an error
                Err(error) if name == FORWARDED && left.contains(&b'"') => {
                    prop_assert_eq!(error.status(), 400);
                }
                found => prop_assert_eq!(found, Ok(ip(ATTACKER))),
            }
        }
    }
}

#[tokio::test]
async fn only_the_header_of_the_proxy_is_read() {
    let other = |name, own: &'static str, wrote: &'static str| {
        move |spoofed: String| [(name, spoofed), (own, wrote.to_owned())]
    };
    for name in [REAL, "true-client-ip", "cf-connecting-ip", "x-client-ip"] {
        let spoofed = attacked(&three(behind()), other(name, FOR, ATTACKER)).await;
        assert_eq!(spoofed, HELD, "{name}");
    }
    let forwarded = |spoofed| [(FORWARDED, format!("for={spoofed}")), (FOR, ATTACKER.to_owned())];
    assert_eq!(attacked(&three(behind()), forwarded).await, HELD);
    let layer = three(behind().forwarded());
    assert_eq!(attacked(&layer, other(FOR, FORWARDED, "for=203.0.113.9")).await, HELD);
    let real = || three(behind().header(HeaderName::from_static(REAL)));
    assert_eq!(attacked(&real(), other(FOR, REAL, ATTACKER)).await, HELD);
    let twice = attacked(&real(), other(REAL, REAL, ATTACKER)).await;
    assert_eq!(twice, [(400, 1_000)], "a proxy that appends is set up wrongly");
    let none = attacked(&three(behind()), |spoofed| [(REAL, spoofed)]).await;
    assert_eq!(
        none, HELD,
        "without its header the proxy is the client, not the entry of another header"
    );
}

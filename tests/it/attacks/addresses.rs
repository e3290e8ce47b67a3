//! Clients that connect directly to the server, without a proxy.

use std::net::Ipv6Addr;

use tower_sluice::{LocalStore, PeerIp, Quota, RateLimitLayer, Rule};

use super::{THREE, from, ip, statuses, three, v4};

/// CVE-2026-45364 (Better Auth before 1.4.17), and Nextcloud until 2021: the key was the whole IPv6
/// address as text. A customer's /64 had 2^64 accounts, and each spelling had its own account.
#[tokio::test]
async fn ten_thousand_addresses_of_one_64_share_one_account() {
    let address = |n: u32| Ipv6Addr::from_bits((0x2001_0db8 << 96) + (u128::from(n) << 32));
    let layer = three(PeerIp::new());
    let requests = (0..10_000).map(|n| from(address(n), &[]));
    assert_eq!(statuses(&layer, requests).await, [(200, 3), (429, 9_997)]);
    let spellings = ["2001:db8::1", "2001:DB8::0001", "2001:0db8:0:0::1", "2001:db8::0.0.0.1"];
    let requests = spellings.map(|text| from(ip(text), &[]));
    assert_eq!(statuses(&layer, requests).await, [(429, 4)]);
    assert_eq!(statuses(&layer, [from(ip("2001:db8:0:1::1"), &[])]).await, [(200, 1)]);
}

/// A business or a hosting customer usually has a /48: 65 536 networks of /64.
#[tokio::test]
async fn a_48_has_65_536_accounts_by_64_and_one_by_48() {
    let address = |n: u32| Ipv6Addr::from_bits((0x2001_0db8_0001 << 80) + (u128::from(n) << 64));
    let requests = || (0..65_536).map(|n| from(address(n), &[]));
    let alone = three(PeerIp::new());
    assert_eq!(statuses(&alone, requests()).await, [(200, 65_536)]);
    assert_eq!(statuses(&alone, [from(address(65_536), &[])]).await, [(200, 1)], "the next site");

    let client = Rule::new("client", PeerIp::new(), THREE);
    let site = Rule::new("site", PeerIp::new().ipv6_prefix(48), Quota::per_day(100));
    let both = RateLimitLayer::rules((client, site), LocalStore::new());
    assert_eq!(statuses(&both, requests()).await, [(200, 100), (429, 65_436)]);
    let next = (0..4).map(|_| from(address(65_536), &[]));
    assert_eq!(statuses(&both, next).await, [(200, 3), (429, 1)], "the next site");
    let v4 = (0..1_000).map(|n| from(v4(n), &[]));
    assert_eq!(statuses(&both, v4).await, [(200, 1_000)], "IPv4 addresses share nothing");
    let alone = three(PeerIp::new().ipv6_prefix(48));
    let same = (0..4).map(|_| from(ip("203.0.113.9"), &[]));
    assert_eq!(statuses(&alone, same).await, [(200, 3), (429, 1)], "and are limited by it alone");
}

/// CVE-2026-30827 (GHSA-46wh-pxpv-q5gq, express-rate-limit 8.0 to 8.2.1): IPv4-mapped addresses
/// were masked as IPv6, which put all of IPv4 into one account.
#[tokio::test]
async fn a_mapped_address_has_the_account_of_its_ipv4_address() {
    let layer = three(PeerIp::new());
    let clients = (0..1_000).map(|n| from(v4(n).to_ipv6_mapped(), &[]));
    assert_eq!(statuses(&layer, clients).await, [(200, 1_000)]);
    let plain = || (0..2_000).map(|n| from(v4(n % 1_000), &[]));
    assert_eq!(statuses(&layer, plain()).await, [(200, 2_000)]);
    assert_eq!(statuses(&layer, plain()).await, [(429, 2_000)]);
    let narrow = three(PeerIp::new().ipv6_prefix(32));
    let clients = (0..1_000).map(|n| from(v4(n).to_ipv6_mapped(), &[]));
    assert_eq!(statuses(&narrow, clients).await, [(200, 1_000)], "for any prefix length");
}

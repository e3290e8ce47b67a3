//! Known attacks on rate limiters, run against the layer.
//!
//! No attack may bypass the limit or stop the service. `benches/peers/` runs the attacks against other
//! crates.
//!
//! | # | attack | held by |
//! |---|---|---|
//! | 1 | rotating left entries of `X-Forwarded-For` | `proxies::ten_thousand_spoofed_entries_share_one_account` |
//! | 2 | a victim's address in `X-Forwarded-For` | `proxies::a_spoofed_address_does_not_charge_its_owner` |
//! | 3 | two `X-Forwarded-For` lines | `proxies::lines_before_that_of_the_proxy_are_ignored` |
//! | 4 | distinct keys until memory is gone | `keys::a_flood_of_keys_does_not_grow_memory`; `tests/it/local/flood.rs` |
//! | 5 | one IPv6 /64, a new address per request | `addresses::ten_thousand_addresses_of_one_64_share_one_account` |
//! | 6 | mapped and plain IPv4 | `addresses::a_mapped_address_has_the_account_of_its_ipv4_address` |
//! | 7 | ports, brackets, garbage | `proxies::ports_and_brackets_are_read`, `proxies::garbage_is_rejected_and_not_charged` |
//! | 8 | `Forwarded` with an open quote | `proxies::an_open_quote_does_not_hide_the_client`, `proxies::a_quote_that_shifts_the_element_of_the_proxy_is_an_error` |
//! | 9 | the header that the proxy does not set | `proxies::only_the_header_of_the_proxy_is_read` |
//! | 10 | a flood of keys to free an exhausted key | `keys::a_flood_does_not_free_an_exhausted_key` |
//! | 11 | keys of 100 KiB | `keys::a_key_of_100_kib_is_rejected_and_not_stored` |
//! | 12 | braces, newlines and NUL in keys | `tests/servers/keys.rs` |
//! | 13 | `Retry-After: 0` | `tests/it/layer/retry_after.rs` |
//! | 14 | many accounts from one address, one from many | `keys::guessing_is_limited_by_address_and_by_account` |
//! | 15 | a user name that is not verified | `keys::an_unverified_name_does_not_charge_its_owner` |
//! | 16 | another method | `preflights::a_preflight_is_charged`, `keys::another_method_does_not_make_a_new_route` |
//! | 17 | requests cancelled at once | `answers::a_cancelled_request_stays_charged` |
//! | 18 | spellings of a path | `keys::spellings_of_a_path_share_one_route`; `tests/it/keys/route.rs` |
//! | 19 | a server without peer addresses | `tests/logs/peer.rs` |
//! | 20 | a log line per denial | `tests/logs/denials.rs` |
//! | 21 | opening the breaker to get fail-open | `outage.rs` |
//! | 22 | timing shows whether a key is limited | accepted: the response says it anyway |
//! | 23 | guesses at the operators' password, by any method | `tests/it/tooling/examples.rs`: `admin_limits_wrong_guesses_by_address_without_locking_out_others` |
//! | 24 | blocks until the table of blocks is full | `tests/it/tooling/operators.rs`: `a_flood_of_blocks_is_bounded_and_reports_which_blocks_hold` |
//! | 25 | a request that claims to be a CORS preflight | `preflights` |
//! | 26 | an HTTP request that claims a gRPC content type | `tests/it/grpc/calls.rs`: `only_grpc_requests_get_a_grpc_rejection` |
//! | 27 | an `Accept` of 400 KB | unit tests of `src/reject/text.rs` |
//! | 28 | a made-up method per request | `keys::invented_methods_share_one_account` |
//! | 29 | an identity that a deny list cannot read | `tests/it/layer/access.rs` |
//! | 30 | white space around a header, which HTTP/2 servers leave there | `keys::white_space_around_a_header_does_not_make_a_new_key` |
//! | 31 | a `Host` that reads like an element of `Forwarded` | `proxies::a_host_that_looks_like_an_element_is_not_read_as_one`; `tests/it/keys/client_walk.rs` |
//! | 32 | making the proxy drop a header | `proxies::a_dropped_header_does_not_pass_an_allow_list` |
//! | 33 | one IPv6 /48, a /64 per request | `addresses::a_48_has_65_536_accounts_by_64_and_one_by_48` |
//! | 34 | parallel requests charged little at first and much later | `tests/it/local/max_debt.rs`: `parallel_requests_spend_the_documented_number_of_units` |
//! | 35 | few users that fill the queue | `tests/it/layer/waiters.rs`: `eighteen_invented_users_do_not_fill_the_queue` |
//! | 36 | slow requests refunded late, all at once | `answers::late_refunds_do_not_exceed_the_burst` |
//! | 37 | queueing and leaving, again and again | `tests/it/rules/definition.rs`: `every_value_equals_the_definition` |
//! | 38 | disconnecting before the handler adjusts the charge | `tests/it/layer/settle.rs`: `a_request_that_is_dropped_while_it_runs_adjusts_to_the_default` |
//! | 39 | a refund of a charge from before a reset | `tests/it/rules/definition.rs`: `every_value_equals_the_definition` |
//! | 40 | a store that queues everything, or does not know how to decide | `stores` |
//! | 41 | adjustments by extreme numbers | `stores::adjustments_by_extreme_numbers_give_no_more_than_the_limit` |
//! | 42 | keys of one network that are denied, to shrink the fair shares of others | `tests/it/rules/fair_flood.rs` |
//!
//! A test that reproduces an advisory about another limiter contains its number.

mod addresses;
mod answers;
mod keys;
mod outage;
mod preflights;
mod proxies;
mod stores;

use std::{
    collections::BTreeMap,
    fmt::Debug,
    net::{IpAddr, Ipv4Addr, SocketAddr},
};

use axum::extract::ConnectInfo;
use http::{Request, Response};
use tower::Service;
use tower_sluice::{KeyExtractor, LocalStore, Quota, RateLimitLayer, Rule};

use crate::support::{self, Strict, answer, with};

/// The quota of every account. Nothing is refilled while a test runs.
const THREE: Quota = Quota::per_day(3);

type Layer<K> = RateLimitLayer<Rule<K>, LocalStore>;

fn three<K: KeyExtractor>(extractor: K) -> Layer<K> {
    RateLimitLayer::new(extractor, THREE, LocalStore::new())
}

/// Builds a GET request from this peer with these header lines.
fn from(peer: impl Into<IpAddr>, lines: &[(&str, &str)]) -> Request<()> {
    let mut request = with(lines);
    request.extensions_mut().insert(ConnectInfo(SocketAddr::new(peer.into(), 4711)));
    request
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

/// Returns one of many addresses.
fn v4(number: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits((11 << 24) + number)
}

/// Counts the responses by status code.
async fn statuses<L>(
    layer: &L,
    requests: impl IntoIterator<Item = Request<()>>,
) -> Vec<(u16, usize)>
where
    L: tower::Layer<Strict>,
    L::Service: Service<Request<()>, Response = Response<String>, Error: Debug>,
{
    let mut counts = BTreeMap::new();
    for request in requests {
        *counts.entry(answer(layer, request).await.status().as_u16()).or_default() += 1;
    }
    counts.into_iter().collect()
}

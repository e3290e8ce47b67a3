//! Known attacks on rate limiters, each through the layer: none gets around it, none brings it
//! down. `peers/` plays the same against other crates.
//!
//! | # | attack | held by |
//! |---|---|---|
//! | 1 | rotating left entries of `X-Forwarded-For` | `proxies::ten_thousand_spoofed_entries_are_one_client` |
//! | 2 | a victim's address in `X-Forwarded-For` | `proxies::a_victim_does_not_pay_for_who_names_it` |
//! | 3 | two `X-Forwarded-For` lines | `proxies::lines_before_the_proxys_own_are_not_the_client` |
//! | 4 | distinct keys until memory is gone | `keys::a_flood_of_keys_grows_nothing`; `tests/flood.rs` |
//! | 5 | one IPv6 /64, an address per request | `addresses::ten_thousand_addresses_of_one_customer_are_one_client` |
//! | 6 | mapped and plain IPv4 | `addresses::a_mapped_address_is_the_plain_one` |
//! | 7 | ports, brackets, garbage | `proxies::ports_and_brackets_are_read`, `proxies::garbage_is_refused_and_costs_nobody` |
//! | 8 | `Forwarded` with an open quote | `proxies::an_open_quote_hides_nobody`, `proxies::a_quote_that_shifts_the_proxys_own_gains_an_error` |
//! | 9 | the header that the proxy does not set | `proxies::only_the_header_of_the_proxy_is_read` |
//! | 10 | a flood to free one's own exhausted key | `keys::a_flood_frees_no_exhausted_key` |
//! | 11 | keys of 100 KiB | `keys::a_key_of_100_kib_is_refused_and_not_stored` |
//! | 12 | braces, newlines and NUL in keys | `tests/redis_keys.rs` |
//! | 13 | `Retry-After: 0` | `answers::nobody_is_told_to_come_back_at_once`; `tests/retry_after.rs` |
//! | 14 | many accounts from one address, one from many | `keys::guessing_is_held_by_address_and_by_account` |
//! | 15 | counting on a name that is only claimed | `keys::a_claimed_name_costs_its_owner_nothing` |
//! | 16 | another method | `keys::no_method_is_free`, `keys::another_method_is_not_a_fresh_route` |
//! | 17 | requests cancelled at once | `answers::a_cancelled_request_stays_charged` |
//! | 18 | spellings of a path | `keys::no_spelling_of_a_path_is_a_fresh_route`; `tests/route.rs` |
//! | 19 | a server without peer addresses | `addresses::without_peer_addresses_nobody_passes`; `tests/peer.rs` |
//! | 20 | a log line per refusal | `tests/refusal_log.rs` |
//! | 21 | opening the breaker to enjoy fail-open | `outage.rs` |
//! | 22 | timing tells whether a key is limited | accepted: a refusal is no secret, it is said aloud |
//! | 23 | guesses at the operators' password, by any method | `tests/examples.rs`: `admin_limits_wrong_guesses_by_address_and_locks_nobody_else_out` |
//! | 24 | blocks until the table of blocks is full | `tests/operators.rs`: `a_full_table_of_blocks_denies_the_block_through_every_wrapper` |
//! | 25 | a claimed CORS preflight | `preflights`; `tests/grpc.rs`: `a_call_sent_as_a_preflight_is_charged` |
//! | 26 | a claimed gRPC content type | `tests/grpc.rs`: `a_claimed_content_type_gets_the_plain_answer` |
//! | 27 | an `Accept` of 400 KB | unit tests of `src/reject/text.rs` |
//! | 28 | a made-up method per request | `keys::a_made_up_method_is_no_fresh_account` |
//! | 29 | an identity that a deny list cannot read | `proxies::nobody_gets_off_a_deny_list_by_being_unreadable`; `tests/access.rs` |
//! | 30 | white space around a header, which HTTP/2 servers leave there | `keys::white_space_around_a_header_is_no_fresh_key` |
//! | 31 | a `Host` that reads like an element of `Forwarded` | `proxies::a_host_that_reads_like_an_element_is_none`; `tests/client_walk.rs` |
//! | 32 | a header that the proxy was made to drop | `proxies::a_dropped_header_is_no_way_onto_an_allow_list` |
//! | 33 | one IPv6 /48, a /64 per request | `addresses::a_site_has_65_536_accounts_by_64_and_one_by_48` |
//! | 34 | parallel requests that reserve little and cost much | `tests/max_debt.rs`: `parallel_requests_spend_what_the_documentation_says` |
//! | 35 | few users who take every place in the queue | `tests/waiters.rs`: `eighteen_invented_users_leave_places_for_others` |
//! | 36 | slow requests refunded late, all at once | `answers::refunds_of_an_hour_ago_are_no_burst`; `tests/undo.rs` |
//! | 37 | queueing and leaving, again and again | `tests/cancelled.rs`: `queueing_and_leaving_again_and_again_runs_one_handler_a_second` |
//! | 38 | disconnecting before the handler settles | `tests/settle_cut.rs`: `clients_that_disconnect_are_limited_like_others` |
//! | 39 | a refund of before a reset | `tests/undo.rs`: `receipts_of_before_a_reset_are_void` |
//!
//! Advisories about other limiters that have a test of their own name it.

mod addresses;
mod answers;
mod keys;
mod outage;
mod preflights;
mod proxies;
#[path = "../support/mod.rs"]
mod support;

use std::{
    collections::BTreeMap,
    fmt::Debug,
    net::{IpAddr, Ipv4Addr, SocketAddr},
};

use axum::extract::ConnectInfo;
use http::{Request, Response};
use support::{Strict, answer, with};
use tower::Service;
use tower_sluice::{KeyExtractor, LocalStore, Quota, RateLimitLayer, Rule};

/// What every account has; nothing flows back while a test runs.
const THREE: Quota = Quota::per_day(3);

type Layer<K> = RateLimitLayer<Rule<K>, LocalStore>;

fn three<K: KeyExtractor>(extractor: K) -> Layer<K> {
    RateLimitLayer::new(extractor, THREE, LocalStore::new())
}

/// A GET from this peer, with these header lines.
fn from(peer: impl Into<IpAddr>, lines: &[(&str, &str)]) -> Request<()> {
    let mut request = with(lines);
    request.extensions_mut().insert(ConnectInfo(SocketAddr::new(peer.into(), 4711)));
    request
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

/// One of many addresses.
fn v4(number: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits((11 << 24) + number)
}

/// How many requests are answered with each status.
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

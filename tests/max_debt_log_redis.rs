//! The log line for a late charge that `RedisStore` cuts, which is written once.
#![cfg(feature = "redis")]

#[path = "support/log.rs"]
mod log;

use log::Log;
use tower_sluice::{Key, Quota, RedisStore, StoreExt, rule::RuleName, store::Charge};

/// No server has to answer: the line is logged before the call.
#[tokio::test]
async fn a_charge_that_is_cut_in_any_account_is_logged_once() {
    let (log, _guard) = Log::start(tracing::Level::INFO);
    let store = RedisStore::connect("redis://127.0.0.1:1").lazy().expect("an address");
    let (key, quota) = (Key::from("key"), Quota::per_minute(5).with_max_debt(2));
    let charge = Charge::new(RuleName::default(), &key, quota.as_ref());
    let cut =
        || log.read().into_iter().filter(|line| line.contains("the excess is dropped")).count();
    for (units, lines) in [(-8, 0), (7, 0), (8, 1), (9, 0)] {
        drop(store.adjust(&charge, units));
        assert_eq!(cut(), lines, "{units}");
    }
}

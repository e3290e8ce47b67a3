//! Accounts on a Redis Cluster.
//!
//! Name some of its nodes: `cargo run -p dev --features redis --example redis_cluster
//! redis://127.0.0.1:7000 redis://127.0.0.1:7001`
#![allow(clippy::print_stdout)]

use std::error::Error;

use tower_sluice::{
    Key, Quota, RedisStore, StoreExt,
    rule::RuleName,
    store::{Charge, Timeout},
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let urls: Vec<String> = std::env::args().skip(1).collect();
    let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
    let store = RedisStore::cluster(&urls).await?.timeout(Timeout::DEFAULT);

    // Three accounts, most likely on three nodes: called concurrently, all charged or none.
    let (address, user, site) = (Key::from("203.0.113.9"), Key::from("alice"), Key::everyone());
    let quotas = [Quota::per_minute(20), Quota::per_minute(5), Quota::per_hour(1_000)];
    let rule = |name: &str| RuleName::new(name);
    let charges = [
        Charge::new(rule("ip")?, &address, &quotas[..1]),
        Charge::new(rule("user")?, &user, &quotas[1..2]),
        Charge::new(rule("site")?, &site, &quotas[2..]),
    ];
    for _ in 0..7 {
        let decision = store.take(&charges).await?;
        let left: Vec<_> = decision.outcomes().iter().map(|o| o.remaining()).collect();
        let word = if decision.is_allowed() { "admitted" } else { "denied" };
        println!("{word}; left for the address, the user and the site: {left:?}");
    }
    Ok(())
}

//! Decisions on PostgreSQL, beside Redis on the same machine.
//!
//! `cargo bench -p dev --features redis --bench postgres`
//!
//! Both servers run without saving anything. Clients are tasks of one process.
#![allow(clippy::print_stdout)]

#[path = "../examples/postgres_store/call.rs"]
#[allow(dead_code)]
mod call;
#[path = "../tests/support/servers/mod.rs"]
mod servers;
#[path = "../examples/postgres_store/store.rs"]
#[allow(dead_code)]
mod store;

use std::time::{Duration, Instant};

use servers::{Postgres, Server};
use store::PostgresStore;
use tokio::task::JoinSet;
use tower_sluice::{Key, Quota, RedisStore, Store, StoreExt, rule::RuleName, store::Charge};

const TIME: Duration = Duration::from_secs(3);
const USERS: usize = 1_000;

/// A load on a store.
#[derive(Clone, Copy)]
struct Load {
    name: &'static str,
    clients: usize,
    /// `true` if each decision also charges one account that all clients share.
    has_site: bool,
}

const LOADS: [Load; 4] = [
    Load { name: "one client, one account", clients: 1, has_site: false },
    Load { name: "64 clients, one account of 1,000", clients: 64, has_site: false },
    Load { name: "one client, two accounts", clients: 1, has_site: true },
    Load { name: "64 clients, two accounts, one of them hot", clients: 64, has_site: true },
];

#[tokio::main]
async fn main() {
    let postgres = Postgres::start().await;
    let redis = Server::redis().await;
    let on_postgres = PostgresStore::connect(&postgres.url()).await.expect("a store");
    let on_redis = RedisStore::connect(redis.url()).await.expect("a store");
    println!("| decisions per second; median | PostgreSQL | Redis |\n|---|--:|--:|");
    for load in LOADS {
        let postgres = run(&on_postgres, load).await;
        let redis = run(&on_redis, load).await;
        println!("| {} | {postgres} | {redis} |", load.name);
    }
}

/// Returns the decisions per second, and the median of their times.
async fn run<S>(store: &S, load: Load) -> String
where
    S: Store<Future: 'static> + Clone + Send + Sync + 'static,
{
    let mut clients = JoinSet::new();
    for client in 0..load.clients {
        clients.spawn(decide(store.clone(), load, client));
    }
    let mut times: Vec<Duration> = clients.join_all().await.into_iter().flatten().collect();
    times.sort_unstable();
    let each = times.len() as f64 / TIME.as_secs_f64();
    let median = times[times.len() / 2].as_secs_f64() * 1_000.0;
    format!("{each:.0}; {median:.2} ms")
}

/// Decides again and again for one client. Returns the time of each decision.
async fn decide<S: Store>(store: S, load: Load, client: usize) -> Vec<Duration> {
    let rule = RuleName::new("user").expect("a name");
    let quotas = [Quota::per_second(1_000_000)];
    let site = Key::everyone();
    let start = Instant::now();
    let mut times = Vec::new();
    while start.elapsed() < TIME {
        let user = Key::from((client * 7 + times.len() * 13) as u64 % USERS as u64);
        let user = Charge::new(rule, &user, &quotas);
        let both = [user, Charge::new(RuleName::default(), &site, &quotas)];
        let charges = if load.has_site { &both[..] } else { &both[..1] };
        let asked = Instant::now();
        let decision = store.take(charges).await.map_err(Into::into).expect("a decision");
        assert!(decision.is_allowed(), "{decision:?}");
        times.push(asked.elapsed());
    }
    times
}

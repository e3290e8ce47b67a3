//! Shares of a pool on Redis, Valkey and a cluster.

use std::{
    convert::Infallible,
    slice,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use futures::future::join_all;
use tokio::time::{Instant, sleep};
use tower_sluice::{
    Decision, Key, Quota, RateLimitLayer, RedisStore, Rule, Store, StoreExt,
    decision::Outcome,
    key::{Everyone, HeaderKey},
    store::{Charge, ClusterLink, DynStore, RedisError},
    testing::{self, FakeClock},
};

use crate::{
    accounts::{DAY, Dice, LONG, address, connect, gcra_account, on_cluster, raw, rule},
    servers::{Cluster, Flavour, Server, eventually},
    support::{answer, choices::Choosing, with},
};

fn choosing<'a>(charges: &[Charge<'a>]) -> Choosing<'a> {
    Choosing::of_share(charges, rule("site.share"))
}

/// Returns the charges of a client whose share has `units`, of a pool of 40, and of another rule.
fn charges<'a>(
    client: &'a Key,
    site: &'a Key,
    quotas: &'a [[Quota; 1]; 3],
    (cost, reserve): (u32, u32),
) -> [Charge<'a>; 3] {
    let share = Charge::new(rule("site.share"), client, &quotas[0]);
    let share = share.with_headroom(reserve);
    let pool = Charge::new(rule("site"), site, &quotas[1]);
    [share, pool, Charge::new(rule("user"), client, &quotas[2])].map(|it| it.with_cost(cost))
}

/// Random requests in several hash slots of a cluster, or in one hash slot of a server.
async fn equal_the_embedded_store<S>(redis: &S, name: &str)
where
    S: Store<Error = RedisError>,
{
    let (local, mut dice) = (FakeClock::new().store(64), Dice(7));
    let (site, clients) = (Key::from(name), [0, 1, 2].map(|at| Key::from(format!("{name}{at}"))));
    let share = |units| [Quota::new(units, LONG).expect("a quota")];
    let mut taken = Vec::new();
    for _ in 0..80 {
        // Their intervals are whole nanoseconds.
        let units = *dice.pick(&[4, 5, 6, 8, 9, 10, 12]);
        let (client, quotas) = (dice.pick(&clients), [share(units), share(40), share(15)]);
        let all = charges(client, &site, &quotas, (dice.below(4), dice.below(20)));
        let row = |decision: &Decision| {
            let row = |it: &Outcome| (it.remaining(), it.is_denied(), it.is_passed_over());
            (decision.is_allowed(), decision.outcomes().iter().map(row).collect::<Vec<_>>())
        };
        let choosing = choosing(&all);
        let peek = testing::peek(redis, choosing.all()).await;
        let peek = peek.unwrap_or_else(|error| panic!("{error}")).decision;
        let decided = testing::take(redis, choosing.all()).await;
        let decided = decided.unwrap_or_else(|error| panic!("{error}")).decision;
        let own = choosing.take(&local);
        let is_whole = own.charges.len() == 3;
        let own = own.decision;
        assert_eq!(row(&own), row(&decided), "{name}: {all:?}");
        assert_eq!(row(&own), row(&peek), "{name}: a peek at {all:?}");
        if own.is_allowed() {
            taken.push((client, quotas, all[0].cost, is_whole, own, decided));
        }
        // A charge that is undone or not is read until both stores agree.
        if dice.below(4) == 0 && !taken.is_empty() {
            let at = dice.below(u32::try_from(taken.len()).expect("few")) as usize;
            let (client, quotas, cost, is_whole, own, decided) = taken.swap_remove(at);
            let all = charges(client, &site, &quotas, (cost, 0));
            let all = if is_whole { &all[..] } else { &all[1..] };
            local.undo(all, &own, None);
            redis.undo(all, &decided, None);
        }
        let reads: Vec<_> = clients.iter().map(|it| charges(it, &site, &quotas, (0, 0))).collect();
        for read in &reads {
            let is_equal = async || {
                let seen = redis.peek(read).await.ok()?;
                (row(&seen) == row(&local.peek(read).now())).then_some(())
            };
            eventually(&format!("{name}: the undo has arrived"), is_equal).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn shares_in_other_hash_slots_of_a_cluster_than_their_pool_equal_the_embedded_store() {
    let cluster = Cluster::start(Flavour::Redis).await;
    let store = on_cluster(&cluster).await.expect("a store");
    equal_the_embedded_store(&store, "apart").await;
    let tagged = store.reopen().prefix("tagged").hash_tag_by_key().lazy().expect("a store");
    equal_the_embedded_store(&tagged, "tagged").await;
}

/// A request of a client, with the number of its charges: two within its share, one beyond it.
struct Served {
    client: usize,
    charges: usize,
}

/// Returns the units of the pool that these requests used.
fn used(requests: &[Served]) -> u32 {
    requests.iter().map(|served| u32::from(served.charges > 0)).sum()
}

/// The share and the pool of a client are in two hash slots. Attempts that only one of them admits are undone.
#[tokio::test(flavor = "multi_thread")]
async fn after_a_burst_on_a_cluster_no_unit_is_lost() {
    const SHARE: u32 = 5;
    const POOL: u32 = 40;
    const RESERVE: u32 = 12;
    let cluster = Cluster::start(Flavour::Redis).await;
    let mut stores = Vec::new();
    for _ in 0..3 {
        stores.push(on_cluster(&cluster).await.expect("a store"));
    }
    let quotas = [SHARE, POOL, POOL].map(|units| [Quota::new(units, LONG).expect("a quota")]);
    for round in 0..5 {
        let site = Key::from(format!("burst{round}"));
        let clients = [0, 1, 2, 3].map(|at| Key::from(format!("burst{round}-{at}")));
        let all = clients.each_ref().map(|key| charges(key, &site, &quotas, (1, RESERVE)));
        let take = async |client: usize, store: &RedisStore<ClusterLink>| {
            let choosing = choosing(&all[client][..2]);
            let taken = testing::take(store, choosing.all()).await.expect("a decision");
            let charges = if taken.decision.is_allowed() { taken.charges.len() } else { 0 };
            Served { client, charges }
        };
        let burst = (0..120).map(|n| take(n % clients.len(), &stores[n % stores.len()]));
        let mut taken = join_all(burst).await;
        let remaining = async |charge: Charge<'_>| {
            let look = stores[0].peek(&[charge.with_cost(0)]).await.expect("a peek");
            look.outcomes()[0].remaining()
        };
        eventually("what was not allowed is undone", async || {
            let left = POOL - used(&taken);
            (remaining(all[0][1]).await == left).then_some(())
        })
        .await;
        // A process undoes an attempt before its next request.
        for n in 0..POOL as usize {
            taken.push(take(n % clients.len(), &stores[0]).await);
        }
        let left = POOL - used(&taken);
        assert_eq!(remaining(all[0][1]).await, left, "the pool in round {round}");
        assert!(left <= RESERVE, "more than the reserve is left: {left}");
        for (at, charges) in all.iter().enumerate() {
            let own = taken.iter().filter(|served| served.client == at && served.charges == 2);
            let left_of_share = remaining(charges[0]).await as usize;
            assert_eq!(own.count() + left_of_share, SHARE as usize, "client {at} in round {round}");
            assert!(left == 0 || left_of_share == 0, "client {at} is denied its share");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn shares_on_a_server_equal_the_embedded_store() {
    for flavour in [Flavour::Redis, Flavour::Valkey] {
        let server = Server::start(flavour, &[]).await;
        equal_the_embedded_store(&connect(&server.url()).await, "together").await;
    }
}

/// A foreign, broken or blocked value of the share or of the pool leads to the general path.
#[tokio::test]
async fn a_value_that_is_no_account_of_the_share_or_the_pool_is_replaced() {
    let server = Server::redis().await;
    let store = RedisStore::connect(server.url()).readable_keys().await.expect("a store");
    let mut connection = raw(&server.url()).await;
    let key = Key::from("me");
    let quotas = [Quota::per_day(1), Quota::per_day(3), Quota::per_day(9)].map(|it| [it]);
    let all = charges(&key, &key, &quotas, (1, 2));
    let all = &all[..2];
    for name in ["site.share", "site"] {
        let account = |us: [u8; 7], ns: u16| gcra_account(DAY, us, ns);
        for broken in
            [account([255; 7], 1_024), account([1; 7], 1_279), vec![b'x'; 19], b"x".to_vec()]
        {
            let put = redis::cmd("SET").arg(address(name, "me")).arg(&broken).to_owned();
            put.query_async::<()>(&mut connection).await.expect("it is set");
            let healed = store.healed();
            let choosing = choosing(all);
            let taken = testing::take(&store, choosing.all()).await;
            let decision = taken.expect("a decision").decision;
            assert!(decision.is_allowed() && !decision.outcomes()[0].is_passed_over(), "{name}");
            assert_eq!(store.healed(), healed + 1, "{name}: {broken:?}");
            let taken = testing::take(&store, choosing.all()).await;
            let denied = taken.expect("a decision").decision;
            assert!(!denied.is_allowed() && denied.outcomes()[0].is_passed_over(), "{denied:?}");
            for charge in all {
                drop(store.reset(charge).await.expect("it is reset"));
            }
        }
    }
}

/// A client that is denied costs one call, and one that borrows two. With a deny cache, most denials need
/// none.
#[tokio::test(flavor = "multi_thread")]
async fn three_processes_share_a_pool_fairly_with_few_calls() {
    let server = Server::redis().await;
    let mut stores = Vec::new();
    for _ in 0..3 {
        stores.push(connect(&server.url()).await.fail_closed().boxed());
    }
    let calls = calls_of_a_flood(slice::from_ref(&server), &stores).await;
    assert!(calls <= 1.8, "{calls} calls for each request");
}

/// The first attempt of a request has two calls: one for the share, and one for the pool.
#[tokio::test(flavor = "multi_thread")]
async fn three_processes_share_a_pool_of_a_cluster_fairly() {
    let cluster = Cluster::start(Flavour::Redis).await;
    let mut stores = Vec::new();
    for _ in 0..3 {
        stores.push(on_cluster(&cluster).await.expect("a store").fail_closed().boxed());
    }
    let calls = calls_of_a_flood(cluster.nodes(), &stores).await;
    assert!(calls <= 4.0, "{calls} calls for each request");
}

#[tokio::test(flavor = "multi_thread")]
async fn three_processes_with_deny_caches_share_a_pool_fairly_with_fewer_calls() {
    let server = Server::redis().await;
    let mut stores = Vec::new();
    for _ in 0..3 {
        stores.push(connect(&server.url()).await.deny_cache().fail_closed().boxed());
    }
    let calls = calls_of_a_flood(slice::from_ref(&server), &stores).await;
    assert!(calls <= 1.2, "{calls} calls for each request");
}

/// Sends requests to three processes: small clients get what they ask for, beside one that floods. Returns
/// the calls to the servers for each request.
async fn calls_of_a_flood(servers: &[Server], stores: &[Arc<DynStore<Infallible>>]) -> f64 {
    const RATE: u32 = 200;
    const BURST: u32 = 60;
    const TIME: Duration = Duration::from_secs(4);
    let layer = |store: &Arc<DynStore<Infallible>>| {
        let site = Rule::new("site", Everyone, Quota::per_second(RATE).with_burst(BURST));
        RateLimitLayer::rules(site.fair_by(HeaderKey::new("x-api-key")), store.clone())
    };
    let layers: Vec<_> = stores.iter().map(layer).collect();
    let sent = AtomicU32::new(0);
    let send = async |process: usize, client: &str| {
        sent.fetch_add(1, Relaxed);
        let answer = answer(&layers[process], with(&[("x-api-key", client)])).await;
        match answer.status().as_u16() {
            200 => 1,
            429 => 0,
            other => panic!("{other}"),
        }
    };
    // The server knows the script from then on, and the processes know the clients: one that is never
    // admitted has no share.
    let first = Instant::now();
    let mut admitted: u32 = send(0, "large").await;
    for process in 0..3 {
        for at in 0..10 {
            admitted += send(process, &format!("small{at}")).await;
        }
    }
    let calls_so_far = async || {
        let calls = join_all(servers.iter().map(Server::script_calls)).await;
        calls.into_iter().sum::<u32>()
    };
    let before = calls_so_far().await;
    let start = Instant::now();
    sent.store(0, Relaxed);
    let large = (0..3).map(async |process| {
        let mut admitted = 0;
        while start.elapsed() < TIME {
            admitted += send(process, "large").await;
            sleep(Duration::from_millis(2)).await;
        }
        admitted
    });
    let small = (0..10).map(async |at: usize| {
        let (name, mut admitted) = (format!("small{at}"), 0);
        for n in 0..19 {
            sleep(Duration::from_millis(200)).await;
            admitted += send((at + n) % 3, &name).await;
        }
        admitted
    });
    let (large, small) = tokio::join!(join_all(large), join_all(small));
    let elapsed = first.elapsed().as_secs_f64();
    let (large, small): (u32, u32) = (large.iter().sum(), small.iter().sum());
    admitted += large + small;
    // A pool alone would admit an eighth of them. The simulation has a narrower bound.
    assert!(small >= 95, "{small} of 190, which is less than half");
    assert!(large > small, "what they leave goes to the large client: {large}");
    let bound = f64::from(BURST) + f64::from(RATE) * elapsed;
    assert!(f64::from(admitted) <= bound, "{admitted} in {elapsed} s");
    let calls = calls_so_far().await - before;
    let calls = f64::from(calls) / f64::from(sent.into_inner());
    println!("{calls:.2} calls for each request, {admitted} admitted, {small} of 190 small ones");
    calls
}

//! A script that receives the time from its caller, as in Spring Cloud Gateway 2.x.
//!
//! Later versions use the clock of Redis.

use redis::Script;

use super::{Account, Client, LIMIT, LONG, Server, connect, ten_per};

const NOW: u64 = 1_700_000_000;

/// A token bucket with one token a second. It refills by the time since the last call, and stores
/// the time of this call, from whichever clock.
const BUCKET: &str = "
    local now, capacity = ARGV[1] + 0, ARGV[2] + 0
    local tokens = redis.call('GET', KEYS[1]) or capacity
    local last = redis.call('GET', KEYS[2]) or 0
    tokens = math.min(capacity, tokens + math.max(0, now - last))
    local passes = tokens >= 1
    if passes then tokens = tokens - 1 end
    redis.call('SETEX', KEYS[1], 2 * capacity, tokens)
    redis.call('SETEX', KEYS[2], 2 * capacity, now)
    return passes";

async fn limit(client: &mut Client, clock: u64) -> bool {
    let script = Script::new(BUCKET);
    let mut call = script.key("{a}.tokens");
    let call = call.key("{a}.timestamp").arg(clock).arg(LIMIT);
    call.invoke_async::<Option<bool>>(&mut client.0).await.expect("an answer").is_some()
}

async fn passed(clocks: [u64; 2]) -> u32 {
    let server = Server::redis().await;
    let mut clients = [Client::new(&server).await, Client::new(&server).await];
    let mut passed = 0;
    for _ in 0..50 {
        for (client, clock) in clients.iter_mut().zip(clocks) {
            passed += u32::from(limit(client, clock).await);
        }
    }
    passed
}

#[tokio::test]
async fn two_differing_clocks_refill_the_bucket() {
    assert_eq!(passed([NOW, NOW]).await, LIMIT, "the script is atomic");
    assert_eq!(passed([NOW, NOW + 1]).await, LIMIT + 50, "one second apart");
    assert_eq!(passed([NOW, NOW + 2]).await, 100, "two seconds apart, everybody");
}

#[tokio::test]
async fn our_script_uses_the_clock_of_the_server() {
    let server = Server::redis().await;
    let stores = [connect(&server.url()).await, connect(&server.url()).await];
    let account = Account::new("a", ten_per(LONG));
    let mut passed = 0;
    for _ in 0..50 {
        for store in &stores {
            passed += u32::from(account.passes(store).await);
        }
    }
    assert_eq!(passed, LIMIT);
    let times = server.info("commandstats", "cmdstat_time").await.expect("it was asked");
    let calls = times.trim_start_matches("calls=").split(',').next().map(str::parse::<u32>);
    assert!(calls.expect("a number").expect("a number") >= 100, "{times}");
}

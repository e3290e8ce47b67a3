//! Examples of the Redis store, with a real server that stops while they run.

use std::{
    io::{BufRead, BufReader},
    process::Stdio,
};

use tower_sluice::testing::Case;

use crate::{
    servers::{Server, eventually},
    support::programs::{ANY_PORT, Answer, Server as Gateway, example},
};

const RULE: &str = "name=ip key=peer quota=10/min";

fn gateway(redis: &str, outage: &str) -> Gateway {
    let mut command = example("gateway");
    command.args(["--addr", ANY_PORT, "--rule", RULE, "--store", redis, "--outage", outage]);
    Gateway::start(command)
}

fn source(answer: &Answer) -> String {
    answer.json()["source"].as_str().unwrap_or_default().to_owned()
}

async fn answer(gateway: &Gateway) -> Answer {
    tokio::task::block_in_place(|| gateway.get("/"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_decides_by_redis_and_continues_without_it() {
    let mut redis = Server::redis().await;
    let gateways = [gateway(&redis.url(), "fallback"), gateway(&redis.url(), "fallback")];
    for at in 0..10 {
        let answer = answer(&gateways[at % 2]).await;
        assert_eq!((answer.status, source(&answer).as_str()), (200, "redis"));
    }
    for gateway in &gateways {
        assert_eq!(answer(gateway).await.status, 429, "the limit is shared");
    }

    redis.kill();
    for _ in 0..30 {
        let answer = answer(&gateways[0]).await;
        assert_eq!(answer.status, 429, "an outage gives no key a fresh quota: {answer:?}");
    }

    redis.restart().await;
    // The new server is empty.
    eventually("redis decides again", async || {
        let answer = answer(&gateways[1]).await;
        assert!([200, 429].contains(&answer.status), "{answer:?}");
        (answer.status == 200 && source(&answer) == "redis").then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_follows_the_chosen_policy() {
    let mut redis = Server::redis().await;
    let (open, closed) = (gateway(&redis.url(), "open"), gateway(&redis.url(), "closed"));
    assert_eq!(source(&answer(&open).await), "redis");
    redis.kill();
    for _ in 0..20 {
        let passed = answer(&open).await;
        assert_eq!((passed.status, source(&passed).as_str()), (200, "failed_open"));
        let rejected = answer(&closed).await;
        assert_eq!(rejected.status, 503, "{rejected:?}");
        assert_eq!(rejected.header("retry-after"), Some("1"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_starts_while_redis_is_down() {
    let mut redis = Server::redis().await;
    redis.kill();
    let gateway = gateway(&redis.url(), "fallback");
    assert_eq!(source(&answer(&gateway).await), "fallback");
    redis.restart().await;
    eventually("redis decides", async || {
        (source(&answer(&gateway).await) == "redis").then_some(())
    })
    .await;
}

#[test]
fn a_wrong_address_is_reported_without_its_password() {
    let mut command = example("gateway");
    command.args(["--addr", ANY_PORT, "--store", "redis://me:hunter2@"]).stdin(Stdio::null());
    let output = command.output().expect("runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(said.contains("redis://") && !said.contains("hunter2"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_outage_example_shows_which_store_decides() {
    let mut redis = Server::redis().await;
    let mut command = example("outage");
    command.args(["fallback", &redis.url()]).env("SECONDS_TO_RUN", "4").stdout(Stdio::piped());
    let mut child = command.spawn().expect("runs");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let mut next = || tokio::task::block_in_place(|| lines.next().expect("a line").expect("text"));
    let well = next();
    assert!(well.contains("admitted by redis"), "{well}");
    redis.kill();
    // The server dies in one of the seconds.
    let said: Vec<_> = (1..4).map(|_| next()).collect();
    assert!(said[2].contains("denied by fallback") && !said[2].contains("redis"), "{said:?}");
    assert!(child.wait().expect("ends").success());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_conformance_example_plays_tables_on_redis() {
    let redis = Server::redis().await;
    let table = r#"[{"name": "one", "quotas": [{"algorithm": "gcra", "units": 1, "per": 1000000000}],
        "steps": [{"at": 0, "op": "take", "units": 1, "allowed": true, "outcomes":
        [{"remaining": 0, "full": 1000000000, "next": 1000000000, "retry": 0}]}]}]"#;
    assert_eq!(Case::read(table).expect("a table").len(), 1);
    let file = redis.path().join("table.json");
    std::fs::write(&file, table).expect("a file");
    let mut command = example("conformance");
    let output = command.args(["--store", &redis.url()]).arg(file).output().expect("runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(said.trim(), "1 passed, 0 failed, 0 skipped");
}

#[cfg(all(feature = "admin", feature = "metrics"))]
#[tokio::test(flavor = "multi_thread")]
async fn the_production_server_limits_measures_and_survives_its_redis() {
    use crate::support::programs::ask;
    use std::net::{SocketAddr, TcpStream};

    const TOKEN: &str = "0123456789abcdef0123456789abcdef";
    // "admin:" and the token
    const OPERATOR: &str =
        "authorization: Basic YWRtaW46MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=\r\n";
    let mut redis = Server::redis().await;
    let mut command = example("production");
    command.env("ADDR", ANY_PORT).env("OPERATORS_ADDR", ANY_PORT).env("ADMIN_TOKEN", TOKEN);
    command.env("REDIS_URL", redis.url());
    let app = tokio::task::block_in_place(|| Gateway::start(command));
    let line = tokio::task::block_in_place(|| app.line_with("operators on http://"));
    let operators = line.split("http://").nth(1).and_then(|rest| rest.split('/').next());
    let operators = operators.expect("an address").parse::<SocketAddr>().expect("an address");
    let visit = |client: &str| {
        let header = format!("x-forwarded-for: 192.0.2.1, {client}\r\n");
        tokio::task::block_in_place(|| app.get_with("/", &header))
    };
    let operator = |path: &str, headers: &str| {
        let stream = TcpStream::connect(operators).expect("connects");
        tokio::task::block_in_place(|| ask(stream, path, headers))
    };

    // Ten units per second come back, so a slow machine may allow a few more.
    let statuses: Vec<_> = (0..200).map(|_| visit("203.0.113.9").status).collect();
    assert!(statuses[..20].iter().all(|status| *status == 200), "{statuses:?}");
    assert!(statuses.contains(&429), "{statuses:?}");
    assert_eq!(visit("203.0.113.10").status, 200, "another client");
    assert_eq!(tokio::task::block_in_place(|| app.get("/health")).status, 200);

    let metrics = operator("/metrics", "").body;
    for sample in [
        "ratelimit_decisions{policy=\"client\",result=\"allowed\"}",
        "ratelimit_decisions{policy=\"client\",result=\"limited\"}",
        "ratelimit_near_limit{policy=\"client\"}",
        "ratelimit_decision_duration_bucket{store=\"redis\",le=\"0.1\"}",
        "ratelimit_keys ",
        "ratelimit_capacity ",
    ] {
        assert!(metrics.contains(sample), "{sample} is not in {metrics}");
    }
    assert_eq!(operator("/admin/api/layers", "").status, 401);
    let denials = operator("/admin/api/layers", OPERATOR).json();
    assert_eq!(denials["layers"][0]["rules"][0]["recent"][0]["result"], "limited");
    let seen = operator("/address", "x-forwarded-for: 203.0.113.9\r\n").body;
    assert!(seen.starts_with("Ok(203.0.113.9) by "), "{seen}");

    redis.kill();
    for _ in 0..30 {
        let status = visit("203.0.113.11").status;
        assert!([200, 429].contains(&status), "{status}");
    }
    let metrics = operator("/metrics", "").body;
    for sample in [
        "result=\"fallback_allowed\"",
        "ratelimit_store_errors{kind=\"",
        "ratelimit_store_circuit 2",
    ] {
        assert!(metrics.contains(sample), "{sample} is not in {metrics}");
    }
}

#[cfg(all(feature = "admin", feature = "metrics"))]
#[test]
fn the_production_server_needs_a_long_token() {
    let mut command = example("production");
    command.env("ADMIN_TOKEN", "short").stdin(Stdio::null());
    let output = command.output().expect("runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("at least 32"), "{said}");
}

//! The playground as a program, and what its page asks of it.

#[path = "support/programs.rs"]
mod programs;

use std::{thread, time::Duration};

use programs::{ANY_PORT, Answer, Server, example};
use serde_json::{Value, json};

fn serve() -> Server {
    let mut command = example("playground");
    command.args(["--addr", ANY_PORT]);
    Server::start(command)
}

fn set(server: &Server, visitor: &str, limit: &Value) -> Answer {
    server.post("/limit", &format!("x-visitor: {visitor}\r\n"), limit)
}

fn get(server: &Server, visitor: &str, path: &str) -> Answer {
    server.get_with(path, &format!("x-visitor: {visitor}\r\n"))
}

/// How many of so many requests passed us, and how many the naive window.
fn passed(server: &Server, visitor: &str, requests: u32) -> (u32, u32) {
    (0..requests).fold((0, 0), |(ours, naive), _| {
        let answer = get(server, visitor, "/try");
        let beside = answer.header("x-naive") == Some("admitted");
        (ours + u32::from(answer.status == 200), naive + u32::from(beside))
    })
}

/// One that nothing comes back of while a test runs, in a window that does not end meanwhile.
fn long(algorithm: &str) -> Value {
    json!({ "algorithm": algorithm, "units": 3, "period_ms": 3_153_600_000_u64 })
}

#[test]
fn the_page_is_part_of_the_program_and_may_ask_nobody_else() {
    let server = serve();
    for (path, kind, part) in [
        ("/", "text/html", "<title>tower-sluice playground"),
        ("/page.js", "text/javascript", "x-visitor"),
        ("/timeline.js", "text/javascript", "export class Lane"),
        ("/style.css", "text/css", "prefers-color-scheme: dark"),
    ] {
        let answer = server.get(path);
        assert_eq!(answer.status, 200, "{path}");
        assert!(answer.header("content-type").is_some_and(|is| is.starts_with(kind)), "{answer:?}");
        let policy = answer.header("content-security-policy").unwrap_or_default();
        assert!(policy.starts_with("default-src 'none'; script-src 'self'"), "{policy}");
        assert!(!policy.contains("unsafe") && !policy.contains('*'), "{policy}");
        assert!(answer.body.contains(part), "{path}");
        for elsewhere in ["http://", "https://", "innerHTML", "eval("] {
            assert!(!answer.body.contains(elsewhere), "{elsewhere} in {path}");
        }
    }
    assert_eq!(server.get("/main.rs").status, 404);
}

#[test]
fn every_algorithm_limits_as_the_page_asks() {
    let server = serve();
    for algorithm in [
        "gcra",
        "token_bucket",
        "fixed_window",
        "anchored_window",
        "sliding_window:10",
        "sliding_log",
    ] {
        let answer = set(&server, "alice", &long(algorithm));
        assert_eq!((answer.status, answer.body.starts_with("3/")), (200, true), "{answer:?}");
        let first = get(&server, "alice", "/try");
        assert_eq!((first.status, first.header("x-naive")), (200, Some("admitted")), "{algorithm}");
        assert_eq!(first.header("x-waited-ms"), Some("0"));
        let told = first.header("ratelimit").expect("what is left");
        assert!(told.starts_with("\"playground\";r=2"), "{algorithm}: {told}");
        assert_eq!(passed(&server, "alice", 2), (2, 2), "{algorithm}");

        let refused = get(&server, "alice", "/try");
        assert_eq!((refused.status, refused.header("x-naive")), (429, Some("refused")));
        let wait: u64 = refused.header("retry-after").expect("a wait").parse().expect("seconds");
        assert!(wait >= 1, "{algorithm}");
    }
}

#[test]
fn what_is_left_is_told_and_looking_takes_nothing() {
    let server = serve();
    set(&server, "alice", &long("gcra"));
    for _ in 0..5 {
        let state = get(&server, "alice", "/state").json();
        assert_eq!(
            (&state["ours"]["remaining"], &state["ours"]["reset_ms"]),
            (&json!(3), &json!(0))
        );
    }
    assert_eq!(passed(&server, "alice", 2), (2, 2));
    let state = get(&server, "alice", "/state").json();
    assert_eq!((&state["source"], &state["window"]), (&json!("local"), &json!(false)));
    for lane in ["ours", "naive"] {
        let told = &state[lane];
        assert_eq!((&told["limit"], &told["remaining"]), (&json!(3), &json!(1)), "{lane}");
        assert!(
            told["next_ms"].as_u64() > Some(0) && told["reset_ms"].as_u64() > Some(0),
            "{told}"
        );
    }
    set(&server, "alice", &long("fixed_window"));
    assert_eq!(get(&server, "alice", "/state").json()["window"], true);
}

#[test]
fn visitors_do_not_disturb_each_other_and_a_new_limit_starts_full() {
    let server = serve();
    for visitor in ["alice", "bob"] {
        set(&server, visitor, &long("gcra"));
    }
    assert_eq!(passed(&server, "alice", 5), (3, 3));
    assert_eq!(passed(&server, "bob", 5), (3, 3));
    set(&server, "alice", &long("gcra"));
    assert_eq!(passed(&server, "alice", 5), (3, 3));
    assert_eq!(passed(&server, "bob", 5), (0, 0));
    assert_eq!(get(&server, "carol", "/try").status, 404);
    assert_eq!(get(&server, "carol", "/state").status, 404);
    assert_eq!(server.get("/try").status, 400);
}

#[test]
fn a_limit_that_cannot_be_is_refused_in_words_and_the_one_before_stays() {
    let server = serve();
    set(&server, "alice", &long("gcra"));
    let with = |name: &str, value: Value| {
        let mut limit = long("gcra");
        limit[name] = value;
        limit
    };
    let mut queueing = long("sliding_log");
    queueing["max_wait_ms"] = json!(100);
    let mut bursting = long("fixed_window");
    bursting["burst"] = json!(9);
    for (limit, said) in [
        (with("units", json!(0)), "units is 0"),
        (with("period_ms", json!(0)), "period"),
        (with("period_ms", json!(u64::MAX)), "period"),
        (with("burst", json!(0)), "burst"),
        (with("algorithm", json!("leaky")), "algorithm is \"leaky\"; give gcra"),
        (with("algorithm", json!("sliding_window:0")), "outside 1 to 1000"),
        (with("algorithm", json!("sliding_window:")), "buckets is \"\"; give a whole number"),
        (with("units", json!("many")), "units: invalid type: string \"many\""),
        (with("units", json!(null)), "units: invalid type: null"),
        (with("rate", json!(1)), "unknown field `rate`"),
        (queueing, "an algorithm that cannot queue; use Gcra"),
        (bursting, "burst"),
    ] {
        let answer = set(&server, "alice", &limit);
        assert_eq!(answer.status, 422, "{limit}: {answer:?}");
        assert!(answer.body.contains(said), "{said:?} is not in {}", answer.body);
    }
    assert_eq!(passed(&server, "alice", 5), (3, 3));
}

#[test]
fn a_request_waits_where_that_is_asked_for() {
    let server = serve();
    let limit = json!({
        "algorithm": "gcra", "units": 1, "period_ms": 300, "burst": 1, "max_wait_ms": 60_000,
    });
    set(&server, "alice", &limit);
    // a slow machine may find a unit come back once or twice
    let waited = |_| get(&server, "alice", "/try").header("x-waited-ms").map(str::to_owned);
    assert!((0..100).map(waited).any(|waited| waited.is_some_and(|waited| waited != "0")));
}

/// Twice the limit passes around the edge of the naive window, and not by us.
#[test]
fn the_naive_window_lets_two_bursts_through_at_its_edge() {
    let server = serve();
    let left = || {
        let state = get(&server, "alice", "/state").json();
        state["naive"]["reset_ms"].as_u64().expect("the time until the edge")
    };
    let around_the_edge = |_| {
        let limit = json!({ "algorithm": "gcra", "units": 5, "period_ms": 4_000 });
        set(&server, "alice", &limit);
        while left() > 1_000 {
            thread::sleep(Duration::from_millis(50));
        }
        let before = passed(&server, "alice", 5);
        while left() <= 1_000 {
            thread::sleep(Duration::from_millis(50));
        }
        let after = passed(&server, "alice", 5);
        (before.0 + after.0, before.1 + after.1)
    };
    // a machine that is held up may miss the edge
    assert!((0..15).map(around_the_edge).any(|(ours, naive)| naive == 10 && ours < 10));
}

#[test]
fn nobody_else_is_served() {
    for (address, why) in [
        ("0.0.0.0:0", "0.0.0.0 is no loopback address; give ip:port, as 127.0.0.1:3000"),
        ("[::]:0", ":: is no loopback address"),
        ("192.0.2.1:0", "192.0.2.1 is no loopback address"),
        ("nonsense", "give ip:port, as 127.0.0.1:3000"),
    ] {
        let mut command = example("playground");
        let output = command.args(["--addr", address]).output().expect("runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(why), "{why:?} is not in {said}");
    }
}

#[test]
fn a_store_that_is_none_is_refused_with_the_fix() {
    for (store, why) in [
        ("disk", "--store disk: give local or redis://host[:port][/db]"),
        #[cfg(not(feature = "redis"))]
        ("redis://me:hunter2@127.0.0.1", "build with --features redis, or give local"),
        #[cfg(feature = "redis")]
        ("redis://me:hunter2@127.0.0.1:99999", "error"),
    ] {
        let mut command = example("playground");
        let output = command.args(["--addr", ANY_PORT, "--store", store]).output().expect("runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(why) && !said.contains("hunter2"), "{why:?} is not in {said}");
    }
}

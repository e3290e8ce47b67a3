//! The playground program and the requests of its page.

#[path = "../../../examples/support/algorithm.rs"]
mod algorithm;

use std::{
    io::{BufRead, BufReader, Write},
    net::TcpStream,
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use algorithm::{PLAIN, counted_by};
use serde_json::{Value, json};

use crate::support::programs::{ANY_PORT, Answer, PATIENCE, Server, end, example};

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

/// Counts the requests that passed our limit, and those that passed the naive window.
fn passed(server: &Server, visitor: &str, requests: u32) -> (u32, u32) {
    (0..requests).fold((0, 0), |(ours, naive), _| {
        let answer = get(server, visitor, "/try");
        let beside = answer.header("x-naive") == Some("admitted");
        (ours + u32::from(answer.status == 200), naive + u32::from(beside))
    })
}

/// The period of [`long`], in milliseconds.
const PERIOD: u64 = 3_153_600_000;

/// A limit of three units that does not refill during a test, in a window that does not end.
fn long(algorithm: &str) -> Value {
    json!({ "algorithm": algorithm, "units": 3, "period_ms": PERIOD })
}

/// Returns the units of [`long`] that a paced window has made available by now. Its windows are
/// aligned to Unix time, and each third of a window adds one unit.
fn paced_units() -> u32 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    let thirds = now.as_millis() % u128::from(PERIOD) * 3 / u128::from(PERIOD);
    u32::try_from(thirds).expect("at most two") + 1
}

#[test]
fn the_page_is_part_of_the_program_and_loads_nothing_else() {
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
fn every_algorithm_limits_as_set_in_the_page() {
    let server = serve();
    for algorithm in PLAIN.map(|(word, _)| word).into_iter().chain(["sliding_window:10"]) {
        let answer = set(&server, "alice", &long(algorithm));
        assert_eq!((answer.status, answer.body.starts_with("3/")), (200, true), "{answer:?}");
        let first = get(&server, "alice", "/try");
        assert_eq!((first.status, first.header("x-naive")), (200, Some("admitted")), "{algorithm}");
        assert_eq!(first.header("x-waited-ms"), Some("0"));
        let units = if algorithm == "paced_window" { paced_units() } else { 3 };
        let more = units - 1;
        let reported = first.header("ratelimit").expect("what is left");
        assert!(
            reported.starts_with(&format!("\"playground\";r={more}")),
            "{algorithm}: {reported}"
        );
        assert_eq!(passed(&server, "alice", 2), (more, 2), "{algorithm}");

        let denied = get(&server, "alice", "/try");
        assert_eq!((denied.status, denied.header("x-naive")), (429, Some("denied")));
        let wait: u64 = denied.header("retry-after").expect("a wait").parse().expect("seconds");
        assert!(wait >= 1, "{algorithm}");
    }
}

/// Every algorithm of the gateway is available here and has a name in the admin page.
#[test]
fn every_page_has_every_algorithm() {
    let page = include_str!("../../../examples/playground/page.html");
    let names = include_str!("../../../src/admin/page.js").replace('_', "");
    for word in PLAIN.map(|(word, _)| word).into_iter().chain(["sliding_window"]) {
        assert!(page.contains(&format!("<option value=\"{word}\"")), "{word}");
        let algorithm = counted_by(word).or_else(|_| counted_by(&format!("{word}:1")));
        let debugged = format!("{:?}", algorithm.expect("an algorithm")).to_lowercase();
        let variant = debugged.split(' ').next().expect("its name");
        assert!(names.contains(&format!("\n  {variant}: \"")), "{variant}");
    }
}

#[test]
fn remaining_units_are_shown_without_a_charge() {
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
        let reported = &state[lane];
        assert_eq!((&reported["limit"], &reported["remaining"]), (&json!(3), &json!(1)), "{lane}");
        assert!(
            reported["next_ms"].as_u64() > Some(0) && reported["reset_ms"].as_u64() > Some(0),
            "{reported}"
        );
    }
    set(&server, "alice", &long("fixed_window"));
    assert_eq!(get(&server, "alice", "/state").json()["window"], true);
}

#[test]
fn visitors_have_separate_limits_and_a_new_limit_starts_full() {
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
fn an_invalid_limit_is_rejected_with_a_message_and_the_previous_one_stays() {
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
fn a_request_queues_if_configured() {
    let server = serve();
    let limit = json!({
        "algorithm": "gcra", "units": 1, "period_ms": 300, "burst": 1, "max_wait_ms": 60_000,
    });
    set(&server, "alice", &limit);
    // on a slow machine a unit may refill once or twice
    let waited = |_| get(&server, "alice", "/try").header("x-waited-ms").map(str::to_owned);
    assert!((0..100).map(waited).any(|waited| waited.is_some_and(|waited| waited != "0")));
}

/// Returns the lines, as they arrive, that the page reads to draw.
fn fire(server: &Server, visitor: &str, query: &str) -> impl Iterator<Item = Value> {
    let mut stream = TcpStream::connect(server.address).expect("connects");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let head = "host: test\r\nconnection: close\r\nx-visitor";
    let request = format!("GET /fire?{query} HTTP/1.1\r\n{head}: {visitor}\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("sends");
    // each line is one chunk, after a line with its length
    let lines = BufReader::new(stream).lines().map(|line| line.expect("a line"));
    let lines = lines.filter(|line| line.starts_with('{'));
    lines.map(|line| serde_json::from_str(&line).expect("JSON"))
}

#[test]
fn a_burst_is_sent_over_http_and_shown_as_the_server_responded() {
    let server = serve();
    set(&server, "alice", &long("gcra"));
    let lines: Vec<_> = fire(&server, "alice", "n=20").collect();
    assert_eq!(lines.len(), 40, "{lines:?}");
    let admitted = |wanted: bool| lines.iter().filter(move |line| line["admitted"] == wanted);
    assert_eq!((admitted(true).count(), admitted(false).count()), (3, 17));
    for (admitted, head, field) in [
        (admitted(true).next(), "HTTP/1.1 200 OK", "x-waited-ms"),
        (admitted(false).next(), "HTTP/1.1 429 Too Many Requests", "retry-after"),
    ] {
        let line = admitted.expect("a line");
        assert_eq!(line["head"], head);
        let fields: Vec<(String, String)> =
            serde_json::from_value(line["fields"].clone()).expect("names and values");
        for wanted in [field, "ratelimit", "x-naive"] {
            assert!(fields.iter().any(|(name, _)| name == wanted), "{wanted}: {line}");
        }
        let sent = lines.iter().find(|sent| sent["id"] == line["id"]).expect("when it was sent");
        assert!(sent.get("head").is_none() && sent["at_ms"].as_f64() <= line["at_ms"].as_f64());
    }
    for query in ["", "n=0", "n=201", "n=-1", "every_ms=19", "n=5&every_ms=100"] {
        let answer = get(&server, "alice", &format!("/fire?{query}"));
        assert!([400, 422].contains(&answer.status), "{query}: {answer:?}");
    }
    assert_eq!(get(&server, "carol", "/fire?n=1").status, 404);
}

/// Queued requests do not delay the sending of others, as six connections of a browser would.
#[test]
fn a_burst_is_sent_at_once() {
    let server = serve();
    let limit = json!({
        "algorithm": "gcra", "units": 1, "period_ms": 600_000, "burst": 1, "max_wait_ms": 6_300_000,
    });
    set(&server, "alice", &limit);
    let first =
        fire(&server, "alice", "n=20").filter(|line| line.get("head").is_some()).take(9 + 1);
    let admitted = first.filter(|line| line["admitted"] == true).count();
    assert_eq!(admitted, 1, "ten queue, and the last nine are denied");
}

#[test]
fn a_steady_rate_continues_until_the_reader_disconnects() {
    let server = serve();
    let limit = json!({ "algorithm": "gcra", "units": 1_000_000, "period_ms": 3_153_600_000_u64 });
    set(&server, "alice", &limit);
    let mut lines = fire(&server, "alice", "every_ms=20");
    assert!(lines.by_ref().any(|line| line["id"] == 50));
    drop(lines);
    let left = || get(&server, "alice", "/state").json()["naive"]["remaining"].as_u64();
    let still = |_| {
        let before = left();
        thread::sleep(Duration::from_millis(500));
        left() == before
    };
    assert!((0..60).any(still), "{:?} left", left());
}

/// The naive window allows twice the limit around its edge, and ours does not.
#[test]
fn the_naive_window_allows_two_bursts_at_its_edge() {
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
    // a machine that is delayed may miss the edge
    assert!((0..15).map(around_the_edge).any(|(ours, naive)| naive == 10 && ours < 10));
}

#[test]
fn only_loopback_addresses_are_accepted() {
    for (address, why) in [
        ("0.0.0.0:0", "0.0.0.0 is not a loopback address; give ip:port, as 127.0.0.1:3000"),
        ("[::]:0", ":: is not a loopback address"),
        ("192.0.2.1:0", "192.0.2.1 is not a loopback address"),
        ("nonsense", "give ip:port, as 127.0.0.1:3000"),
    ] {
        let mut command = example("playground");
        command.args(["--addr", address]);
        let output = end(command);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(why), "{why:?} is not in {said}");
    }
}

#[test]
fn an_invalid_store_is_rejected_with_the_fix() {
    for (store, why) in [
        ("disk", "--store disk: give local or redis://host[:port][/db]"),
        // with and without Redis support the message differs
        ("redis://me:hunter2@127.0.0.1:99999", "error: "),
    ] {
        let mut command = example("playground");
        command.args(["--addr", ANY_PORT, "--store", store]);
        let output = end(command);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(why) && !said.contains("hunter2"), "{why:?} is not in {said}");
    }
}

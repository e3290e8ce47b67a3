//! The playground program and the requests of its page.

#[path = "../../../examples/support/algorithm.rs"]
mod algorithm;

use std::{
    io::{BufRead, BufReader, Write},
    net::TcpStream,
    process::Command,
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use algorithm::{PLAIN, counted_by};
use serde_json::{Value, json};
use tower_sluice::{
    Algorithm, LocalStore, PeerIp, Quota, RateLimitLayer, Rule, rule::RuleSettings,
};

use crate::support::programs::{ANY_PORT, Answer, PATIENCE, Server, end, example};

fn serve() -> Server {
    let mut command = example("playground");
    command.args(["--addr", ANY_PORT]);
    Server::start(command)
}

/// Sets one limit for both lanes.
fn set(server: &Server, visitor: &str, limit: &Value) -> Answer {
    set_both(server, visitor, [limit, limit])
}

fn set_both(server: &Server, visitor: &str, lanes: [&Value; 2]) -> Answer {
    let visitor = format!("x-visitor: {visitor}\r\n");
    server.post("/limits", &visitor, &json!({ "lanes": lanes }))
}

fn get(server: &Server, visitor: &str, path: &str) -> Answer {
    server.get_with(path, &format!("x-visitor: {visitor}\r\n"))
}

/// Counts the requests that passed a lane.
fn passed(server: &Server, visitor: &str, lane: u8, requests: u32) -> u32 {
    let path = format!("/try/{lane}");
    (0..requests).map(|_| u32::from(get(server, visitor, &path).status == 200)).sum()
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
        ("/presets.js", "text/javascript", "export const PRESETS"),
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
        let answer = set_both(&server, "alice", [&long("gcra"), &long(algorithm)]);
        assert_eq!(answer.status, 200, "{answer:?}");
        let text = answer.json()["lanes"][1]["text"].clone();
        assert!(text.as_str().is_some_and(|text| text.starts_with("3/")), "{text}");
        let first = get(&server, "alice", "/try/1");
        assert_eq!((first.status, first.header("x-waited-ms")), (200, Some("0")), "{algorithm}");
        assert!(first.header("x-arrived-ms").is_some(), "{first:?}");
        let units = if algorithm == "paced_window" { paced_units() } else { 3 };
        let more = units - 1;
        let reported = first.header("ratelimit").expect("the units left");
        assert!(
            reported.starts_with(&format!("\"playground\";r={more}")),
            "{algorithm}: {reported}"
        );
        assert_eq!(passed(&server, "alice", 1, 2), more, "{algorithm}");

        let denied = get(&server, "alice", "/try/1");
        assert_eq!(denied.status, 429);
        let wait: u64 = denied.header("retry-after").expect("a wait").parse().expect("seconds");
        assert!(wait >= 1, "{algorithm}");
        assert_eq!(passed(&server, "alice", 0, 5), 3, "the other lane has its own account");
    }
}

/// Every algorithm of the gateway is available here.
#[test]
fn the_page_has_every_algorithm() {
    let page = include_str!("../../../examples/playground/presets.js");
    for word in PLAIN.map(|(word, _)| word).into_iter().chain(["sliding_window"]) {
        assert!(page.contains(&format!("\n  {word}: {{ label: ")), "{word}");
        assert!(counted_by(word).or_else(|_| counted_by(&format!("{word}:1"))).is_ok(), "{word}");
    }
}

/// A limit, the code that the page shows, and the values that this code has here.
macro_rules! shown {
    ($limit:tt, $quota:literal, [$($algorithm:tt)*], [$($rule:tt)*]) => {{
        let quota = $quota.parse::<Quota>().expect("a quota") $($algorithm)*;
        let rule = Rule::new("playground", PeerIp::new(), quota) $($rule)*;
        let layer = RateLimitLayer::try_rules(rule, LocalStore::new());
        drop(layer.expect("a valid layer"));
        let rust = format!(
            "let quota = {}.parse::<Quota>()?{}; \
             let rule = Rule::new(\"playground\", PeerIp::new(), quota){}; \
             let layer = RateLimitLayer::try_rules(rule, LocalStore::new())?;",
            stringify!($quota), stringify!($($algorithm)*), stringify!($($rule)*),
        );
        (json!($limit), rust, quota)
    }};
}

#[test]
fn the_code_to_copy_compiles_and_has_the_limit() {
    let server = serve();
    let limits = [
        shown!({ "algorithm": "gcra", "units": 10, "period_ms": 4_000 }, "10/4s", [], []),
        shown!({ "algorithm": "gcra", "units": 5, "period_ms": 1_000, "burst": 1,
                 "max_wait_ms": 2_000, "cost": 1 },
            "5/s burst 1", [], [.max_wait(Duration::from_millis(2000))]),
        shown!({ "algorithm": "token_bucket", "units": 6_000, "period_ms": 60_000, "burst": 3_000,
                 "cost": 500 },
            "6000/min burst 3000", [.with_algorithm(Algorithm::TokenBucket)], [.cost(500)]),
        shown!({ "algorithm": "fixed_window", "units": 1, "period_ms": 86_400_000 },
            "1/day", [.with_algorithm(Algorithm::fixed_window())], []),
        shown!({ "algorithm": "paced_window", "units": 10, "period_ms": 4_000 },
            "10/4s", [.with_algorithm(Algorithm::FixedWindow { carry_over: 0, paced: true })], []),
        shown!({ "algorithm": "anchored_window", "units": 10, "period_ms": 4_000 },
            "10/4s", [.with_algorithm(Algorithm::AnchoredWindow)], []),
        shown!({ "algorithm": "sliding_window:10", "units": 10, "period_ms": 4_000 },
            "10/4s", [.with_algorithm(Algorithm::SlidingWindow { buckets: 10 })], []),
        shown!({ "algorithm": "concurrent", "units": 3, "period_ms": 1 }, "3 concurrent", [], []),
        shown!({ "algorithm": "sliding_log", "units": 10, "period_ms": 4_500 },
            "10/4500ms", [.with_algorithm(Algorithm::SlidingLog)], []),
    ];
    let plain = |code: &str| code.split_whitespace().collect::<String>();
    for (limit, rust, quota) in limits {
        let shown = &set(&server, "alice", &limit).json()["lanes"][0];
        assert_eq!(plain(shown["rust"].as_str().expect("code")), plain(&rust), "{limit}");
        let toml = shown["toml"].as_str().expect("a table");
        let settings: RuleSettings = toml::from_str(toml).expect("settings of a rule");
        assert_eq!(settings.quotas.as_ref(), [quota], "{toml}");
        assert_eq!(u64::from(settings.cost), limit["cost"].as_u64().unwrap_or(1), "{toml}");
        let max_wait = Duration::from_millis(limit["max_wait_ms"].as_u64().unwrap_or(0));
        assert_eq!(settings.max_wait, max_wait, "{toml}");
    }
}

#[test]
fn remaining_units_are_shown_without_a_charge() {
    let server = serve();
    set_both(&server, "alice", [&long("gcra"), &long("fixed_window")]);
    let lanes = || get(&server, "alice", "/state").json()["lanes"].clone();
    for _ in 0..5 {
        let account = &lanes()[0]["account"];
        assert_eq!((&account["remaining"], &account["reset_ms"]), (&json!(3), &json!(0)));
    }
    assert_eq!((passed(&server, "alice", 0, 2), passed(&server, "alice", 1, 2)), (2, 2));
    for (lane, windowed) in [(0, false), (1, true)] {
        let state = &lanes()[lane];
        assert_eq!((&state["source"], &state["window"]), (&json!("local"), &json!(windowed)));
        let account = &state["account"];
        assert_eq!((&account["limit"], &account["remaining"]), (&json!(3), &json!(1)), "{lane}");
        assert!(
            account["next_ms"].as_u64() > Some(0) && account["reset_ms"].as_u64() > Some(0),
            "{account}"
        );
    }
}

#[test]
fn a_request_is_charged_its_cost() {
    let server = serve();
    let mut limit = long("gcra");
    limit["cost"] = json!(2);
    set(&server, "alice", &limit);
    assert_eq!(passed(&server, "alice", 0, 2), 1);
    let state = get(&server, "alice", "/state").json();
    assert_eq!(state["lanes"][0]["account"]["remaining"], 1);
}

#[test]
fn visitors_have_separate_limits_and_a_new_limit_starts_full() {
    let server = serve();
    for visitor in ["alice", "bob"] {
        set(&server, visitor, &long("gcra"));
    }
    assert_eq!(passed(&server, "alice", 0, 5), 3);
    assert_eq!(passed(&server, "bob", 0, 5), 3);
    set(&server, "alice", &long("gcra"));
    assert_eq!(passed(&server, "alice", 0, 5), 3);
    assert_eq!(passed(&server, "bob", 0, 5), 0);
    for path in ["/try/0", "/state"] {
        assert_eq!(get(&server, "carol", path).status, 404);
    }
    assert_eq!(get(&server, "alice", "/try/2").status, 404);
    assert_eq!(server.get("/try/0").status, 400);
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
        (with("cost", json!(4)), "cost"),
        (with("hold_ms", json!(10_001)), "hold_ms is 10001; give at most 10000"),
        (json!({ "algorithm": "concurrent", "units": 0, "period_ms": 1 }), "concurrent is \"0\""),
    ] {
        let answer = set_both(&server, "alice", [&long("gcra"), &limit]);
        assert_eq!(answer.status, 422, "{limit}: {answer:?}");
        assert!(answer.body.contains(said), "{said:?} is not in {}", answer.body);
    }
    assert_eq!(passed(&server, "alice", 0, 5), 3);
}

#[test]
fn slots_are_held_while_requests_run() {
    let server = serve();
    let slots = json!({ "algorithm": "concurrent", "units": 3, "period_ms": 1, "hold_ms": 3_000 });
    let rate = json!({ "algorithm": "gcra", "units": 4, "period_ms": PERIOD, "hold_ms": 3_000 });
    let shown = set_both(&server, "alice", [&slots, &rate]).json();
    assert_eq!(shown["lanes"][0]["text"], "3 concurrent");
    let lines: Vec<_> = fire(&server, "alice", "n=5").collect();
    let allowed =
        |lane: u8| lines.iter().filter(|it| it["allowed"] == true && it["lane"] == lane).count();
    assert_eq!((allowed(0), allowed(1)), (3, 4), "{lines:?}");
    let left = |lane: usize| {
        get(&server, "alice", "/state").json()["lanes"][lane]["account"]["remaining"].clone()
    };
    assert_eq!((left(0), left(1)), (json!(3), json!(0)), "only slots are free when requests end");
    let boundary = get(&server, "alice", "/fire?each_side=2");
    assert_eq!((boundary.status, boundary.body.contains("slots have no window")), (422, true));
}

#[test]
fn a_request_queues_if_configured() {
    let server = serve();
    let limit = json!({
        "algorithm": "gcra", "units": 1, "period_ms": 300, "burst": 1, "max_wait_ms": 60_000,
    });
    set(&server, "alice", &limit);
    // on a slow machine a unit may refill once or twice
    let waited = |_| get(&server, "alice", "/try/0").header("x-waited-ms").map(str::to_owned);
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
    assert_eq!(lines.len(), 80, "{lines:?}");
    let allowed = |wanted: bool| lines.iter().filter(move |line| line["allowed"] == wanted);
    for lane in [0, 1] {
        let count = |wanted| allowed(wanted).filter(|line| line["lane"] == lane).count();
        assert_eq!((count(true), count(false)), (3, 17), "lane {lane}");
    }
    for (line, head, field) in [
        (allowed(true).next(), "HTTP/1.1 200 OK", "x-waited-ms"),
        (allowed(false).next(), "HTTP/1.1 429 Too Many Requests", "retry-after"),
    ] {
        let line = line.expect("a line");
        assert_eq!(line["head"], head);
        let fields: Vec<(String, String)> =
            serde_json::from_value(line["fields"].clone()).expect("names and values");
        for wanted in [field, "ratelimit", "x-arrived-ms"] {
            assert!(fields.iter().any(|(name, _)| name == wanted), "{wanted}: {line}");
        }
        let same = |sent: &&Value| sent["id"] == line["id"] && sent["lane"] == line["lane"];
        let sent = lines.iter().find(same).expect("when it was sent");
        assert!(sent.get("head").is_none() && sent["at_ms"].as_f64() <= line["at_ms"].as_f64());
    }
    for query in ["", "n=0", "n=201", "n=-1", "every_ms=19", "n=5&every_ms=100", "each_side=101"] {
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
    let answered = fire(&server, "alice", "n=20")
        .filter(|line| line["lane"] == 0 && line.get("head").is_some());
    let allowed = answered.take(1 + 9).filter(|line| line["allowed"] == true).count();
    assert_eq!(allowed, 1, "ten have their turn in time and queue, and nine are denied");
}

#[test]
fn a_steady_rate_continues_until_the_reader_disconnects() {
    let server = serve();
    let limit = json!({ "algorithm": "gcra", "units": 1_000_000, "period_ms": 3_153_600_000_u64 });
    set(&server, "alice", &limit);
    let mut lines = fire(&server, "alice", "every_ms=20");
    assert!(lines.by_ref().any(|line| line["id"] == 50));
    drop(lines);
    let left =
        || get(&server, "alice", "/state").json()["lanes"][1]["account"]["remaining"].as_u64();
    let still = |_| {
        let before = left();
        thread::sleep(Duration::from_millis(500));
        left() == before
    };
    assert!((0..60).any(still), "{:?} left", left());
}

/// The numbers of allowed requests in each lane, if every request arrived in time.
fn bursts_around_a_boundary(lines: impl Iterator<Item = Value>) -> Option<(u32, u32)> {
    let (mut allowed, mut too_slow) = ([0, 0], None);
    for line in lines {
        if line["allowed"] == true {
            allowed[usize::from(line["lane"] == 1)] += 1;
        }
        too_slow = too_slow.or(line["too_slow"].as_bool());
    }
    (!too_slow.expect("the last line")).then_some((allowed[0], allowed[1]))
}

fn with_a_fixed_window(server: &Server, period: u64) {
    let limit = |algorithm| json!({ "algorithm": algorithm, "units": 5, "period_ms": period });
    set_both(server, "alice", [&limit("gcra"), &limit("fixed_window")]);
}

#[test]
fn a_fixed_window_allows_two_bursts_around_its_boundary() {
    let server = serve();
    let play = |period| {
        with_a_fixed_window(&server, period);
        let lines: Vec<_> = fire(&server, "alice", "each_side=5").collect();
        assert!(lines[0]["boundary_ms"].as_f64() <= Some(1.3 * period as f64), "{}", lines[0]);
        assert_eq!(lines.len(), 1 + 2 * 20 + 1, "{lines:?}");
        bursts_around_a_boundary(lines.into_iter())
    };
    // a machine that is delayed may miss the boundary
    let seen = [4_000, 8_000, 16_000, 32_000].into_iter().find_map(play);
    let (gcra, fixed) = seen.expect("every request in time");
    assert!(fixed == 10 && (5..=8).contains(&gcra), "GCRA allows {gcra}, a fixed window {fixed}");
    with_a_fixed_window(&server, 60_001);
    let answer = get(&server, "alice", "/fire?each_side=5");
    assert_eq!((answer.status, answer.body.contains("longer than 60 s")), (422, true));
}

/// A process that is stopped for the time of the first burst sends it too late.
#[cfg(unix)]
#[test]
fn bursts_that_miss_their_side_of_the_boundary_are_reported() {
    let server = serve();
    with_a_fixed_window(&server, 2_000);
    let mut lines = fire(&server, "alice", "each_side=5");
    let first = lines.next().expect("the time of the boundary");
    let signal = |name: &str| {
        let kill = Command::new("kill").args([name, &server.child.id().to_string()]).status();
        assert!(kill.expect("kill runs").success());
    };
    signal("-STOP");
    let left = first["boundary_ms"].as_f64().expect("milliseconds");
    thread::sleep(Duration::from_secs_f64(left / 1e3 + 0.1));
    signal("-CONT");
    assert_eq!(bursts_around_a_boundary(lines), None);
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

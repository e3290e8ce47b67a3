//! The playground as a program, and what its page asks of it.

#[path = "../examples/support/algorithm.rs"]
mod algorithm;
#[path = "support/programs.rs"]
mod programs;

use std::{
    io::{BufRead, BufReader, Write},
    net::TcpStream,
    thread,
    time::Duration,
};

use algorithm::{PLAIN, counted_by};
use programs::{ANY_PORT, Answer, PATIENCE, Server, end, example};
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
    for algorithm in PLAIN.map(|(word, _)| word).into_iter().chain(["sliding_window:10"]) {
        let answer = set(&server, "alice", &long(algorithm));
        assert_eq!((answer.status, answer.body.starts_with("3/")), (200, true), "{answer:?}");
        let first = get(&server, "alice", "/try");
        assert_eq!((first.status, first.header("x-naive")), (200, Some("admitted")), "{algorithm}");
        assert_eq!(first.header("x-waited-ms"), Some("0"));
        // paced units come one by one
        let more = if algorithm == "paced_window" { 0 } else { 2 };
        let told = first.header("ratelimit").expect("what is left");
        assert!(told.starts_with(&format!("\"playground\";r={more}")), "{algorithm}: {told}");
        assert_eq!(passed(&server, "alice", 2), (more, 2), "{algorithm}");

        let refused = get(&server, "alice", "/try");
        assert_eq!((refused.status, refused.header("x-naive")), (429, Some("refused")));
        let wait: u64 = refused.header("retry-after").expect("a wait").parse().expect("seconds");
        assert!(wait >= 1, "{algorithm}");
    }
}

/// What can be chosen at the gateway can be chosen here, and has a name in the page of operators.
#[test]
fn no_page_lacks_an_algorithm() {
    let page = include_str!("../examples/playground/page.html");
    let names = include_str!("../src/admin/page.js").replace('_', "");
    for word in PLAIN.map(|(word, _)| word).into_iter().chain(["sliding_window"]) {
        assert!(page.contains(&format!("<option value=\"{word}\"")), "{word}");
        let algorithm = counted_by(word).or_else(|_| counted_by(&format!("{word}:1")));
        let debugged = format!("{:?}", algorithm.expect("an algorithm")).to_lowercase();
        let variant = debugged.split(' ').next().expect("its name");
        assert!(names.contains(&format!("\n  {variant}: \"")), "{variant}");
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

/// Lines as they come, of what the page reads to draw.
fn fire(server: &Server, visitor: &str, query: &str) -> impl Iterator<Item = Value> {
    let mut stream = TcpStream::connect(server.address).expect("connects");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let head = "host: test\r\nconnection: close\r\nx-visitor";
    let request = format!("GET /fire?{query} HTTP/1.1\r\n{head}: {visitor}\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("sends");
    // each is a chunk of its own, after a line with its length
    let lines = BufReader::new(stream).lines().map(|line| line.expect("a line"));
    let lines = lines.filter(|line| line.starts_with('{'));
    lines.map(|line| serde_json::from_str(&line).expect("JSON"))
}

#[test]
fn a_burst_is_sent_over_http_and_told_as_the_server_answered() {
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

/// Those that wait do not keep the others from being sent, as six connections of a browser would.
#[test]
fn a_burst_is_sent_at_once() {
    let server = serve();
    let limit = json!({
        "algorithm": "gcra", "units": 1, "period_ms": 600_000, "burst": 1, "max_wait_ms": 6_300_000,
    });
    set(&server, "alice", &limit);
    let told = fire(&server, "alice", "n=20").filter(|line| line.get("head").is_some()).take(9 + 1);
    let admitted = told.filter(|line| line["admitted"] == true).count();
    assert_eq!(admitted, 1, "ten wait, and the last nine are refused meanwhile");
}

#[test]
fn a_steady_rate_goes_on_until_nobody_listens() {
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
fn a_store_that_is_none_is_refused_with_the_fix() {
    for (store, why) in [
        ("disk", "--store disk: give local or redis://host[:port][/db]"),
        // a program with Redis and one without: either may be there
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

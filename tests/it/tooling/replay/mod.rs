//! The example `replay`, run on logs as a user does.
//!
//! One log has every form of line in public logs. Others are too long for memory.

mod decisions;
#[path = "../../../../examples/replay/least.rs"]
mod least;
#[path = "../../../../examples/replay/simulate.rs"]
pub(super) mod simulate;
mod smallest;

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::{Output, Stdio},
    sync::atomic::{AtomicU32, Ordering::Relaxed},
};

use serde_json::{Value, json};

use crate::support::programs::example;

/// A log of 31 lines. `unreadable_lines_are_counted_and_named` lists the kind of each.
const LOG: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/it/tooling/replay/access.log");
const PEER: &str = "name=ip key=peer quota='1/s burst 2'";

fn run(flags: &[&str]) -> Output {
    example("replay").args(flags).stdin(Stdio::null()).output().expect("runs")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("text")
}

fn said(flags: &[&str]) -> String {
    let output = run(flags);
    assert!(output.status.success(), "{flags:?}: {}", text(&output.stderr));
    // no progress output without a terminal
    assert_eq!(text(&output.stderr), "");
    text(&output.stdout).to_owned()
}

fn report(flags: &[&str]) -> Value {
    serde_json::from_str(&said(&[&["--json"], flags].concat())).expect("JSON")
}

/// A log file of one test, deleted with it.
struct Log(PathBuf);

impl Log {
    fn new(text: impl AsRef<[u8]>) -> Self {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let name = format!("replay-{}-{}.log", std::process::id(), MADE.fetch_add(1, Relaxed));
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::write(&path, text).expect("a file");
        Self(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().expect("text")
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn line(address: &str, hour: u32, second: u32) -> String {
    let (minute, second) = (second / 60, second % 60);
    let time =
        format!("{:02}/Mar/2026:{:02}:{minute:02}:{second:02} +0000", 1 + hour / 24, hour % 24);
    format!("{address} - - [{time}] \"GET /a/page?of=it HTTP/1.1\" 200 512 \"-\" \"an agent\"\n")
}

#[test]
fn unreadable_lines_are_counted_and_named() {
    let report = report(&["--rule", PEER, LOG]);
    assert_eq!((&report["lines"], &report["requests"]), (&json!(31), &json!(22)));
    let reasons = json!({
        "empty": 1, "too_long": 1, "address": 1, "time": 2, "request": 2, "status": 1, "quote": 1,
    });
    assert_eq!(report["malformed_by_reason"], reasons);
    assert_eq!(report["malformed"], 9);
    let named = report["malformed_first"].as_array().expect("a list");
    let named: Vec<_> = named.iter().map(|it| (&it["line"], &it["reason"], &it["what"])).collect();
    for (at, (line, reason, what)) in [
        (11, "empty", Value::Null),
        (12, "address", json!("crawler.example")),
        (13, "request", json!(r"\x16\x03\x01\x02")),
        (14, "request", json!("-")),
        (15, "time", json!("10/Okt/2025:13:00:03 +0200")),
        (16, "status", json!(" 200")),
        (17, "quote", json!("\"Mozilla")),
        (23, "time", json!(r"\x00\xff\xfe garbage")),
        (24, "too_long", Value::Null),
    ]
    .into_iter()
    .enumerate()
    {
        assert_eq!(named[at], (&json!(line), &json!(reason), &what));
    }
}

#[test]
fn the_report_shows_keys_times_and_the_smallest_burst() {
    let report = report(&["--rule", PEER, LOG]);
    assert_eq!(report["from"], "2025-10-10T11:00:00Z", "in UTC");
    assert_eq!(report["to"], "2025-10-10T11:00:08Z");
    let counts = ["passed", "denied", "delayed", "without_key", "late", "overflowed"];
    assert_eq!(counts.map(|count| &report[count]), [14, 8, 0, 0, 1, 0]);
    let rule = &report["rules"][0];
    assert_eq!((&rule["requests"], &rule["delayed"]["count"]), (&json!(22), &json!(0)));
    let denied = &rule["denied"];
    assert_eq!([&denied["count"], &denied["keys"], &denied["short"]], [8, 4, 0]);
    let who = |at: usize| {
        let who = &denied["top"][at];
        (who["key"].as_str().expect("a key"), who["count"].as_u64().expect("a number"))
    };
    // five at once and one with a mapped address, of which four pass
    assert_eq!([who(0), who(1)], [("203.0.113.7", 3), ("10.0.0.5", 3)]);
    assert_eq!([who(2), who(3)], [("2001:db8:0:1::/64", 1), ("192.0.2.10", 1)]);
    assert_eq!(denied["top"][0]["first"], "2025-10-10T11:00:01Z");
    assert_eq!(report["worst_minute"], json!({ "start": "2025-10-10T11:00:00Z", "denied": 8 }));
    assert_eq!(report["slices"][1], json!({ "start": 1_760_094_001, "requests": 5, "denied": 3 }));
    assert_eq!(report["least"][0]["least"], "1/s burst 5");
    assert_eq!(report["limited_with_least"], 0);
}

#[test]
fn the_table_has_the_keys_that_each_burst_would_have_limited() {
    let report = report(&["--rule", PEER, LOG]);
    let table = &report["bursts"][0];
    assert_eq!((&table["rule"], &table["given"]), (&json!("ip"), &json!("1/s burst 2")));
    let rows = table["rows"].as_array().expect("rows");
    let row = |at: usize| [&rows[at]["limit"], &rows[at]["keys"], &rows[at]["requests"]];
    let denied = &report["rules"][0]["denied"];
    assert_eq!(row(0), [&json!(2), &denied["keys"], &denied["count"]]);
    assert_eq!((rows.len(), row(2)), (3, [&json!(5), &json!(0), &json!(0)]));
    assert!(rows[1]["keys"].as_u64() < rows[0]["keys"].as_u64(), "{table}");

    // Each quota alone, and at most eight rows in all.
    let log: String = (0..200).map(|_| line("192.0.2.1", 0, 1)).collect();
    let log = Log::new(log);
    let rule = "name=ip key=peer quota=1/s,1/min algorithm=fixed_window report_only";
    let report = self::report(&["--rule", rule, log.path()]);
    for quota in 0..2 {
        let rows = report["bursts"][quota]["rows"].as_array().expect("rows");
        let ends = [&rows[0]["requests"], &rows[rows.len() - 1]["requests"]];
        assert_eq!((ends, rows.len()), ([&json!(199), &json!(0)], 4), "{rows:?}");
    }
}

#[test]
fn requests_of_an_exempt_key_count_nowhere() {
    let with = |except: &[&str]| {
        let flags: Vec<_> = except.iter().flat_map(|key| ["--except", key]).collect();
        report(&[&["--rule", PEER][..], &flags, &[LOG]].concat())
    };
    let report = with(&["203.0.113.7", "2001:db8:0:1:2::3"]);
    let names = report["rules"][0]["denied"]["top"].as_array().expect("keys").iter();
    let names: Vec<_> = names.map(|who| who["key"].as_str().expect("a key")).collect();
    assert_eq!(names, ["10.0.0.5", "192.0.2.10"]);
    let count = |name: &str| report[name].as_u64().expect("a number");
    assert_eq!((count("requests") + count("excepted"), count("denied")), (22, 4));
    assert_eq!(with(&["203.0.113.99"])["excepted"], 0);
    let said = said(&["--except", "203.0.113.7", "--rule", PEER, LOG]);
    assert!(said.contains(" more requests are exempt by --except\n"), "{said}");
    let output = run(&["--except", "bob", "--rule", PEER, LOG]);
    let why = text(&output.stderr);
    assert!(
        output.status.code() == Some(2) && why.contains("\"bob\" is a key of no rule"),
        "{why}"
    );
}

#[test]
fn the_client_is_the_address_from_a_trusted_proxy() {
    let rule = ["--trusted-proxy", "10.0.0.0/8", "--rule", "name=ip key=client quota=1/min"];
    let report = report(&[&rule, &["--top", "9", LOG][..]].concat());
    let top = report["rules"][0]["denied"]["top"].as_array().expect("a list");
    let of = |key: &str| top.iter().find(|who| who["key"] == key).map(|who| &who["count"]);
    assert_eq!(of("198.51.100.9"), Some(&json!(1)), "twice, regardless of the claimed address");
    assert_eq!(of("10.0.0.5"), None, "once, without a header");
    assert_eq!(of("203.0.113.7"), Some(&json!(5)), "not trusted: a client itself");
    assert_eq!(report["without_key"], 1, "one that says unknown");
}

#[test]
fn text_fields_of_the_log_can_be_keys() {
    let rules = [
        "--rule",
        "name=agent key=header:user-agent quota=1/day missing=skip",
        "--rule",
        "name=user key=header:x-remote-user quota=1/day missing=skip report_only",
        "--rule",
        "name=from key=header:referer quota=1/day missing=skip",
    ];
    let report = report(&[&rules, &[LOG][..]].concat());
    let named = |rule: usize| {
        let top = report["rules"][rule]["denied"]["top"].as_array().expect("a list");
        top.iter().map(|who| who["key"].as_str().expect("text")).collect::<Vec<_>>()
    };
    assert!(named(0).contains(&"curl/8.5.0"), "{:?}", named(0));
    assert_eq!(named(1), [""; 0], "each user once");
    assert_eq!(report["rules"][1]["requests"], 1);
    assert_eq!(report["rules"][2]["requests"], 1);
    // a header cannot contain a zero byte
    assert_eq!(report["malformed_by_reason"]["header"], 1);
}

#[test]
fn the_text_output_has_the_content_of_the_report() {
    let said = said(&["--rule", PEER, LOG]);
    for part in [
        "31 lines, 22 requests, 9 malformed\n",
        "from 2025-10-10T11:00:00Z to 2025-10-10T11:00:08Z\n",
        "access.log:12: no address where one should be",
        ": crawler.example\n",
        "8 are denied\n",
        "rule ip: denies 8 of 22, from 2025-10-10T11:00:01Z to 2025-10-10T11:00:07Z\n",
        "3 203.0.113.7 at 2025-10-10T11:00:01Z\n",
        "Most in one minute: 8, from 2025-10-10T11:00:00Z\n",
        "2025-10-10T11:00:01Z         5         3 ########################----------------\n",
        "rule ip: quota=\"1/s burst 5\" instead of \"1/s burst 2\"\n",
        "Replayed with them: no request limited\n",
        "rule ip: keys that a burst would have limited\n",
    ] {
        assert!(said.contains(part), "{part:?} is not in {said}");
    }
}

#[test]
fn anonymous_keys_are_not_shown() {
    let said = said(&["--anonymous", "--rule", PEER, LOG]);
    for part in ["203.0.113", "192.0.2", "2001:db8", "10.0.0.5", "crawler"] {
        assert!(!said.contains(part), "{part:?} is in {said}");
    }
    assert!(said.contains("rule ip: denies 8 of 22"));
}

#[test]
fn queued_requests_pass_later() {
    let report = report(&["--rule", "name=ip key=peer quota='1/s burst 2' max_wait=2000ms", LOG]);
    let counts = ["passed", "delayed", "denied", "longest_wait_ms"];
    let [passed, delayed, denied, wait] = counts.map(|it| report[it].as_u64().expect("a number"));
    assert_eq!((passed + delayed + denied, wait), (22, 2_000));
    assert!(delayed > 0 && denied < 8, "{delayed} {denied}");
    assert_eq!(report["least"][0]["least"], "1/s burst 5", "and no request queues");
    assert_eq!(report["limited_with_least"], 0);
}

#[test]
fn a_queued_request_is_reported_by_the_rule_it_waits_for() {
    let log: String = [0, 0, 0, 1, 60].map(|second| line("192.0.2.7", 0, second)).concat();
    let log = Log::new(line("192.0.2.8", 0, 0) + &log);
    let flags = [
        "--rule",
        "name=pace key=peer quota='1/s burst 1' max_wait=1000ms",
        "--rule",
        "name=site key=everyone quota=4/min max_wait=1000ms",
        log.path(),
    ];
    let found = report(&flags);
    assert_eq!([&found["passed"], &found["delayed"], &found["denied"]], [3, 2, 1]);
    let [pace, site] = [0, 1].map(|rule| &found["rules"][rule]);
    let who =
        |first, last| json!([{ "key": "192.0.2.7", "count": 2, "first": first, "last": last }]);
    let times = ["2026-03-01T00:00:00Z", "2026-03-01T00:00:01Z"];
    assert_eq!(pace["delayed"]["top"], who(times[0], times[1]));
    assert_eq!([&pace["delayed"]["count"], &pace["delayed"]["keys"]], [2, 1]);
    assert_eq!(
        (&pace["delayed"]["first"], &pace["delayed"]["last"]),
        (&times[0].into(), &times[1].into())
    );
    assert_eq!(pace["denied"]["count"], 1);
    // it took the last unit at 00:01, but no request waited for it
    assert_eq!([&site["delayed"]["count"], &site["denied"]["count"]], [0, 0]);
    let said = said(&flags);
    for part in [
        "rule pace: denies 1 of 6, from 2026-03-01T00:00:00Z to 2026-03-01T00:00:00Z\n",
        "rule pace: delays 2 of 6, from 2026-03-01T00:00:00Z to 2026-03-01T00:00:01Z\n",
        "2 192.0.2.7 from 2026-03-01T00:00:00Z to 2026-03-01T00:00:01Z\n",
        "rule site: 6 requests, no request denied or delayed\n",
    ] {
        assert!(said.contains(part), "{part:?} is not in {said}");
    }
}

#[test]
fn files_in_the_wrong_order_are_reported() {
    let of = |hour: u32, seconds: u32| {
        Log::new((0..seconds).map(|second| line("192.0.2.1", hour, second)).collect::<String>())
    };
    let (old, new) = (of(0, 100), of(9, 300));
    let note = "100 of 400 requests come late, by up to 32699 s";
    let wrong = report(&[new.path(), old.path()]);
    assert_eq!((&wrong["late"], &wrong["late_by_s"]), (&json!(100), &json!(32_699)));
    let notes = wrong["notes"].as_array().expect("a list");
    assert!(notes.len() == 1 && notes[0].as_str().expect("text").starts_with(note), "{notes:?}");
    let said = said(&[new.path(), old.path()]);
    assert!(said.contains(&format!("note: {note}")) && said.contains("ls -tr"), "{said}");
    assert_eq!(report(&[old.path(), new.path()])["notes"], json!([]));
    // a request that took a long time
    let few = Log::new(fs::read_to_string(new.path()).expect("a log") + &line("192.0.2.1", 9, 290));
    let few = report(&[few.path()]);
    assert_eq!((&few["late"], &few["notes"]), (&json!(1), &json!([])));
}

/// Another key each second, denied once: its debt lasts longer under the smallest limit, under
/// which nothing is denied.
#[test]
fn smallest_limits_measured_without_enough_capacity_are_reported() {
    let keys: String =
        (0..6_000).map(|n| line(&format!("192.0.2.{}", n / 60), 0, n / 60)).collect();
    let log = Log::new(keys);
    let of =
        |room| report(&["--rule", "name=ip key=peer quota=1/s", "--capacity", room, log.path()]);
    let small = of("16");
    assert_eq!(small["overflowed"], 0);
    assert!(small["overflowed_in_least"].as_u64() > Some(0), "{small}");
    assert!(small["least"][0]["limit"].as_u64() > Some(60), "{small}");
    let note = small["notes"][0].as_str().expect("a note");
    assert!(note.contains("the smallest limits, which may be too large"), "{note}");
    let large = of("1000");
    assert_eq!((&large["overflowed_in_least"], &large["notes"]), (&json!(0), &json!([])));
    assert_eq!(large["least"][0]["limit"], 60);
}

#[test]
fn user_names_and_paths_can_be_any_text() {
    let stamp = "[01/Mar/2026:00:00:00 +0000]";
    let names = ["a [b", "[", "a]", " [x] ", "x [01/Feb/2026:00:00:00 +0000]", "x [] y [", r"\x22"];
    let log: String = names
        .iter()
        .map(|name| format!("192.0.2.1 - {name} {stamp} \"GET / HTTP/1.1\" 200 1\n"))
        .collect();
    let log = Log::new(log);
    let rule = "name=user key=header:x-remote-user quota=1/day";
    let found = report(&["--rule", rule, log.path(), log.path()]);
    assert_eq!((&found["malformed"], &found["without_key"]), (&json!(0), &json!(0)), "{found}");
    let top = found["rules"][0]["denied"]["top"].as_array().expect("a list");
    let reported = |name: &str| top.iter().any(|who| who["key"] == name && who["count"] == 1);
    assert!(
        reported("a [b") && reported("x [01/Feb/2026:00:00:00 +0000]") && reported("x [] y ["),
        "{top:?}"
    );
    assert_eq!((top.len(), &found["from"]), (7, &json!("2026-03-01T00:00:00Z")));

    let other = "[01/Feb/2026:00:00:00 +0000]";
    let requests =
        ["GET / [x] ".to_owned(), format!("GET /{other}\\\" HTTP/1.1"), format!("GET / {other} ")];
    for request in requests {
        let log = Log::new(format!("192.0.2.1 - - {stamp} \"{request}\" 400 0\n"));
        let found = report(&[log.path()]);
        assert_eq!(found["malformed_first"][0]["reason"], "request", "{request}");
        assert_eq!(found["malformed_first"][0]["what"], request.as_str());
    }
}

#[test]
fn an_invalid_time_in_the_first_line_is_malformed_too() {
    for time in ["", "-", "1"] {
        let log = format!("192.0.2.1 - - [{time}] \"GET / HTTP/1.1\" 200 1\n");
        let found = report(&[Log::new(log + &line("192.0.2.1", 0, 0)).path()]);
        assert_eq!(found["malformed_by_reason"], json!({ "time": 1 }), "{time:?}");
        assert_eq!(found["from"], "2026-03-01T00:00:00Z");
    }
}

#[test]
fn one_wrong_time_is_malformed_and_changes_nothing() {
    let good: Vec<_> = (0..40).map(|n| line("192.0.2.1", 0, n / 4)).collect();
    let plain = report(&[Log::new(good.concat()).path()]);
    let counts = ["requests", "denied", "late", "from", "to", "slices", "rules", "least"];
    for (at, year) in [(0, 2099), (17, 2099), (17, 9999), (40, 2030)] {
        let mut lines = good.clone();
        lines.insert(at, good[0].replace("2026", &year.to_string()));
        let log = Log::new(lines.concat());
        let found = report(&[log.path()]);
        assert_eq!(counts.map(|it| &found[it]), counts.map(|it| &plain[it]), "{at}");
        let named = json!([{
            "file": log.path(), "line": at + 1, "reason": "ahead",
            "what": format!("{year}-03-01T00:00:00Z"),
        }]);
        assert_eq!((&found["lines"], &found["malformed_first"]), (&json!(41), &named));
        assert_eq!((&found["limited_with_least"], &found["notes"]), (&json!(0), &json!([])));
        // in a stream, too
        let stdin = fs::File::open(log.path()).expect("the log");
        let output = example("replay").args(["--json", "-"]).stdin(stdin).output().expect("runs");
        let once: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(counts.map(|it| &once[it]), counts.map(|it| &plain[it]), "{at}");
    }
}

#[test]
fn days_without_requests_are_valid() {
    let log: String =
        [0, 1, 100, 100, 400, 401].map(|hour| line("192.0.2.1", hour, 0)).concat() + "garbage\n";
    let log = Log::new(log);
    let found = report(&[log.path()]);
    assert_eq!([&found["requests"], &found["malformed"], &found["late"]], [6, 1, 0]);
    assert_eq!(found["to"], "2026-03-17T17:00:00Z");
    let alone = Log::new(line("192.0.2.1", 0, 0));
    assert_eq!(report(&[alone.path()])["requests"], 1, "and a line may be the only one");
}

#[test]
fn every_quota_has_a_smallest_limit_and_one_less_limits() {
    let log: String = (0..4_000)
        .map(|n| line(&format!("192.0.2.{}", n % 7 * (n % 11)), 0, n * n % 997 + n / 2))
        .collect();
    let log = Log::new(log);
    for algorithm in ["gcra", "token_bucket", "fixed_window", "sliding_window:5", "sliding_log"] {
        let rule = |first: &str, second: &str| {
            format!("name=ip key=peer quota='{first},{second}' algorithm={algorithm}")
        };
        let found = report(&["--rule", &rule("9/s", "60/min"), log.path()]);
        assert_eq!(found["limited_with_least"], 0, "{algorithm}");
        let least = |at: usize| found["least"][at]["least"].as_str().expect("a quota").to_owned();
        let limited = |first: &str, second: &str| {
            let found = report(&["--rule", &rule(first, second), log.path()]);
            found["denied"].as_u64().expect("a number")
        };
        assert_eq!(limited(&least(0), &least(1)), 0, "{algorithm}");
        let limit = found["least"][1]["limit"].as_u64().expect("a number");
        let windowed = !["gcra", "token_bucket"].contains(&algorithm);
        let less = match limit - 1 {
            less if windowed => format!("{less}/min"),
            less => format!("60/min burst {less}"),
        };
        assert!(limited(&least(0), &less) > 0, "{algorithm} {less}");
    }
}

#[test]
fn a_stream_is_read_once_and_files_in_their_order() {
    let stdin = fs::File::open(LOG).expect("the log");
    let output = example("replay").args(["--json", "-"]).stdin(stdin).output().expect("runs");
    let once: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((&once["lines"], &once["limited_with_least"]), (&json!(31), &Value::Null));
    assert_eq!(once["least"][0]["least"], "5/s");

    let (early, late) = (Log::new(line("192.0.2.1", 0, 0)), Log::new(line("192.0.2.1", 9, 0)));
    let both = |first: &Log, second: &Log| report(&[first.path(), second.path()])["late"].clone();
    assert_eq!((both(&early, &late), both(&late, &early)), (json!(0), json!(1)));
    let empty = Log::new("");
    assert_eq!(report(&[empty.path()])["lines"], 0);
    assert_eq!(said(&[empty.path()]), "0 lines, 0 requests, 0 malformed\n");
}

#[test]
fn invalid_arguments_report_the_fix() {
    let zipped = Log::new([0x1f, 0x8b, 8, 0]);
    let rule = |rule: &'static str| vec!["--rule", rule, LOG];
    for (code, flags, wanted) in [
        (1, vec!["no-such.log"], "no-such.log: "),
        (1, vec![env!("CARGO_TARGET_TMPDIR")], "is a folder; give the logs in it"),
        (1, vec![zipped.path()], "is compressed; say: zcat"),
        (2, vec![], "<FILE>"),
        (2, rule("name=r key=route quota=1/s"), "key is route, and a log does not have"),
        (2, rule("name=k key=header:x-api-key quota=1/s"), "give header:user-agent, header:ref"),
        (2, rule("name=c key=client quota=1/s"), "add one, as --trusted-proxy 10.0.0.0/8"),
        (2, rule("name=ip key=peer quota=5/s cost=6"), "cost 6 is above the quota's limit 5"),
        (2, vec!["--trusted-proxy", "10.0.0.1/8", LOG], "has bits set beyond"),
    ] {
        let output = run(&flags);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{flags:?}: {said}");
        assert!(said.contains(wanted), "{wanted:?} is not in {said}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn a_month_has_no_more_slices_than_a_minute() {
    let log: String = (0..700).map(|hour| line("192.0.2.1", hour, 0)).collect();
    let report = report(&[Log::new(log).path()]);
    let slices = report["slices"].as_array().expect("a list");
    assert_eq!((slices.len(), &report["slice_seconds"]), (30, &json!(86_400)));
    let sum = |what| slices.iter().filter_map(|slice| slice[what].as_u64()).sum::<u64>();
    assert_eq!((sum("requests"), sum("denied")), (700, 0));
}

#[test]
fn the_longest_line_is_64_kib_however_it_ends() {
    const LONGEST: usize = 64 * 1024;
    let of = |len: usize, end: &str| {
        let line = line("192.0.2.1", 0, 0).trim_end().to_owned();
        let agent = "a".repeat(len - line.len());
        line.replace("an agent", &format!("an agent{agent}")) + end
    };
    for (over, malformed) in [(0, 0), (1, 1), (2, 1), (9, 1), (LONGEST, 1)] {
        for end in ["\n", "\r\n", "\r"] {
            let log = of(LONGEST + over, end) + "\n" + &of(200, end);
            let report = report(&[Log::new(log).path()]);
            assert_eq!(report["malformed_by_reason"]["too_long"].as_u64().unwrap_or(0), malformed);
            assert_eq!(report["requests"], 2 - malformed, "{over} over, {end:?}");
        }
    }
}

/// Changes, loses or doubles bytes, as a full disk or a faulty script does.
#[test]
fn garbage_does_not_stop_the_replay() {
    let mut random = 7_u64;
    let mut below = |most: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        usize::try_from(random >> 33).expect("31 bits") % most
    };
    let (whole, mut log) = (fs::read(LOG).expect("the log"), Vec::new());
    let whole: Vec<_> = whole.split(|byte| *byte == b'\n').filter(|it| it.len() < 999).collect();
    for _ in 0..10_000 {
        let mut line = whole[below(whole.len())].to_vec();
        for _ in 0..below(3) {
            if line.is_empty() {
                break;
            }
            let at = below(line.len());
            match below(4) {
                0 => line.truncate(at),
                1 => line.insert(at, b" \"\\[]:-/"[below(8)]),
                2 => drop(line.remove(at)),
                _ => line[at] = u8::try_from(below(256)).expect("a byte"),
            }
        }
        log.extend(line.into_iter().map(|byte| if byte == b'\n' { b' ' } else { byte }));
        log.push(b'\n');
    }
    let log = Log::new(log);
    let report = report(&["--rule", "name=a key=header:user-agent quota=1/s", log.path()]);
    let [lines, requests, malformed] =
        ["lines", "requests", "malformed"].map(|it| report[it].as_u64().expect("a number"));
    assert_eq!((lines, requests + malformed), (10_000, 10_000));
    assert!(requests > 2_000 && malformed > 2_000, "{requests} {malformed}");
    let reasons = report["malformed_by_reason"].as_object().expect("reasons");
    let count: u64 = reasons.values().filter_map(Value::as_u64).sum();
    assert_eq!((count, reasons.len()), (malformed, 8), "{reasons:?}");
}

/// Builds a log of keys of which most are denied once, and one is always denied.
fn many_keys(lines: u32) -> Log {
    let mut log = String::new();
    for n in 0..lines {
        let (a, b) = (n / 3 % 256, n / 3 / 256 % 256);
        let address = if n % 5 == 0 { "203.0.113.7".into() } else { format!("10.9.{b}.{a}") };
        write!(log, "{}", line(&address, n / 36_000, n / 10 % 3_600)).expect("room");
        if n % 100 == 0 {
            log.push_str("garbage\n");
        }
    }
    Log::new(log)
}

#[test]
fn the_most_denied_key_is_found_among_many() {
    let report =
        report(&["--rule", "name=ip key=peer quota=1/h", "--top", "1", many_keys(20_000).path()]);
    let rule = &report["rules"][0]["denied"];
    let number = |value: &Value| value.as_u64().expect("a number");
    assert!(number(&rule["short"]) > 0, "more keys than are counted at a time");
    assert_eq!(rule["top"][0]["key"], "203.0.113.7");
    let count = number(&rule["top"][0]["count"]);
    assert!(count <= 3_999 && count + number(&rule["short"]) >= 3_999, "{count}");
}

/// Returns the peak memory of a run, in kB.
#[cfg(target_os = "linux")]
fn peak(log: &Log) -> u64 {
    let rule = "name=ip key=peer quota=1/h";
    let output = run(&["--peak", "--capacity", "1024", "--rule", rule, log.path()]);
    let said = text(&output.stderr);
    let peak = said.strip_prefix("peak: ").and_then(|said| said.strip_suffix(" kB\n"));
    peak.unwrap_or_else(|| panic!("{said}")).parse().expect("a number")
}

#[cfg(target_os = "linux")]
#[test]
fn memory_does_not_grow_with_the_log() {
    let (small, large) = (peak(&many_keys(3_000)), peak(&many_keys(150_000)));
    // fifty times the log, 16 MB
    assert!(large <= small + 3_000, "{small} kB, {large} kB");
}

#[test]
fn help_has_examples() {
    let said = said(&["--help"]);
    assert!(
        said.contains("ls -tr access.log.*.gz | xargs zcat | replay") && !said.contains("--peak"),
        "{said}"
    );
}

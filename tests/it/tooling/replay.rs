//! The example `replay`, run on logs as a user does.
//!
//! One log has every form of line in public logs. Others are too long for memory.

use std::process::{Output, Stdio};

use serde_json::{Value, json};

use crate::support::programs::example;

/// A log of 31 lines. `unreadable_lines_are_counted_and_named` lists the kind of each.
const LOG: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/it/tooling/access.log");
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
fn queued_requests_pass_later() {
    let report = report(&["--rule", "name=ip key=peer quota='1/s burst 2' max_wait=2000ms", LOG]);
    let counts = ["passed", "delayed", "denied", "longest_wait_ms"];
    let [passed, delayed, denied, wait] = counts.map(|it| report[it].as_u64().expect("a number"));
    assert_eq!((passed + delayed + denied, wait), (22, 2_000));
    assert!(delayed > 0 && denied < 8, "{delayed} {denied}");
    assert_eq!(report["least"][0]["least"], "1/s burst 5", "and no request queues");
    assert_eq!(report["limited_with_least"], 0);
}

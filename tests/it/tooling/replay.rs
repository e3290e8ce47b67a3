//! The example `replay`, run on a log as a user does. The log has every form of line in public logs.

use std::process::Stdio;

use crate::support::programs::example;

/// A log of 31 lines. `unreadable_lines_are_counted_and_named` lists the kind of each.
const LOG: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/it/tooling/access.log");

/// Returns the report, without the folder of the log.
fn report(rule: &str) -> String {
    let mut command = example("replay");
    command.args(["--rule", rule, LOG]).stdin(Stdio::null());
    let output = command.output().expect("runs");
    let [said, errors] =
        [output.stdout, output.stderr].map(|it| String::from_utf8(it).expect("text"));
    assert!(output.status.success() && errors.is_empty(), "{errors}");
    said.replace(LOG, "access.log")
}

fn assert_lines(report: &str, lines: &[&str]) {
    let lines = lines.join("\n");
    assert!(report.contains(&lines), "{lines}\nis not in\n{report}");
}

#[test]
fn unreadable_lines_are_counted_and_named() {
    let report = report("name=ip key=peer quota='1/s burst 2'");
    let found = report.lines().filter_map(|line| line.trim().strip_prefix("access.log:"));
    let found: Vec<_> = found.map(|line| line.replace(": ", ":")).collect();
    let expected = [
        ("11", "the line is empty", ""),
        ("12", "no address", "crawler.example"),
        ("13", "no request", r"\x16\x03\x01\x02"),
        ("14", "no request", "-"),
        ("15", "no time", "10/Okt/2025:13:00:03 +0200"),
        ("16", "no status", " 200"),
        ("17", "a quote is missing", "\"Mozilla"),
        ("23", "no time", r"\x00\xff\xfe garbage"),
        ("24", "the line is longer than 64 KiB", ""),
    ];
    assert_eq!(found.len(), expected.len(), "{report}");
    for (found, (line, reason, what)) in found.iter().zip(expected) {
        let what = what.replace(": ", ":");
        assert!(
            found.starts_with(&format!("{line}:{reason}")) && found.ends_with(&what),
            "{found}"
        );
    }
}

#[test]
fn the_report_shows_keys_times_and_the_smallest_burst() {
    let denying = report("name=ip key=peer quota='1/s burst 2'");
    assert_lines(
        &denying,
        &[
            "31 lines, 22 requests, 9 malformed",
            "from 2025-10-10T11:00:00Z to 2025-10-10T11:00:08Z",
        ],
    );
    assert_lines(
        &denying,
        &[
            "With these rules",
            "          14 pass at once",
            "           8 are denied",
            "           1 came later than the log has them, and count as of the latest before",
            "",
            // five at once and one with a mapped address, of which four pass
            "rule ip: denies 8 of 22, from 2025-10-10T11:00:01Z to 2025-10-10T11:00:07Z",
            "  4 keys, most often",
        ],
    );
    for key in ["3 203.0.113.7", "3 10.0.0.5", "1 2001:db8:0:1::/64", "1 192.0.2.10"] {
        assert_lines(&denying, &[&format!("         {key}\n")]);
    }
    assert_lines(&denying, &["rule ip: quota=\"1/s burst 5\" instead of \"1/s burst 2\""]);
    let least = report("name=ip key=peer quota='1/s burst 5'");
    assert_lines(&least, &["rule ip: 22 requests, no request denied"]);
    let less = report("name=ip key=peer quota='1/s burst 4'");
    assert_lines(&less, &["rule ip: denies 2 of 22"]);
}

#[test]
fn queued_requests_pass_later() {
    let report = report("name=ip key=peer quota='1/s burst 2' max_wait=2000ms");
    let count = |what: &str| {
        let mut found = report.lines().filter_map(|line| line.split_once(what));
        found.next().map_or(0, |(count, _)| count.trim().parse::<u32>().expect("a number"))
    };
    let (delayed, denied) = (count(" wait, at most 2000 ms"), count(" are denied"));
    assert_eq!(count(" pass at once") + delayed + denied, 22);
    assert!(delayed > 0 && denied < 8, "{report}");
    assert_lines(&report, &["rule ip: quota=\"1/s burst 5\" instead of"]);
}

//! The report for machines; `print` writes it as text.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, Ipv6Addr},
    time::Duration,
};

use serde::Serialize;
use time::{OffsetDateTime, format_description::BorrowedFormatItem, macros::format_description};
use tower_sluice::{Key, Quota, fingerprint::FingerprintKey};

use crate::{
    bursts::BurstTable,
    course::Slice,
    entry::{Reason, shown},
    least::SmallestBurst,
    rule::KeyFlag,
    tally::{ByRule, Limited, Tally},
    top::Times,
};

const TIME: &[BorrowedFormatItem<'_>] =
    format_description!("[year]-[month]-[day]T[hour]:[minute]:[second]Z");

#[derive(Serialize)]
pub(crate) struct Report {
    pub(crate) lines: u64,
    pub(crate) malformed: u64,
    pub(crate) malformed_by_reason: BTreeMap<Reason, u64>,
    pub(crate) malformed_first: Vec<Malformed>,
    pub(crate) requests: u64,
    /// Requests with an exempt key, which are not in `requests`.
    pub(crate) excepted: u64,
    pub(crate) from: Option<String>,
    pub(crate) to: Option<String>,
    pub(crate) passed: u64,
    pub(crate) delayed: u64,
    pub(crate) longest_wait_ms: u128,
    pub(crate) overage: u64,
    pub(crate) denied: u64,
    pub(crate) without_key: u64,
    pub(crate) late: u64,
    /// The lateness of the latest one.
    pub(crate) late_by_s: u64,
    /// Decisions on accounts that keys share because the store is full.
    pub(crate) overflowed: u64,
    /// The number of such decisions while the smallest limits were measured.
    pub(crate) overflowed_in_least: u64,
    /// The number of such decisions while the smallest limits were replayed.
    pub(crate) overflowed_with_least: u64,
    pub(crate) rules: Vec<Rule>,
    pub(crate) worst_minute: Option<Minute>,
    pub(crate) slice_seconds: u64,
    /// Slices of time; denials include those that a report-only rule would make.
    pub(crate) slices: Vec<Slice>,
    pub(crate) least: Vec<LeastQuota>,
    /// The number of limited requests with these limits; `None` if not replayed.
    pub(crate) limited_with_least: Option<u64>,
    /// A table for each quota that limits a request; empty if not replayed.
    pub(crate) bursts: Vec<BurstTable>,
    /// Reasons to doubt the numbers, each with a fix.
    pub(crate) notes: Vec<String>,
}

#[derive(Serialize)]
pub(crate) struct Malformed {
    pub(crate) file: String,
    pub(crate) line: u64,
    pub(crate) reason: Reason,
    /// The faulty text; absent if keys are anonymous.
    pub(crate) what: Option<String>,
}

#[derive(Serialize)]
pub(crate) struct Rule {
    pub(crate) name: String,
    pub(crate) requests: u64,
    pub(crate) denied: ByKey,
    /// The requests among them that were allowed because the rule is report-only.
    pub(crate) only_reported: u64,
    /// Requests that were allowed after a wait for this rule.
    pub(crate) delayed: ByKey,
}

/// Requests that a rule limited in one way.
#[derive(Serialize)]
pub(crate) struct ByKey {
    pub(crate) count: u64,
    pub(crate) first: Option<String>,
    pub(crate) last: Option<String>,
    pub(crate) keys: usize,
    /// The maximum error of a count. Keys with no larger count may be missing.
    pub(crate) short: u64,
    pub(crate) top: Vec<Who>,
}

#[derive(Serialize)]
pub(crate) struct Who {
    pub(crate) key: String,
    pub(crate) count: u64,
    pub(crate) first: String,
    pub(crate) last: String,
}

#[derive(Serialize)]
pub(crate) struct Minute {
    pub(crate) start: String,
    pub(crate) denied: u64,
}

#[derive(Serialize)]
pub(crate) struct LeastQuota {
    pub(crate) rule: String,
    pub(crate) given: String,
    pub(crate) least: Option<String>,
    pub(crate) limit: Option<u32>,
}

impl LeastQuota {
    fn of(least: &SmallestBurst) -> Self {
        Self {
            rule: least.rule.to_string(),
            given: least.given.to_string(),
            least: least.quota().map(|quota| quota.to_string()),
            limit: least.quota().as_ref().map(Quota::limit),
        }
    }
}

impl Report {
    /// Creates the report. With a secret, keys appear as fingerprints, and malformed lines are not
    /// shown.
    pub(crate) fn new(tally: Tally, most: usize, secret: Option<&FingerprintKey>) -> Self {
        let Tally { lines, excepted, requests, rules } = tally;
        let named = lines.named.into_iter().map(|named| Malformed {
            file: named.file,
            line: named.line,
            reason: named.reason,
            what: Some(named.what).filter(|what| secret.is_none() && !what.is_empty()),
        });
        let course = requests.course;
        let minute = course.worst().map(|minute| Minute {
            start: instant(Duration::from_secs(minute.start)),
            denied: minute.denied,
        });
        Self {
            lines: lines.all,
            malformed: lines.malformed,
            malformed_by_reason: lines.reasons,
            malformed_first: named.collect(),
            requests: requests.all,
            excepted,
            from: requests.first.map(instant),
            to: requests.first.map(|_| instant(requests.last)),
            passed: requests.passed,
            delayed: requests.delayed,
            longest_wait_ms: requests.longest_wait.as_millis(),
            overage: requests.overage,
            denied: requests.denied,
            without_key: requests.unkeyed,
            late: requests.late,
            late_by_s: requests.late_by.as_secs(),
            overflowed: 0,
            overflowed_in_least: 0,
            overflowed_with_least: 0,
            rules: rules.iter().map(|rule| by_rule(rule, most, secret)).collect(),
            worst_minute: minute,
            slice_seconds: course.width(),
            slices: course.slices(),
            least: Vec::new(),
            limited_with_least: None,
            bursts: Vec::new(),
            notes: Vec::new(),
        }
    }

    pub(crate) fn least(&mut self, found: &[SmallestBurst]) {
        self.least = found.iter().map(LeastQuota::of).collect();
    }
}

fn by_rule(rule: &ByRule, most: usize, secret: Option<&FingerprintKey>) -> Rule {
    let who = |(key, it): (Option<Key>, Times)| Who {
        key: key.map_or_else(|| "(none)".to_owned(), |key| shown_key(&key, &rule.flag.key, secret)),
        count: it.count,
        first: instant(it.first),
        last: instant(it.last),
    };
    let by_key = |limited: &Limited| ByKey {
        count: limited.count,
        first: limited.first.map(instant),
        last: limited.first.map(|_| instant(limited.last)),
        keys: limited.top.len(),
        short: limited.top.short(),
        top: limited.top.most(most).into_iter().map(who).collect(),
    };
    Rule {
        name: rule.flag.name.to_string(),
        requests: rule.asked,
        denied: by_key(&rule.denied),
        only_reported: rule.only_reported,
        delayed: by_key(&rule.delayed),
    }
}

/// Returns a key as the log has it. Its bytes are a kind and the extracted value: an address, for
/// IPv6 the first 64 bits, or text.
fn shown_key(key: &Key, flag: &KeyFlag, secret: Option<&FingerprintKey>) -> String {
    if let Some(secret) = secret {
        return key.fingerprint(secret).to_string();
    }
    let bytes = key.to_bytes();
    let found = bytes.get(1..).unwrap_or_default();
    match flag {
        KeyFlag::Everyone => "everyone".to_owned(),
        KeyFlag::Peer | KeyFlag::Client => {
            match (<[u8; 4]>::try_from(found), <[u8; 16]>::try_from(found)) {
                (Ok(address), _) => Ipv4Addr::from(address).to_string(),
                (_, Ok(address)) => format!("{}/64", Ipv6Addr::from(address)),
                _ => "(unreadable)".to_owned(),
            }
        }
        KeyFlag::Header(_) | KeyFlag::Route => shown(found),
    }
}

/// Formats an instant in UTC.
pub(crate) fn instant(at: Duration) -> String {
    let seconds = i64::try_from(at.as_secs()).unwrap_or(i64::MAX);
    let time = OffsetDateTime::from_unix_timestamp(seconds).ok();
    time.and_then(|time| time.format(TIME).ok()).unwrap_or_else(|| format!("{seconds} s"))
}

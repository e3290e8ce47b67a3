//! The sums of the verdicts, in memory that does not grow with the log.

use std::{collections::BTreeMap, time::Duration};

use tower_sluice::{ClientIp, Key, KeyExtractor};

use crate::{
    course::Course,
    entry::{Fault, Reason, shown},
    rule::{AnyKey, RuleFlag},
    simulate::{Call, Verdict},
    top::Top,
};

/// The maximum number of malformed lines that are named.
const NAMED: usize = 10;
/// The maximum length of shown faulty text, in bytes.
const SHOWN: usize = 80;

#[derive(Default)]
pub(crate) struct Lines {
    pub(crate) all: u64,
    pub(crate) malformed: u64,
    pub(crate) reasons: BTreeMap<Reason, u64>,
    pub(crate) named: Vec<Named>,
}

/// A malformed line.
pub(crate) struct Named {
    pub(crate) file: String,
    pub(crate) line: u64,
    pub(crate) reason: Reason,
    pub(crate) what: String,
}

impl Lines {
    pub(crate) fn fault(&mut self, file: &str, line: u64, (reason, part): Fault<'_>) {
        self.malformed += 1;
        *self.reasons.entry(reason).or_default() += 1;
        if self.named.len() < NAMED {
            let cut = &part[..part.len().min(SHOWN)];
            let more = if cut.len() < part.len() { "…" } else { "" };
            let what = shown(cut) + more;
            self.named.push(Named { file: file.to_owned(), line, reason, what });
        }
    }
}

/// Counts of the requests.
#[derive(Default)]
pub(crate) struct Requests {
    pub(crate) all: u64,
    pub(crate) passed: u64,
    pub(crate) delayed: u64,
    pub(crate) longest_wait: Duration,
    pub(crate) overage: u64,
    pub(crate) denied: u64,
    pub(crate) unkeyed: u64,
    pub(crate) late: u64,
    /// The lateness of the latest one.
    pub(crate) late_by: Duration,
    pub(crate) first: Option<Duration>,
    pub(crate) last: Duration,
    pub(crate) course: Course,
}

/// Counts for one rule.
pub(crate) struct ByRule {
    pub(crate) flag: RuleFlag,
    extractor: AnyKey,
    pub(crate) asked: u64,
    /// Requests that the rule denied, or would have denied if it were not report-only.
    pub(crate) denied: Limited,
    pub(crate) only_reported: u64,
    /// Requests that waited for the rule.
    pub(crate) delayed: Limited,
}

/// Requests that a rule limited in one way.
#[derive(Default)]
pub(crate) struct Limited {
    pub(crate) count: u64,
    pub(crate) first: Option<Duration>,
    pub(crate) last: Duration,
    pub(crate) top: Top,
}

impl Limited {
    fn add(&mut self, key: Option<Key>, at: Duration) {
        self.count += 1;
        self.first.get_or_insert(at);
        self.last = at;
        self.top.add(key, at);
    }
}

impl ByRule {
    fn new(flag: &RuleFlag, client: Option<&ClientIp>) -> Result<Self, String> {
        Ok(Self {
            flag: flag.clone(),
            extractor: flag.key.extractor(client)?,
            asked: 0,
            denied: Limited::default(),
            only_reported: 0,
            delayed: Limited::default(),
        })
    }

    /// Returns the key of the request, or `None` for a request without a key of its own.
    fn key(&self, call: &Call) -> Option<Key> {
        self.extractor.extract(&call.head()).ok().flatten()
    }
}

pub(crate) struct Tally {
    pub(crate) lines: Lines,
    /// Requests with an exempt key, which count nowhere else.
    pub(crate) excepted: u64,
    pub(crate) requests: Requests,
    pub(crate) rules: Vec<ByRule>,
}

impl Tally {
    pub(crate) fn of(rules: &[RuleFlag], client: Option<&ClientIp>) -> Result<Self, String> {
        let rules = rules.iter().map(|flag| ByRule::new(flag, client)).collect::<Result<_, _>>()?;
        let (lines, requests) = (Lines::default(), Requests::default());
        Ok(Self { lines, excepted: 0, requests, rules })
    }

    pub(crate) fn note(&mut self, call: &Call, verdict: &Verdict) {
        let at = verdict.at;
        let denied = self.by_rule(call, verdict);
        let all = &mut self.requests;
        all.all += 1;
        all.late += u64::from(verdict.is_late);
        all.late_by = all.late_by.max(at.saturating_sub(call.at));
        all.first.get_or_insert(at);
        all.last = at;
        all.course.add(at, denied);
        let Some(decision) = verdict.decision() else {
            let free = verdict.passes();
            all.passed += u64::from(free);
            all.unkeyed += u64::from(!free);
            return;
        };
        if !decision.is_allowed() {
            all.denied += 1;
            return;
        }
        let wait = decision.wait();
        all.passed += u64::from(wait.is_zero());
        all.delayed += u64::from(!wait.is_zero());
        all.longest_wait = all.longest_wait.max(wait);
        all.overage += u64::from(decision.is_overage());
    }

    /// Counts the request for each rule. Returns `true` if a rule denied it, or would have.
    fn by_rule(&mut self, call: &Call, verdict: &Verdict) -> bool {
        let outcomes = verdict.decision().map_or(&[][..], |decision| decision.outcomes());
        let mut denied = false;
        for rule in &mut self.rules {
            let mut its = outcomes.iter().filter(|outcome| outcome.rule() == rule.flag.name);
            rule.asked += u64::from(its.clone().next().is_some());
            if let Some(outcome) = its.find(|outcome| outcome.is_denied()) {
                rule.only_reported += u64::from(outcome.is_report_only());
                rule.denied.add(rule.key(call), verdict.at);
                denied = true;
            } else if verdict.waits_for.contains(&rule.flag.name) {
                rule.delayed.add(rule.key(call), verdict.at);
            }
        }
        denied
    }
}

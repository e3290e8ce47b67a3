//! Differences between the decisions of a store and a table of expected results.

use std::{fmt, time::Duration};

use serde::Deserialize;
use serde_json::Value;

use crate::decision::{Decision, Outcome};

#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub(super) struct Row {
    /// The slots that all requests hold. `None` for a rate.
    held: Option<u64>,
    remaining: u32,
    #[serde(default)]
    full: u64,
    #[serde(default)]
    next: u64,
    /// The expected wait, for `take` only.
    retry: Option<Value>,
}

/// The part of a decision that a scenario table describes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Shown {
    pub(super) allowed: bool,
    pub(super) wait: u64,
    pub(super) overage: bool,
    pub(super) outcomes: Vec<Row>,
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.allowed { "allowed" } else { "denied" })?;
        if self.wait > 0 {
            write!(f, " after a wait of {:?}", Duration::from_nanos(self.wait))?;
        }
        if self.overage {
            f.write_str(" as overage")?;
        }
        self.outcomes.iter().try_for_each(|row| write!(f, "; {row}"))
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (full, next) = (Duration::from_nanos(self.full), Duration::from_nanos(self.next));
        match self.held {
            Some(held) => write!(f, "{held} held, {} remaining", self.remaining)?,
            None => {
                write!(f, "{} remaining, full in {full:?}, next unit in {next:?}", self.remaining)?;
            }
        }
        match &self.retry {
            None => Ok(()),
            Some(Value::String(word)) => write!(f, ", retry {word}"),
            Some(nanos) => {
                let nanos = nanos.as_u64().unwrap_or(u64::MAX);
                write!(f, ", retry in {:?}", Duration::from_nanos(nanos))
            }
        }
    }
}

impl Shown {
    /// Returns the values of `decision`. If `retry` is `true`, each row has its `retry_after`.
    pub(super) fn of(decision: &Decision, retry: bool) -> Self {
        let row = |outcome: &Outcome| Row {
            held: outcome.held(),
            remaining: outcome.remaining(),
            full: nanos(outcome.reset_after()),
            next: nanos(outcome.next_after()),
            retry: retry.then(|| match outcome.retry_after() {
                Some(wait) => nanos(wait).into(),
                None if outcome.is_wait_unknown() => "unknown".into(),
                None => "never".into(),
            }),
        };
        Self {
            allowed: decision.is_allowed(),
            wait: nanos(decision.wait()),
            overage: decision.is_overage(),
            outcomes: decision.outcomes().iter().map(row).collect(),
        }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Difference between a decision of a store and the expected result.
#[derive(Clone, Debug)]
pub struct Mismatch {
    pub(super) case: String,
    pub(super) why: String,
    pub(super) step: String,
    pub(super) expected: String,
    pub(super) got: String,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { case, why, step, expected, got } = self;
        write!(f, "{case} ({why})\n  {step}\n  expected {expected}\n  got      {got}")
    }
}

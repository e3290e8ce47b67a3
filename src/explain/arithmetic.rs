//! The arithmetic of one quota, and durations to the nanosecond, as text.

use std::{fmt, time::Duration};

use super::ChargedQuota;
use crate::{
    decision::{Decision, Outcome, Source},
    quota::{Algorithm, Quota},
};

/// The inputs of the arithmetic of one quota.
pub(super) struct Arithmetic<'a> {
    pub(super) decision: &'a Decision,
    pub(super) outcome: &'a Outcome,
    pub(super) asked: Option<&'a ChargedQuota>,
    pub(super) looked: bool,
}

impl Arithmetic<'_> {
    /// Returns the quota, if the decision used its values.
    ///
    /// A fallback and a governor limiter decide with other values.
    fn own(&self) -> Option<&Quota> {
        let own = !matches!(self.decision.source(), Source::Fallback | Source::Governor);
        self.asked.filter(|_| own).map(|asked| &asked.quota)
    }

    fn counts(&self) -> bool {
        self.outcome.is_known() && self.outcome.limit() > 0
    }

    /// Describes how fast the account refills.
    pub(super) fn comes_back(&self) -> String {
        if let Some(interval) = self.outcome.interval().filter(|_| self.counts()) {
            return format!("one unit comes back every {}", Exact(interval));
        }
        let Some(quota) = self.own().filter(|_| self.counts()) else { return String::new() };
        let (units, period) = (quota.units(), Exact(quota.period()));
        match quota.algorithm() {
            Algorithm::Gcra => format!("one unit comes back every {}", Exact(quota.interval())),
            Algorithm::TokenBucket => format!("{units} come back together every {period}"),
            Algorithm::FixedWindow { carry_over, paced } => {
                let lent = match carry_over {
                    0 => String::new(),
                    most => format!(", carrying over at most {most} unused units"),
                };
                let paced = if paced { ", with evenly paced units" } else { "" };
                format!("windows of {period} aligned to UTC{lent}{paced}")
            }
            Algorithm::AnchoredWindow => format!("a window of {period} from its first charge"),
            Algorithm::SlidingWindow { buckets } => {
                format!(
                    "charges of the last {period} count, in {buckets} buckets, the oldest pro rata"
                )
            }
            Algorithm::SlidingLog => format!("each charge counts for {period}"),
            Algorithm::Concurrent => "a slot is free again when its request ends".into(),
        }
    }

    /// Describes the state of the account.
    pub(super) fn state(&self) -> String {
        let outcome = self.outcome;
        let (full, next) = (Exact(outcome.reset_after()), Exact(outcome.next_after()));
        if !self.counts() {
            return String::new();
        }
        if let Some(held) = outcome.held() {
            return format!("{held} held");
        }
        if full.0.is_zero() {
            return if outcome.remaining() < outcome.limit() { "" } else { "full" }.into();
        }
        let mut state = match (outcome.interval(), self.own().map(Quota::algorithm)) {
            (Some(_), _) => {
                let owed = outcome.owed();
                match owed - i64::from(outcome.limit()) {
                    beyond @ 1.. => format!("{owed} used, {beyond} beyond the limit"),
                    _ => format!("{owed} used"),
                }
            }
            (None, Some(Algorithm::FixedWindow { .. } | Algorithm::AnchoredWindow)) => {
                format!("the window ends in {full}")
            }
            (None, _) => format!("full again in {full}"),
        };
        if outcome.interval().is_some() {
            state += &format!(", full again in {full}");
        }
        if !next.0.is_zero() && next.0 != full.0 {
            state += &format!(", next units in {next}");
        }
        state
    }

    /// Compares the requested units with the units left.
    pub(super) fn need(&self) -> String {
        let (outcome, retry) = (self.outcome, self.outcome.retry_after());
        let looked = self.looked && self.asked.is_some_and(|asked| asked.cost > 0);
        if !outcome.is_denied() && !looked {
            return String::new();
        }
        let would = if self.decision.is_allowed() && outcome.is_denied() {
            "would be denied: "
        } else {
            ""
        };
        if outcome.is_known() && outcome.limit() == 0 {
            return format!("{would}the quota is blocked: waiting does not help");
        }
        if outcome.is_wait_unknown() {
            return format!("{would}the wait is unknown, until another request ends");
        }
        let Some(need) = self.asked.map(|asked| asked.cost + u64::from(asked.headroom)) else {
            return match retry {
                Some(wait) => format!("{would}enough in {}", Exact(wait)),
                None => format!("{would}waiting does not help"),
            };
        };
        let soft = self.own().map_or(0, Quota::soft);
        let limit = u64::from(outcome.limit());
        let Some(wait) = retry else {
            return if outcome.is_known() && need > limit + u64::from(soft) {
                let and = if soft > 0 { format!(" and its {soft} soft") } else { String::new() };
                format!(
                    "{would}needs {need}, which is above the limit {limit}{and}: waiting does not help"
                )
            } else {
                format!("{would}needs {need}: waiting does not help")
            };
        };
        let has = match (outcome.is_known(), soft) {
            (false, _) => String::new(),
            (true, 0) => format!(", has {}", outcome.remaining()),
            (true, soft) => format!(", has {} and up to {soft} soft", outcome.remaining()),
        };
        let then = if outcome.is_denied() {
            match self.missing(need, soft, wait) {
                Some(missing) => format!("{missing} more in {}", Exact(wait)),
                None => format!("enough in {}", Exact(wait)),
            }
        } else if need <= outcome.remaining().into() || !outcome.is_known() {
            "it fits".into()
        } else if self.decision.wait().is_zero() {
            "it passes as overage".into()
        } else {
            "it waits in the queue".into()
        };
        format!("{would}needs {need}{has}: {then}")
    }

    /// Returns the number of missing units, or `None` if the exact number is unknown.
    fn missing(&self, need: u64, soft: u32, wait: Duration) -> Option<u64> {
        let outcome = self.outcome;
        let there = i64::from(soft) + outcome.left();
        let missing = need.checked_add_signed(-there).filter(|missing| *missing > 0)?;
        let exact = match outcome.interval() {
            // The wait must equal the missing units multiplied by the interval.
            Some(interval) => {
                let whole = i128::from(need) - i128::from(outcome.limit()) - i128::from(soft);
                let nanos = |time: Duration| i128::try_from(time.as_nanos()).unwrap_or(i128::MAX);
                let owed = nanos(outcome.reset_after());
                owed + whole * nanos(interval) == nanos(wait)
            }
            // An account with no units left may be in debt of an unknown size.
            None => outcome.is_known() && outcome.remaining() > 0,
        };
        exact.then_some(missing)
    }

    /// Returns a note about a decision by a fallback or a governor limiter, or an empty text.
    pub(super) fn decided_by(&self) -> &'static str {
        match self.decision.source() {
            Source::Fallback => {
                "decided locally with this process's share, because the store fails"
            }
            Source::Governor => "decided by governor, whose times are upper bounds",
            _ => "",
        }
    }
}

const SECOND: u64 = 1_000_000_000;
const LONG: [(&str, u64); 3] =
    [("day", 86_400 * SECOND), ("h", 3_600 * SECOND), ("min", 60 * SECOND)];
const SHORT: [(&str, u64); 4] = [("s", SECOND), ("ms", 1_000_000), ("us", 1_000), ("ns", 1)];

/// Displays a time, such as `312ms` or `4h 28min 43.5s`.
pub(super) struct Exact(pub(super) Duration);

impl fmt::Display for Exact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = u64::try_from(self.0.as_nanos()).unwrap_or(u64::MAX);
        let mut gap = "";
        for (unit, nanos) in LONG {
            if rest >= nanos {
                write!(f, "{gap}{}{unit}", rest / nanos)?;
                (rest, gap) = (rest % nanos, " ");
            }
        }
        if rest == 0 {
            return if gap.is_empty() { f.write_str("0s") } else { Ok(()) };
        }
        // After a longer unit, the rest is in seconds.
        let of = |(_, nanos): &(&str, u64)| rest >= *nanos || !gap.is_empty();
        let (unit, nanos) = SHORT.into_iter().find(of).unwrap_or(("ns", 1));
        write!(f, "{gap}{}", rest / nanos)?;
        if rest % nanos > 0 {
            let width = nanos.ilog10() as usize;
            let digits = format!("{:0width$}", rest % nanos);
            write!(f, ".{}", digits.trim_end_matches('0'))?;
        }
        f.write_str(unit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_exact_to_the_nanosecond() {
        for (nanos, text) in [
            (0, "0s"),
            (1, "1ns"),
            (999, "999ns"),
            (1_001, "1.001us"),
            (312_000_000, "312ms"),
            (333_333_334, "333.333334ms"),
            (SECOND, "1s"),
            (8_640_000_000, "8.64s"),
            (59 * SECOND + 1, "59.000000001s"),
            (60 * SECOND, "1min"),
            (60 * SECOND + 1, "1min 0.000000001s"),
            (16_123_500_000_000, "4h 28min 43.5s"),
            (90_000 * SECOND, "1day 1h"),
        ] {
            assert_eq!(Exact(Duration::from_nanos(nanos)).to_string(), text);
        }
    }
}

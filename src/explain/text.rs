//! The text form of an explanation.

use std::{fmt, time::Duration};

use super::{
    About, Explanation, QuotaReport,
    arithmetic::{Arithmetic, Exact},
};
use crate::{
    decision::{Decision, Outcome, Source},
    quota::Quota,
};

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.about {
            About::Decision(decision, reports) => self.decision_text(f, decision, reports),
            About::Free(why) => writeln!(f, "{}: {why}", self.result("allowed")),
            About::Unkeyed(error) => {
                write!(f, "{} with {}: {error}", self.result("rejected"), error.status().as_u16())?;
                self.end(f)
            }
            About::Unsaid(why) => writeln!(f, "the store does not support dry runs: {why}"),
        }
    }
}

impl Explanation {
    /// Returns `result`, such as "denied", or "would be denied" for a dry run.
    fn result(&self, result: &'static str) -> String {
        if self.looked { format!("would be {result}") } else { result.to_owned() }
    }

    /// Ends the first line, with the reason why a denied request was allowed.
    fn end(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.beside {
            Some(because) => writeln!(f, "; allowed anyway: {because}"),
            None => writeln!(f),
        }
    }

    fn decision_text(
        &self,
        f: &mut fmt::Formatter<'_>,
        decision: &Decision,
        reports: &[QuotaReport],
    ) -> fmt::Result {
        let source = decision.source();
        if decision.is_allowed() {
            f.write_str(&self.result("allowed"))?;
            if source == Source::FailedOpen {
                f.write_str(", uncharged: the store failed open")?;
            } else if source == Source::FailedClosed {
                f.write_str(", uncharged: the store failed closed, and the rules are report-only")?;
            } else if reports.is_empty() {
                f.write_str(": no quota applies")?;
            } else if !decision.wait().is_zero() {
                write!(f, ", after {} in the queue", Exact(decision.wait()))?;
            } else if is_spared(decision) {
                f.write_str(", uncharged, beyond its quota: the layer has capacity")?;
            } else if decision.is_overage() {
                f.write_str(" as overage, beyond a quota that is soft")?;
            }
            self.end(f)?;
            return reports.iter().try_for_each(|one| self.block(f, decision, one, false));
        }
        if source == Source::FailedClosed {
            write!(f, "{}: the store failed closed", self.result("denied"))?;
            retry(f, decision.retry_after())?;
            return self.end(f);
        }
        let Some(binding) = decision.binding() else {
            write!(f, "{} by the store ({source}), which names no quota", self.result("denied"))?;
            return self.end(f);
        };
        let binds = |one: &&QuotaReport| {
            let (outcome, only) = (&one.outcome, one.outcome.is_report_only());
            outcome.rule() == binding.rule()
                && outcome.quota_index() == binding.quota_index()
                && !only
        };
        let first = reports.iter().position(|one| binds(&one)).unwrap_or(0);
        if let Some(because) = self.beside {
            writeln!(f, "allowed anyway: {because}")?;
        }
        write!(f, "{} by ", self.result("denied"))?;
        for at in [first].into_iter().chain((0..reports.len()).filter(|at| *at != first)) {
            self.block(f, decision, &reports[at], at == first)?;
        }
        Ok(())
    }

    /// Writes one quota, and its arithmetic on the next line.
    fn block(
        &self,
        f: &mut fmt::Formatter<'_>,
        decision: &Decision,
        one: &QuotaReport,
        binding: bool,
    ) -> fmt::Result {
        let (outcome, asked) = (&one.outcome, one.asked.as_ref());
        write!(f, "rule {:?}", outcome.rule())?;
        if let Some(asked) = asked.filter(|_| !decision.is_blocked()) {
            if asked.quotas > 1 {
                write!(f, ", quota {} of {}", outcome.quota_index() + 1, asked.quotas)?;
            }
            write!(f, " ({})", Described(&asked.quota))?;
        } else if outcome.quota_index() > 0 {
            write!(f, ", quota {}", outcome.quota_index() + 1)?;
        }
        if outcome.is_report_only() {
            f.write_str(", report-only")?;
        }
        match (asked, &self.secret) {
            (Some(asked), Some(secret)) => write!(f, ", key {}", asked.key.fingerprint(secret))?,
            (Some(asked), None) => write!(f, ", {:?}", asked.key)?,
            (None, _) => {}
        }
        f.write_str(": ")?;
        if let Some(asked) = asked {
            write!(f, "cost {}", asked.cost)?;
            if asked.headroom > 0 {
                write!(f, " and headroom {}", asked.headroom)?;
            }
            f.write_str(", ")?;
        }
        if decision.is_blocked() {
            f.write_str("the key is blocked")?;
            retry(f, outcome.retry_after())?;
            return writeln!(f);
        }
        if outcome.is_known() {
            write!(f, "{} left", outcome.remaining())?;
            if asked.is_none_or(|asked| asked.quota.burst() != outcome.limit()) {
                write!(f, " of {}", outcome.limit())?;
            }
        } else {
            f.write_str("the units left are unknown")?;
        }
        let arithmetic = Arithmetic { decision, outcome, asked, looked: self.looked };
        let mut gap = "\n  ";
        for part in [
            arithmetic.comes_back(),
            arithmetic.state(),
            arithmetic.need(),
            arithmetic.decided_by().into(),
        ] {
            if !part.is_empty() {
                write!(f, "{gap}{part}")?;
                gap = "; ";
            }
        }
        if binding {
            retry(f, outcome.retry_after())?;
        }
        writeln!(f)
    }
}

/// Returns `true` if the request was allowed only because the system had capacity.
fn is_spared(decision: &Decision) -> bool {
    let refuses = |outcome: &Outcome| outcome.is_denied() && !outcome.is_report_only();
    decision.is_overage() && decision.outcomes().iter().any(refuses)
}

fn retry(f: &mut fmt::Formatter<'_>, wait: Option<Duration>) -> fmt::Result {
    wait.map_or(Ok(()), |wait| write!(f, " → retry after {}", Exact(wait)))
}

/// Displays a quota with the name of its algorithm.
struct Described<'a>(&'a Quota);

impl fmt::Display for Described<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quota = self.0;
        if quota.is_blocked() {
            return quota.fmt(f);
        }
        write!(f, "{quota}, {}", quota.algorithm())?;
        if quota.soft() > 0 {
            write!(f, ", {} soft", quota.soft())?;
        }
        match quota.max_debt_units() {
            debt if debt == quota.burst() => Ok(()),
            debt => write!(f, ", max_debt {debt}"),
        }
    }
}

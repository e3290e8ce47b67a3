//! Metrics, log lines, spans, and the latest denials for the admin page.
//!
//! Labels, log lines and spans never contain a key.

#[cfg_attr(not(feature = "admin"), expect(dead_code, reason = "only the admin router enables it"))]
mod denial_log;
#[cfg(feature = "metrics")]
mod metered;
#[cfg(not(feature = "metrics"))]
mod noop;
#[cfg_attr(not(feature = "admin"), expect(dead_code, reason = "only the admin router enables it"))]
mod top_keys;
#[cfg(feature = "tracing")]
mod traced;

use std::{
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};

#[cfg(not(feature = "metrics"))]
use self::noop as metered;
pub(crate) use self::{
    denial_log::DenialLog,
    metered::{
        Meter, Started, block_denied, circuit, overflowed, set_keys, store_failed, unidentified,
    },
};
#[cfg(feature = "admin")]
pub(crate) use self::{denial_log::RecordedDenial, top_keys::DeniedKey};
use crate::{
    decision::{Decision, Outcome, Source},
    fingerprint::Fingerprint,
    key::Key,
    log::warn,
    name::RuleName,
    quota::Quota,
};

/// The result of a request under one rule, as in the metric `ratelimit.decisions`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Allowed,
    Limited,
    ShadowLimited,
    FailedOpen,
    FailedClosed,
    FallbackAllowed,
    FallbackLimited,
}

impl Verdict {
    fn of(source: Source, allowed: bool) -> Self {
        match (source, allowed) {
            (Source::FailedOpen, _) => Self::FailedOpen,
            // Only report-only rules let a request pass.
            (Source::FailedClosed, true) => Self::ShadowLimited,
            (Source::FailedClosed, false) => Self::FailedClosed,
            (Source::Fallback, true) => Self::FallbackAllowed,
            (Source::Fallback, false) => Self::FallbackLimited,
            (_, true) => Self::Allowed,
            (_, false) => Self::Limited,
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Limited => "limited",
            Self::ShadowLimited => "shadow_limited",
            Self::FailedOpen => "failed_open",
            Self::FailedClosed => "failed_closed",
            Self::FallbackAllowed => "fallback_allowed",
            Self::FallbackLimited => "fallback_limited",
        }
    }
}

impl Meter {
    /// Records a request that runs. In a report-only layer, the store may have denied the request.
    ///
    /// `who` returns the key that a rule charges, and its fingerprint.
    #[inline]
    pub(crate) fn passed<'a>(
        &self,
        decision: &Decision,
        who: impl Fn(RuleName) -> Option<(&'a Key, Fingerprint)>,
    ) {
        let verdict = Verdict::of(decision.source(), true);
        #[cfg(feature = "tracing")]
        {
            let shown = if decision.is_allowed() { verdict } else { Verdict::ShadowLimited };
            traced::trace(decision, shown, |rule| who(rule).map(|(_, shown)| shown));
        }
        self.each(decision, verdict, who, |denied| {
            Some(if denied { Verdict::ShadowLimited } else { verdict })
        });
    }

    /// Records a denied request under the rules that denied it.
    pub(crate) fn denied<'a>(
        &self,
        decision: &Decision,
        who: impl Fn(RuleName) -> Option<(&'a Key, Fingerprint)>,
    ) {
        let verdict = Verdict::of(decision.source(), false);
        #[cfg(feature = "tracing")]
        traced::trace(decision, verdict, |rule| who(rule).map(|(_, shown)| shown));
        self.each(decision, verdict, who, |denied| denied.then_some(verdict));
    }

    /// Records the request once per rule, even if a rule has several quotas.
    fn each<'a>(
        &self,
        decision: &Decision,
        verdict: Verdict,
        who: impl Fn(RuleName) -> Option<(&'a Key, Fingerprint)>,
        of: impl Fn(bool) -> Option<Verdict>,
    ) {
        let (outcomes, denial_log) = (decision.outcomes(), self.denial_log());
        if !Self::COUNTS && !denial_log.is_enabled() {
            return;
        }
        if outcomes.is_empty() {
            denial_log.record_all(verdict, decision.expected_wait());
            return self.count_all(verdict);
        }
        for (place, outcome) in outcomes.iter().enumerate() {
            let rule = outcome.rule();
            if outcomes[..place].iter().any(|earlier| earlier.rule() == rule) {
                continue;
            }
            let all = || outcomes[place..].iter().filter(|outcome| outcome.rule() == rule);
            let denied = all().any(Outcome::is_denied);
            let verdict = match of(denied) {
                Some(_) if denied && outcome.is_report_only() => Verdict::ShadowLimited,
                Some(verdict) => verdict,
                None => continue,
            };
            self.count(rule, verdict);
            // The wait for this rule, or `None` if waiting does not help.
            let wait = || {
                let denied = all().filter(|outcome| outcome.is_denied());
                let mut waits = denied.map(Outcome::expected_wait);
                waits.try_fold(Duration::ZERO, |longest, wait| wait.map(|wait| longest.max(wait)))
            };
            denial_log.record(rule, verdict, || (who(rule), wait()));
            if decision.is_allowed() && all().any(|outcome| self.is_near(outcome)) {
                self.count_near(rule);
            }
        }
    }
}

/// Logs the first charge that was cut at `max_debt`.
pub(crate) fn late_charge_cut(quota: &Quota) {
    static LOGGED: AtomicBool = AtomicBool::new(false);
    if !LOGGED.swap(true, Relaxed) {
        let (limit, debt) = (quota.limit(), quota.max_debt_units());
        warn!(
            "a late charge exceeds the max_debt of quota {quota}: {limit} units and a debt of {debt} are \
             charged already, and the excess is dropped; reserve more, or raise \
             Quota::max_debt (logged once)"
        );
    }
}

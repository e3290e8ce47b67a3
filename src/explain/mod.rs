//! Explanations of decisions: the rule that decided, and one line for each quota.
//!
//! Explanations are computed on demand. A request that is not explained has no extra cost.
//!
//! To explain a decision, call [`Decision::explain`]:
//!
//! ```
//! use tower_sluice::{Limiter, Quota};
//!
//! let limiter = Limiter::local();
//! let quota = Quota::per_hour(2);
//! assert!(limiter.take("alice", &quota, 2).now().is_allowed());
//! let text = limiter.take("alice", &quota, 1).now().explain().to_string();
//! assert!(text.starts_with("denied by rule \"default\" → retry after "), "{text}");
//! assert!(text.contains("\n  rule \"default\": 0 of 2 left, next in "), "{text}");
//! ```
//!
//! With the charges, an explanation also shows quotas, keys and costs. The layer and the limiter can
//! also explain the decision that a request *would* get, without a charge:
//!
//! ```
//! # tokio::runtime::Runtime::new().unwrap().block_on(async {
//! use tower_sluice::{Limiter, Quota};
//!
//! let limiter = Limiter::local();
//! let quotas = [Quota::per_second(5).with_burst(20), Quota::per_day(10_000)];
//! let would = limiter.explain("alice", &quotas, 25).await;
//! assert_eq!(
//!     would.to_string(),
//!     "would be denied by rule \"default\"\n  \
//!        rule \"default\" (5/s burst 20, gcra), Key(..), cost 25: 20 of 20 left; \
//!        denied: waiting does not help\n  \
//!        rule \"default\", quota 2 (10000/day, gcra), Key(..), cost 25: 10000 of 10000 left\n"
//! );
//! # });
//! ```
//!
//! [`RateLimitLayer::explain`](crate::RateLimitLayer::explain) explains the head of a request.
//! [`Rejection::explain`](crate::reject::Rejection::explain) explains a rejection.
//!
//! # Limitations
//!
//! Do not show explanations to clients, because they disclose rules and the accounts of other
//! clients. Keys are printed as [fingerprints](crate::fingerprint::Fingerprint) or not at all.
//!
//! A dry run may be out of date immediately, because other requests charge the accounts.

use std::fmt;

use crate::{
    decision::{Cause, Decision, Outcome},
    fingerprint::FingerprintKey,
    key::{Key, RequestHead},
    quota::Quota,
    rule::{self, Attempts, Bypass, Candidates, OwnedCandidates, Rules},
    store::{Charge, ChargedQuota, Store, StoreExt},
};

/// Explained decision. See the [module](self) for an example.
///
/// The text of an explanation is for people and may change. Programs read the fields.
#[derive(Clone, Debug)]
#[must_use]
#[non_exhaustive]
pub struct Explanation {
    /// The decision, or the reason why no store was called.
    ///
    /// The decision of a store that cannot peek has the source
    /// [`Source::Unsupported`](crate::decision::Source::Unsupported).
    pub decision: Result<Decision, Bypass>,
    /// One report per quota, in the order of the outcomes.
    pub quota_reports: Vec<QuotaReport>,
    is_dry_run: bool,
    /// The reason why the layer allows a denied request, if any.
    pub(crate) allowed_because: Option<&'static str>,
    pub(crate) secret: Option<FingerprintKey>,
}

/// Report on one quota of a decision, in an [`Explanation`].
///
/// The quota, the key and the costs are `None` unless the explanation was given the charges or the
/// rules.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct QuotaReport {
    /// The outcome of the quota.
    pub outcome: Outcome,
    /// The quota.
    pub quota: Option<Quota>,
    /// The key of the account.
    pub key: Option<Key>,
    /// The requested units.
    pub cost: Option<u32>,
    /// The units that must be left over after the charge.
    pub headroom: Option<u32>,
}

impl Decision {
    /// Explains the decision, without quotas, keys and costs.
    ///
    /// To add them, call [`charges`](Explanation::charges), or explain the decision by
    /// [`RateLimitLayer::explain_decision`](crate::RateLimitLayer::explain_decision).
    pub fn explain(&self) -> Explanation {
        Explanation::new(Ok(self.clone()))
    }
}

impl Explanation {
    /// Explains the decision that [`take`](StoreExt::take) would make, by a
    /// [peek](StoreExt::peek).
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use tower_sluice::{
    ///     Key, LocalStore, Quota, explain::Explanation, rule::RuleName, store::Charge,
    /// };
    ///
    /// let store = LocalStore::new();
    /// let key = Key::from("alice");
    /// let quotas = [Quota::per_second(5)];
    /// let charge = Charge::new(RuleName::default(), &key, &quotas).with_cost(3);
    /// let would = Explanation::look(&store, &[charge]).await?;
    /// assert!(would.is_allowed());
    /// assert_eq!(would.quota_reports[0].outcome.remaining(), 2);
    /// # Ok::<(), std::convert::Infallible>(())
    /// # });
    /// ```
    ///
    /// # Errors
    ///
    /// Fails if the store cannot decide.
    pub fn look<'s, S: Store + Sync>(
        store: &'s S,
        charges: &[Charge<'_>],
    ) -> impl Future<Output = Result<Self, S::Error>> + Send + use<'s, S> {
        Self::look_at(store, Candidates::from(charges).into())
    }

    #[expect(
        clippy::manual_async_fn,
        reason = "declares that the future can be sent"
    )]
    pub(crate) fn look_at<S: Store + Sync>(
        store: &S,
        charges: OwnedCandidates,
    ) -> impl Future<Output = Result<Self, S::Error>> + Send + use<'_, S> {
        async move {
            let attempts = &mut Attempts::default();
            let decision = rule::decide(store, &charges, attempts, S::peek).await?;
            Ok(charges.with(|all| Self::dry_run(Ok(decision)).charges(all.charges)))
        }
    }

    pub(crate) fn new(decision: Result<Decision, Bypass>) -> Self {
        Self {
            decision,
            quota_reports: Vec::new(),
            is_dry_run: false,
            allowed_because: None,
            secret: None,
        }
        .charges(&[])
    }

    /// Explains a decision that was not made.
    pub(crate) fn dry_run(decision: Result<Decision, Bypass>) -> Self {
        Self {
            is_dry_run: true,
            ..Self::new(decision)
        }
    }

    /// Adds quotas, costs and keys from the charges.
    pub fn charges(mut self, charges: &[Charge<'_>]) -> Self {
        self.add(charges);
        self
    }

    fn add(&mut self, charges: &[Charge<'_>]) {
        if let Ok(decision) = &self.decision {
            self.quota_reports = reports(decision, charges);
        }
    }

    /// Adds quotas, costs and keys from the rules and the request.
    ///
    /// The rules are evaluated now. If a plan was replaced after the decision, the explanation
    /// shows the new quotas.
    pub(crate) fn rules<'a>(
        mut self,
        rules: &(impl Rules + ?Sized),
        head: impl Into<RequestHead<'a>>,
    ) -> Self {
        // A request that bypasses the rules has no charges.
        let _bypassed = rules.append_charges(&head.into(), Candidates::from(&[][..]), &mut |all| {
            if !all.charges.is_empty() {
                self.add(all.charges);
            }
        });
        self
    }

    /// Prints keys as [fingerprints](crate::fingerprint::Fingerprint).
    pub fn fingerprint(self, secret: impl Into<FingerprintKey>) -> Self {
        Self {
            secret: Some(secret.into()),
            ..self
        }
    }

    /// Returns `true` if the request is allowed, or would be allowed.
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        self.allowed_because.is_some()
            || match &self.decision {
                Ok(decision) => decision.is_allowed(),
                Err(bypass) => matches!(bypass, Bypass::Exempt(_)),
            }
    }
    /// Writes the rule, the quota, the key and the cost.
    fn write_charge(&self, f: &mut fmt::Formatter<'_>, report: &QuotaReport) -> fmt::Result {
        let outcome = &report.outcome;
        write!(f, "  rule {:?}", outcome.rule())?;
        if outcome.quota_index() > 0 {
            write!(f, ", quota {}", outcome.quota_index() + 1)?;
        }
        if let Some(quota) = &report.quota {
            write!(f, " ({quota}, {})", quota.algorithm())?;
        }
        if outcome.is_report_only() {
            f.write_str(", report-only")?;
        }
        if outcome.is_passed_over() {
            f.write_str(", passed over")?;
        }
        self.write_key(f, report.key.as_ref())?;
        if let Some(cost) = report.cost {
            write!(f, ", cost {cost}")?;
        }
        match report.headroom {
            None | Some(0) => Ok(()),
            Some(headroom) => write!(f, " and headroom {headroom}"),
        }
    }

    fn write_key(&self, f: &mut fmt::Formatter<'_>, key: Option<&Key>) -> fmt::Result {
        match (key, &self.secret) {
            (Some(key), Some(secret)) => write!(f, ", key {}", key.fingerprint(secret)),
            (Some(key), None) => write!(f, ", {key:?}"),
            (None, _) => Ok(()),
        }
    }
}

/// Returns `true` for the outcome of this quota.
fn is_of(outcome: &Outcome, charged: &ChargedQuota<'_>) -> bool {
    charged.charge.rule == outcome.rule() && charged.index == outcome.quota_index()
}

/// Creates one report for each outcome of the decision.
fn reports(decision: &Decision, charges: &[Charge<'_>]) -> Vec<QuotaReport> {
    let all = Charge::all_quotas(charges);
    let mut reports = Vec::new();
    for (at, outcome) in decision.outcomes().iter().enumerate() {
        // Several charges may have the same rule.
        let same = all.clone().skip(at).take(1);
        let mut charged = same.chain(all.clone());
        let found = charged.find(|charged| is_of(outcome, charged));
        reports.push(QuotaReport {
            outcome: *outcome,
            quota: found.map(|charged| *charged.quota),
            key: found.map(|charged| charged.charge.key.clone()),
            cost: found.map(|charged| charged.charge.cost),
            headroom: found.map(|charged| charged.charge.headroom),
        });
    }
    reports
}

/// Writes the decision, and a line for each quota.
impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_dry_run { "would be " } else { "" })?;
        match &self.decision {
            Ok(decision) => summarize(f, decision)?,
            Err(Bypass::Exempt(why)) => write!(f, "allowed: {why}")?,
            Err(Bypass::Rejected(error)) => {
                write!(f, "rejected with {}: {error}", error.status().as_u16())?;
            }
        }
        match self.allowed_because {
            Some(why) => writeln!(f, "; allowed anyway: {why}")?,
            None => writeln!(f)?,
        }
        let Ok(decision) = &self.decision else {
            return Ok(());
        };
        for report in &self.quota_reports {
            self.write_charge(f, report)?;
            write_state(f, &report.outcome)?;
            write_denial(f, &report.outcome, decision)?;
            writeln!(f)?;
        }
        Ok(())
    }
}

/// Writes whether the request was allowed, and why.
fn summarize(f: &mut fmt::Formatter<'_>, decision: &Decision) -> fmt::Result {
    f.write_str(if decision.is_allowed() {
        "allowed"
    } else {
        "denied"
    })?;
    match decision.cause() {
        Cause::FailedOpen => return f.write_str(", uncharged: the store failed open"),
        Cause::FailedClosed => f.write_str(": the store failed closed")?,
        Cause::Busy => f.write_str(": this process is too busy to read the answer")?,
        Cause::Unsupported => return f.write_str(": the store does not support a dry run"),
        Cause::Fallback | Cause::Limiter => write!(f, " by the {}", decision.source())?,
        _ => {}
    }
    if decision.is_allowed() {
        summarize_allowed(f, decision)
    } else {
        summarize_denial(f, decision)
    }
}

fn summarize_denial(f: &mut fmt::Formatter<'_>, decision: &Decision) -> fmt::Result {
    if let Some(outcome) = decision.binding()
        && !decision.cause().is_unavailable()
    {
        write!(f, " by rule {:?}", outcome.rule())?;
    }
    if decision.is_blocked() {
        f.write_str(", whose key is blocked")?;
    }
    let wait = decision.exact_retry_after();
    wait.map_or(Ok(()), |wait| write!(f, " → retry after {wait:?}"))
}

fn summarize_allowed(f: &mut fmt::Formatter<'_>, decision: &Decision) -> fmt::Result {
    if decision.outcomes().is_empty() {
        f.write_str(": no quota applies")
    } else if !decision.wait().is_zero() {
        write!(f, ", after {:?} in the queue", decision.wait())
    } else if decision.is_overage() && decision.outcomes().iter().any(Outcome::denies) {
        f.write_str(", uncharged, beyond its quota: the layer has capacity")
    } else if decision.is_overage() {
        f.write_str(" as overage, beyond a soft quota")
    } else {
        Ok(())
    }
}

fn write_state(f: &mut fmt::Formatter<'_>, outcome: &Outcome) -> fmt::Result {
    if outcome.is_known() {
        write!(f, ": {} of {} left", outcome.remaining(), outcome.limit())?;
    } else {
        f.write_str(": the units left are unknown")?;
    }
    outcome
        .held()
        .map_or(Ok(()), |held| write!(f, ", {held} held"))?;
    let times = [
        ("next", outcome.next_after()),
        ("full", outcome.reset_after()),
    ];
    let mut times = times.iter().filter(|(_, time)| !time.is_zero());
    times.try_for_each(|(what, time)| write!(f, ", {what} in {time:?}"))
}

fn write_denial(f: &mut fmt::Formatter<'_>, outcome: &Outcome, decision: &Decision) -> fmt::Result {
    if !outcome.is_denied() {
        return Ok(());
    }
    f.write_str(if decision.is_allowed() {
        "; would be denied"
    } else {
        "; denied"
    })?;
    match outcome.exact_retry_after() {
        Some(wait) => write!(f, " for {wait:?}"),
        None if outcome.is_estimated() => f.write_str(" until another request ends"),
        None => f.write_str(": waiting does not help"),
    }
}

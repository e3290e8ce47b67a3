//! Explanations of decisions: the rule and the quota that decided, with the arithmetic.
//!
//! An [`Explanation`] shows why a request was denied: the units left, the units needed, and the
//! time until more are available.
//!
//! Explanations are computed on demand. A request that is not explained has no extra cost.
//!
//! To explain a decision, call [`Decision::explain`]:
//!
//! ```
//! use tower_sluice::{Limiter, Quota};
//!
//! let (limiter, quota) = (Limiter::local(), Quota::per_hour(2));
//! limiter.take("alice", &quota, 2).now();
//! let denied = limiter.take("alice", &quota, 1).now();
//! let text = denied.explain().to_string();
//! assert!(text.starts_with("denied by rule \"default\": 0 left of 2\n"), "{text}");
//! assert!(text.contains("one unit comes back every 30min; 2 used"), "{text}");
//! ```
//!
//! Given the rules, an explanation also shows quotas, keys and costs. The layer and the limiter can
//! also explain the decision that a request *would* get, without a charge:
//!
//! ```
//! # tokio::runtime::Runtime::new().unwrap().block_on(async {
//! use tower_sluice::{Limiter, Quota};
//!
//! let quotas = [Quota::per_second(5).with_burst(20), Quota::per_day(10_000)];
//! let limiter = Limiter::local();
//! let would = limiter.explain("alice", &quotas, 25).await?;
//! assert_eq!(
//!     would.to_string(),
//!     "would be denied by rule \"default\", quota 1 of 2 (5/s burst 20, gcra), Key(..): \
//!      cost 25, 20 left\n  \
//!        one unit comes back every 200ms; full; \
//!        needs 25, which is above the limit 20: waiting does not help\n\
//!      rule \"default\", quota 2 of 2 (10000/day, gcra), Key(..): cost 25, 10000 left\n  \
//!        one unit comes back every 8.64s; full; needs 25, has 10000: it fits\n"
//! );
//! # Ok::<(), std::convert::Infallible>(())
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

mod arithmetic;
mod look;
mod text;

pub(crate) use self::look::check;
use crate::{
    decision::{Decision, Outcome},
    fingerprint::FingerprintKey,
    key::{Key, KeyError, RequestHead},
    quota::Quota,
    rule::Rules,
    store::{Charge, OwnedCharges, Store, Unsupported},
};

/// Explained decision. See the [module](self) for an example.
///
/// The text of an explanation is for people and may change. Programs read
/// [`decision`](Explanation::decision) and [`quota_reports`](Explanation::quota_reports).
#[derive(Clone, Debug)]
#[must_use]
pub struct Explanation {
    about: About,
    /// `true` for a dry run.
    looked: bool,
    /// The reason why a denied request was allowed, if any.
    beside: Option<&'static str>,
    secret: Option<FingerprintKey>,
}

#[derive(Clone, Debug)]
pub(crate) enum About {
    Decision(Box<Decision>, Vec<QuotaReport>),
    /// A request that no rule limits, with the reason as text.
    Free(&'static str),
    Unkeyed(KeyError),
    /// A store that does not support dry runs, with the reason.
    Unsaid(Unsupported),
}

impl Decision {
    /// Explains the decision, without quotas, keys and costs.
    ///
    /// To add them, call [`charges`](Explanation::charges) or [`rules`](Explanation::rules) on the
    /// explanation.
    pub fn explain(&self) -> Explanation {
        Explanation::decided(self.clone(), &[])
    }
}

impl Explanation {
    /// Explains the decision that [`take`](crate::StoreExt::take) would make, without a charge.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use tower_sluice::{
    ///     Key, LocalStore, Quota, explain::Explanation, rule::RuleName, store::Charge,
    /// };
    ///
    /// let (store, key, quotas) = (LocalStore::new(), Key::from("alice"), [Quota::per_second(5)]);
    /// let charge = Charge::new(RuleName::default(), &key, &quotas).with_cost(3);
    /// let would = Explanation::look(&store, &[charge]).await?;
    /// assert!(would.is_allowed());
    /// assert_eq!(would.quota_reports()[0].outcome().remaining(), 5);
    /// # Ok::<(), std::convert::Infallible>(())
    /// # });
    /// ```
    ///
    /// # Errors
    ///
    /// Fails if the store cannot decide, or does not support dry runs, as with a governor limiter.
    ///
    /// # Limitations
    ///
    /// A dry run covers the first 254 quotas of a rule.
    pub async fn look<S: Store>(store: &S, charges: &[Charge<'_>]) -> Result<Self, S::Error> {
        Self::look_at(store, &charges.into()).await
    }

    pub(crate) async fn look_at<S: Store>(
        store: &S,
        charges: &OwnedCharges,
    ) -> Result<Self, S::Error> {
        let decision = look::look(store, charges).await?;
        let decided = charges.with(|charges| Self::decided(decision, charges));
        Ok(Self { looked: true, ..decided })
    }

    /// Adds quotas, costs and keys from the charges.
    pub fn charges(mut self, charges: &[Charge<'_>]) -> Self {
        self.add_charges(charges);
        self
    }

    /// Adds quotas, costs and keys from the rules and the request.
    ///
    /// The rules are evaluated now. If a plan was replaced after the decision, the explanation
    /// shows the new quotas.
    pub fn rules<'a>(
        self,
        rules: &(impl Rules + ?Sized),
        head: impl Into<RequestHead<'a>>,
    ) -> Self {
        let mut explained = self;
        let add = &mut |charges: &[Charge<'_>]| {
            if !charges.is_empty() {
                explained.add_charges(charges);
            }
        };
        // A request that bypasses the rules has no charges.
        let _bypassed = rules.charge(&head.into(), &[], add);
        explained
    }

    /// Prints keys as [fingerprints](crate::fingerprint::Fingerprint).
    pub fn fingerprint(self, secret: impl Into<FingerprintKey>) -> Self {
        Self { secret: Some(secret.into()), ..self }
    }

    /// Returns `true` if the request is allowed, or would be allowed.
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        match &self.about {
            About::Decision(decision, _) => decision.is_allowed() || self.beside.is_some(),
            About::Free(_) => true,
            About::Unkeyed(_) => self.beside.is_some(),
            About::Unsaid(_) => false,
        }
    }

    /// Returns the decision, or `None` if no store was called.
    #[must_use]
    pub fn decision(&self) -> Option<&Decision> {
        match &self.about {
            About::Decision(decision, _) => Some(decision),
            About::Free(_) | About::Unkeyed(_) | About::Unsaid(_) => None,
        }
    }

    /// Returns one report per quota, in the order of the outcomes.
    #[must_use]
    pub fn quota_reports(&self) -> &[QuotaReport] {
        match &self.about {
            About::Decision(_, reports) => reports,
            About::Free(_) | About::Unkeyed(_) | About::Unsaid(_) => &[],
        }
    }

    fn add_charges(&mut self, charges: &[Charge<'_>]) {
        if let About::Decision(decision, reports) = &mut self.about {
            *reports = list(decision, charges);
        }
    }

    pub(crate) fn decided(decision: Decision, charges: &[Charge<'_>]) -> Self {
        let reports = list(&decision, charges);
        Self::of(About::Decision(Box::new(decision), reports))
    }

    /// Marks the explanation as a dry run.
    pub(crate) fn looked(self) -> Self {
        Self { looked: true, ..self }
    }

    /// Marks a denied request as allowed for the reason `because`.
    pub(crate) fn passes(self, because: &'static str) -> Self {
        Self { beside: Some(because), ..self }
    }

    pub(crate) fn told_by(self, secret: Option<&FingerprintKey>) -> Self {
        Self { secret: secret.copied(), ..self }
    }

    pub(crate) fn of(about: About) -> Self {
        Self { about, looked: false, beside: None, secret: None }
    }
}

/// Report on one quota of a decision, in an [`Explanation`].
///
/// The quota, the key and the costs are `None` unless the explanation was given the charges or the
/// rules.
#[derive(Clone, Debug)]
pub struct QuotaReport {
    outcome: Outcome,
    asked: Option<ChargedQuota>,
}

/// The charges of a request to one account, added up.
#[derive(Clone, Debug)]
struct ChargedQuota {
    key: Key,
    quota: Quota,
    /// The number of quotas that the rule has.
    quotas: usize,
    cost: u64,
    headroom: u32,
}

impl QuotaReport {
    /// Returns the outcome of the quota.
    #[must_use]
    pub fn outcome(&self) -> &Outcome {
        &self.outcome
    }

    /// Returns the quota, if known.
    #[must_use]
    pub fn quota(&self) -> Option<Quota> {
        self.asked.as_ref().map(|asked| asked.quota)
    }

    /// Returns the key of the account, if known.
    #[must_use]
    pub fn key(&self) -> Option<&Key> {
        self.asked.as_ref().map(|asked| &asked.key)
    }

    /// Returns the requested units, if known.
    #[must_use]
    pub fn cost(&self) -> Option<u64> {
        self.asked.as_ref().map(|asked| asked.cost)
    }

    /// Returns the units that must be left over after the charge, if known.
    #[must_use]
    pub fn headroom(&self) -> Option<u32> {
        self.asked.as_ref().map(|asked| asked.headroom)
    }
}

/// Creates one report for each outcome of the decision.
fn list(decision: &Decision, charges: &[Charge<'_>]) -> Vec<QuotaReport> {
    let placed = |charge| {
        let of = move |(place, quota): (usize, &Quota)| (charge, place, *quota);
        Charge::charged_quotas(charge).map(of)
    };
    let all: Vec<_> = charges.iter().flat_map(placed).collect();
    let reckon = |(at, outcome): (usize, &Outcome)| {
        let of_it = |(charge, place, _): &&(&Charge<'_>, usize, Quota)| {
            charge.rule() == outcome.rule() && *place == outcome.quota_index()
        };
        let known = all.get(at).filter(of_it).or_else(|| all.iter().find(of_it));
        let asked = known.map(|(charge, _, quota)| asked(charge, *quota, charges));
        QuotaReport { outcome: *outcome, asked }
    };
    decision.outcomes().iter().enumerate().map(reckon).collect()
}

/// Adds up all charges to the account of `charge`.
fn asked(charge: &Charge<'_>, quota: Quota, charges: &[Charge<'_>]) -> ChargedQuota {
    let same = |other: &&Charge<'_>| {
        other.rule() == charge.rule()
            && other.key() == charge.key()
            && other.quota_index() == charge.quota_index()
    };
    let all = || charges.iter().filter(same);
    ChargedQuota {
        key: charge.key().clone(),
        quota,
        quotas: charge.quotas().len(),
        cost: all().map(|charge| u64::from(charge.cost())).sum(),
        headroom: all().map(Charge::headroom).max().unwrap_or(0),
    }
}

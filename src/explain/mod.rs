//! Decisions in words: by which rule, under which quota, with what arithmetic.
//!
//! A refusal is a number to its client and a line to its log. Whoever asks *why* wants the sum: what
//! was left, what it needed, what comes back when. An [`Explanation`] is that, printed by `Display`
//! and read through [`reckonings`](Explanation::reckonings). It is made when asked for, from the
//! numbers of the decision itself, so that what it says is what was decided; a request that nobody
//! asks about pays nothing.
//!
//! A decision explains what it knows:
//!
//! ```
//! use tower_sluice::{Limiter, Quota};
//!
//! let (limiter, quota) = (Limiter::local(), Quota::per_hour(2));
//! limiter.take("alice", &quota, 2).now();
//! let refused = limiter.take("alice", &quota, 1).now();
//! let text = refused.explain().to_string();
//! assert!(text.starts_with("refused by rule \"default\": 0 left of 2\n"), "{text}");
//! assert!(text.contains("one unit comes back every 30min; 2 owed"), "{text}");
//! ```
//!
//! With the rules it knows quotas, keys and costs too. The layer, or the limiter, also says what it
//! *would* answer, and charges nothing for it:
//!
//! ```
//! # tokio_test::block_on(async {
//! use tower_sluice::{Limiter, Quota};
//!
//! let (limiter, quotas) = (Limiter::local(), [Quota::per_second(5).burst(20), Quota::per_day(10_000)]);
//! let would = limiter.explain("alice", &quotas, 25).await?;
//! assert_eq!(
//!     would.to_string(),
//!     "would be refused by rule \"default\", quota 1 of 2 (5/s burst 20, gcra), Key(..): \
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
//! [`RateLimitLayer::explain`](crate::RateLimitLayer::explain) does so for the head of a request, and
//! [`Rejection::explain`](crate::Rejection::explain) for the refusal at hand.
//!
//! # What it does not protect against
//!
//! It is for operators. To show it to clients tells them of rules that they may not know of, and of
//! other rules' accounts. The key is never printed, at most its [fingerprint](crate::Fingerprint).
//!
//! What would be answered is so at the moment of the look: others charge meanwhile.

mod look;
mod reckoning;
mod sum;
mod text;
mod time;

use http::request::Parts;

pub use self::reckoning::Reckoning;
use crate::{
    decision::Decision,
    fingerprint::Secret,
    key::KeyError,
    rule::{Aside, Rules},
    store::{Charge, OwnedCharges, Store, Unsupported},
};

/// A decision in words. See the [module](self) for an example.
///
/// Its text is for people and may change; programs read [`decision`](Explanation::decision) and
/// [`reckonings`](Explanation::reckonings).
#[derive(Clone, Debug)]
#[must_use]
pub struct Explanation {
    about: About,
    /// Nothing was charged: it says what would be.
    looked: bool,
    /// What the layer makes of it.
    beside: Option<&'static str>,
    secret: Option<Secret>,
}

#[derive(Clone, Debug)]
enum About {
    Decision(Box<Decision>, Vec<Reckoning>),
    /// Nothing limits it.
    Free(&'static str),
    Unkeyed(KeyError),
    /// The store cannot look.
    Unsaid(Unsupported),
}

impl Decision {
    /// The decision in words, as far as it knows itself: without quotas, keys and costs, which
    /// [`charges`](Explanation::charges) or [`rules`](Explanation::rules) add.
    pub fn explain(&self) -> Explanation {
        Explanation::decided(self.clone(), &[])
    }
}

impl Explanation {
    /// What [`take`](Store::take) of these charges would say, with nothing charged.
    ///
    /// The store is asked for what it must refuse: beside the quotas of each charge stands one that
    /// is [blocked](crate::Quota::blocked), and a refusal charges nothing. (Of a rule, the first 254
    /// quotas are asked.)
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use tower_sluice::{Charge, Explanation, Key, LocalStore, Quota, RuleName};
    ///
    /// let (store, key, quotas) = (LocalStore::new(), Key::from("alice"), [Quota::per_second(5)]);
    /// let charge = Charge::new(RuleName::default(), &key, &quotas).cost(3);
    /// let would = Explanation::look(&store, &[charge]).await?;
    /// assert!(would.is_allowed());
    /// assert_eq!(would.reckonings()[0].outcome().remaining(), 5);
    /// # Ok::<(), std::convert::Infallible>(())
    /// # });
    /// ```
    ///
    /// # Errors
    ///
    /// When the store could not decide, or, as a governor limiter, cannot be asked without being
    /// charged.
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

    /// Adds what was asked: quotas, costs, and whose accounts.
    pub fn charges(mut self, charges: &[Charge<'_>]) -> Self {
        if let About::Decision(decision, reckonings) = &mut self.about {
            *reckonings = reckoning::list(decision, charges);
        }
        self
    }

    /// The same from the rules and the head of the request: they are asked again, so that a plan
    /// that was replaced since is told as it is now.
    pub fn rules(self, rules: &(impl Rules + ?Sized), parts: &Parts) -> Self {
        match charged(rules, parts) {
            Ok(Some(charges)) => charges.with(|charges| self.charges(charges)),
            Ok(None) | Err(_) => self,
        }
    }

    /// Shows keys by their [fingerprints](crate::Fingerprint).
    pub fn fingerprint(self, secret: impl Into<Secret>) -> Self {
        Self { secret: Some(secret.into()), ..self }
    }

    /// Whether the request passes, or would.
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        match &self.about {
            About::Decision(decision, _) => decision.is_allowed() || self.beside.is_some(),
            About::Free(_) => true,
            About::Unkeyed(_) => self.beside.is_some(),
            About::Unsaid(_) => false,
        }
    }

    /// What is explained; `None` where no store was asked, or could be.
    #[must_use]
    pub fn decision(&self) -> Option<&Decision> {
        match &self.about {
            About::Decision(decision, _) => Some(decision),
            About::Free(_) | About::Unkeyed(_) | About::Unsaid(_) => None,
        }
    }

    /// The arithmetic of each quota, in the order of the decision's outcomes.
    #[must_use]
    pub fn reckonings(&self) -> &[Reckoning] {
        match &self.about {
            About::Decision(_, reckonings) => reckonings,
            About::Free(_) | About::Unkeyed(_) | About::Unsaid(_) => &[],
        }
    }

    /// Whether the store can look.
    pub(crate) fn check<S: Store>(store: &S, charges: &OwnedCharges) -> Result<(), Unsupported> {
        look::check(store, charges)
    }

    pub(crate) fn decided(decision: Decision, charges: &[Charge<'_>]) -> Self {
        let reckonings = reckoning::list(&decision, charges);
        Self::of(About::Decision(Box::new(decision), reckonings))
    }

    /// Nothing limits the request, and why.
    pub(crate) fn free(why: &'static str) -> Self {
        Self { looked: true, ..Self::of(About::Free(why)) }
    }

    pub(crate) fn unkeyed(error: KeyError) -> Self {
        Self::of(About::Unkeyed(error))
    }

    pub(crate) fn unsaid(why: Unsupported) -> Self {
        Self::of(About::Unsaid(why))
    }

    /// Says that it has not happened.
    pub(crate) fn looked(self) -> Self {
        Self { looked: true, ..self }
    }

    /// The request passes all the same, because of this.
    pub(crate) fn passes(self, because: &'static str) -> Self {
        Self { beside: Some(because), ..self }
    }

    pub(crate) fn told_by(self, secret: Option<&Secret>) -> Self {
        Self { secret: secret.copied(), ..self }
    }

    fn of(about: About) -> Self {
        Self { about, looked: false, beside: None, secret: None }
    }
}

/// What the rules charge for a request: `None` where they exempt it or do not apply.
pub(crate) fn charged(
    rules: &(impl Rules + ?Sized),
    parts: &Parts,
) -> Result<Option<OwnedCharges>, KeyError> {
    let mut found = None;
    let keep = &mut |charges: &[Charge<'_>]| {
        found = (!charges.is_empty()).then(|| OwnedCharges::from(charges));
    };
    match rules.charge(parts, &[], keep) {
        Ok(()) => Ok(found),
        Err(Aside::Exempt) => Ok(None),
        Err(Aside::Refused(error)) => Err(error),
    }
}

//! Decisions as a layer makes them.

use smallvec::SmallVec;

use crate::{
    decision::Decision,
    rule::{self, Attempts, Candidates},
    store::{Answer, Charge, Store, StoreExt},
};

/// Decision that [`take`] or [`peek`] made, and its charges.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Taken<'a> {
    /// The decision, with an outcome of each quota of all candidates.
    pub decision: Decision,
    /// The charges that were made or, after a denial, those that describe it best. An
    /// [undo](Store::undo) needs these charges.
    pub charges: Vec<Charge<'a>>,
}

/// Charges a request as a layer does: of each [choice](crate::rule::Choice), the first list of charges
/// that fits.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use tower_sluice::{
///     Key, LocalStore, Quota, rule::{Candidates, Choice, RuleName}, store::Charge, testing,
/// };
///
/// let store = LocalStore::new();
/// let key = Key::from("alice");
/// let quotas = [Quota::per_day(1)];
/// let charge = |name| RuleName::new(name).map(|rule| Charge::new(rule, &key, &quotas));
/// let charges = [charge("plan")?, charge("credits")?];
/// // one of the two
/// let either = [Choice::new(0, [1, 1])];
/// let all = Candidates { charges: &charges, choices: &either };
/// for paid in ["plan", "credits"] {
///     let taken = testing::take(&store, all).await?;
///     assert!(taken.decision.is_allowed());
///     assert_eq!(taken.charges[0].rule.as_str(), paid);
/// }
/// assert!(!testing::take(&store, all).await?.decision.is_allowed());
/// # Ok::<(), tower::BoxError>(())
/// # }).unwrap();
/// ```
///
/// # Errors
///
/// Fails if the store fails.
///
/// # Panics
///
/// Panics if a choice has charges that are not among the candidates.
pub async fn take<'a, S: Store>(
    store: &S,
    candidates: Candidates<'_, 'a>,
) -> Result<Taken<'a>, S::Error> {
    decide(store, candidates, S::take).await
}

/// Decides as [`take`], and changes nothing.
///
/// # Errors
///
/// Fails if the store fails.
///
/// # Panics
///
/// Panics if a choice has charges that are not among the candidates.
pub async fn peek<'a, S: Store>(
    store: &S,
    candidates: Candidates<'_, 'a>,
) -> Result<Taken<'a>, S::Error> {
    decide(store, candidates, S::peek).await
}

async fn decide<'a, S: Store>(
    store: &S,
    all: Candidates<'_, 'a>,
    call: impl Fn(&S, &[Charge<'_>]) -> Answer<S::Future>,
) -> Result<Taken<'a>, S::Error> {
    let mut attempts = Attempts::default();
    let decision = rule::decide(store, &all.into(), &mut attempts, call).await?;
    let mut made = SmallVec::new();
    let charges = if decision.is_allowed() {
        attempts.charges(all, &mut made)
    } else {
        attempts.described(all, &decision, &mut made)
    };
    Ok(Taken {
        charges: charges.to_vec(),
        decision,
    })
}

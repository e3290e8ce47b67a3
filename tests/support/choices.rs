//! Requests with a choice between charges.

use futures::FutureExt;
use tower_sluice::{
    LocalStore,
    rule::{Candidates, Choice, RuleName},
    store::Charge,
    testing::{self, Taken},
};

/// Charges of a request, and the choices between them.
pub(crate) struct Choosing<'a> {
    pub(crate) charges: Vec<Charge<'a>>,
    pub(crate) choices: Vec<Choice>,
}

impl<'a> Choosing<'a> {
    /// Returns a choice between all of these charges.
    pub(crate) fn one_of(charges: &[Charge<'a>]) -> Self {
        let choices = vec![Choice::new(0, charges.iter().map(|_| 1))];
        Self { charges: charges.to_vec(), choices }
    }

    /// Returns what [`Rule::fair_by`](tower_sluice::Rule::fair_by) gives for the share of the charge after
    /// it, whose headroom is the reserve.
    pub(crate) fn of_share(charges: &[Charge<'a>], share: RuleName) -> Self {
        let at = charges.iter().position(|it| it.rule == share).expect("a share");
        let mut all = charges.to_vec();
        let pool = all[at + 1];
        all.insert(at + 2, pool.with_headroom(pool.headroom + all[at].headroom));
        all[at] = all[at].with_headroom(0).with_report_only(false);
        Self { charges: all, choices: vec![Choice::new(at, [2, 1])] }
    }

    pub(crate) fn all(&self) -> Candidates<'_, 'a> {
        Candidates { charges: &self.charges, choices: &self.choices }
    }

    pub(crate) fn take(&self, store: &LocalStore) -> Taken<'a> {
        let taken = testing::take(store, self.all()).now_or_never();
        taken.expect("the store is embedded").expect("it cannot fail")
    }

    pub(crate) fn peek(&self, store: &LocalStore) -> Taken<'a> {
        let peeked = testing::peek(store, self.all()).now_or_never();
        peeked.expect("the store is embedded").expect("it cannot fail")
    }
}

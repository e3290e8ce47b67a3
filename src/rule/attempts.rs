//! Attempts of a request: lists of charges, of which the first that fits is made.
//!
//! ```text
//! charges ─▶ the store ─▶ advance ── allowed, or no list is left ─▶ finish
//!    ▲                       │ denied
//!    └────── try_next ◀──────┘
//! ```

use std::iter;

use smallvec::SmallVec;

use super::{
    RuleName,
    choice::{Candidates, Choice, OwnedCandidates},
};
use crate::{
    decision::{Decision, Outcome},
    store::{Answer, Charge, Store, for_cost_of},
};

impl<'c, 'a> Candidates<'c, 'a> {
    /// Returns attempts that together have each charge.
    pub(crate) fn attempts(self) -> impl Iterator<Item = SmallVec<[Charge<'a>; 4]>> {
        let most = self.choices.iter().map(Choice::lists).max().unwrap_or(1);
        (0..most).map(move |list| {
            let choices = self.choices.iter();
            let attempts = Attempts {
                tried: choices.map(|choice| list.min(choice.lists() - 1)).collect(),
                ..Attempts::default()
            };
            attempts.charges(self, &mut SmallVec::new()).into()
        })
    }
}

/// Asks a store for one attempt after another, until one is allowed or all are denied.
pub(crate) async fn decide<S: Store>(
    store: &S,
    candidates: &OwnedCandidates,
    attempts: &mut Attempts,
    call: impl Fn(&S, &[Charge<'_>]) -> Answer<S::Future>,
) -> Result<Decision, S::Error> {
    loop {
        let answer =
            candidates.with(|all| call(store, attempts.charges(all, &mut SmallVec::new())));
        let mut decision = answer.await?;
        if !candidates.with(|all| attempts.advance(all, &mut decision)) {
            return Ok(decision);
        }
    }
}

/// Attempts of a request so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Attempts {
    /// The list of each choice that is tried. Empty while all choices try their first.
    tried: SmallVec<[usize; 2]>,
    /// The list of each choice that describes a final denial. If empty, those that were tried.
    described: SmallVec<[usize; 2]>,
    /// The outcomes of the lists that were tried before.
    denied: SmallVec<[DeniedOutcome; 2]>,
    /// The number of calls after the first.
    pub(crate) repeats: u32,
}

/// Outcome of a charge in a denied list of a choice.
#[derive(Clone, Debug)]
struct DeniedOutcome {
    choice: usize,
    list: usize,
    outcome: Outcome,
}

/// List of a choice with the shortest wait.
struct Soonest {
    list: usize,
    wait_ns: u64,
}

impl Attempts {
    fn tried(&self, choice: usize) -> usize {
        list_of(&self.tried, choice)
    }

    /// Returns the charges to try. `made` keeps them if they are not neighbors.
    pub(crate) fn charges<'m, 'a>(
        &self,
        all: Candidates<'m, 'a>,
        made: &'m mut SmallVec<[Charge<'a>; 4]>,
    ) -> &'m [Charge<'a>] {
        charges_of(&self.tried, FirstLists::LeftOut, all, made)
    }

    /// Returns the charges that describe the final decision. `made` keeps them if they are not neighbors.
    ///
    /// If it is allowed, these are the charges that were made, and those of the first list of each choice,
    /// even if it was passed over: a client is known and blocked by them. If it is denied, these are the
    /// charges of the lists that describe the denial.
    pub(crate) fn described<'m, 'a>(
        &self,
        all: Candidates<'m, 'a>,
        decision: &Decision,
        made: &'m mut SmallVec<[Charge<'a>; 4]>,
    ) -> &'m [Charge<'a>] {
        if decision.is_allowed() {
            return charges_of(&self.tried, FirstLists::Added, all, made);
        }
        let lists = if self.described.is_empty() {
            &self.tried
        } else {
            &self.described
        };
        charges_of(lists, FirstLists::LeftOut, all, made)
    }

    /// Continues after a decision on the tried charges. Returns `false` if the decision is final, and then
    /// adds the outcomes of the charges that were not made. A block has only its own outcome.
    ///
    /// Tries the next list of each choice that was denied.
    #[inline]
    pub(crate) fn advance(&mut self, all: Candidates<'_, '_>, decision: &mut Decision) -> bool {
        if all.choices.is_empty() || decision.is_blocked() {
            return false;
        }
        if !decision.is_allowed() && self.try_next(all, decision) {
            return true;
        }
        self.finish(all, decision);
        false
    }

    /// Moves each choice that was denied on. Returns `true` if the store must be asked again.
    fn try_next(&mut self, all: Candidates<'_, '_>, denial: &mut Decision) -> bool {
        let mut outcomes = denial.outcomes.iter();
        let causes = if outcomes.any(|outcome| is_beyond_patience(all.charges, outcome)) {
            Causes::BeyondPatience
        } else {
            Causes::EachDenial
        };
        let mut asks_again = false;
        for choice in 0..all.choices.len() {
            asks_again |= self.try_next_of(choice, all, denial, causes);
        }
        self.repeats = self.repeats.saturating_add(asks_again.into());
        asks_again
    }

    /// Moves a choice past lists that are denied, or foreseen to be. In `denial`, the outcomes of a foreseen
    /// list replace those of the list before. Returns `true` if the store must be asked for the list at which
    /// the choice stops.
    fn try_next_of(
        &mut self,
        choice: usize,
        all: Candidates<'_, '_>,
        denial: &mut Decision,
        causes: Causes,
    ) -> bool {
        let mut is_foreseen = false;
        while self.tried(choice) + 1 < all.choices[choice].lists() {
            let list = self.tried(choice);
            let charges = all.list(choice, list);
            let outcomes = outcomes_of(charges, &denial.outcomes);
            let is_denied = is_foreseen
                || outcomes
                    .iter()
                    .any(|outcome| causes.contain(outcome, all.charges));
            if !is_denied {
                return false;
            }
            self.note_denied(choice, outcomes);
            self.tried.resize(all.choices.len(), 0);
            self.tried[choice] += 1;
            let next = all.list(choice, list + 1);
            let Some(foreseen) = foresee_denial(charges, next, &denial.outcomes) else {
                return true;
            };
            replace_outcomes(denial, charges, foreseen);
            is_foreseen = true;
        }
        false
    }

    /// Keeps the outcomes of the list of a choice that is tried.
    fn note_denied(&mut self, choice: usize, outcomes: SmallVec<[Outcome; 2]>) {
        let list = self.tried(choice);
        for outcome in outcomes {
            self.denied.push(DeniedOutcome {
                choice,
                list,
                outcome,
            });
        }
    }

    /// Adds the outcomes of the charges that are not made to the last decision. A denial gets the
    /// shortest wait of each choice.
    fn finish(&mut self, all: Candidates<'_, '_>, decision: &mut Decision) {
        let before = decision.outcomes.len();
        if before == 0 {
            return;
        }
        for choice in 0..all.choices.len() {
            self.finish_choice(choice, all, decision);
        }
        if decision.outcomes.len() > before {
            decision
                .outcomes
                .sort_by_key(|outcome| all.charges.iter().position(|of| of.rule == outcome.rule()));
        }
    }

    /// Adds the outcomes of the charges of a choice that are not made, and marks those that did not decide.
    ///
    /// A denial has the outcomes of the *decisive* list, and shows the charges of the *described* one: the
    /// first list that has all rules of the decisive one.
    fn finish_choice(&mut self, choice: usize, all: Candidates<'_, '_>, decision: &mut Decision) {
        let mut decisive = self.tried(choice);
        if !decision.is_allowed() {
            decisive = self.settle_decisive(choice, all, &mut decision.outcomes);
            self.described
                .push(first_with_rules_of(decisive, choice, all));
        }
        // The decisive list comes first: a rule that is also in others has its outcomes.
        let lists = 0..all.choices[choice].lists();
        for list in iter::once(decisive).chain(lists) {
            self.add_outcomes(choice, list, all, decision);
        }
        let decisive = all.list(choice, decisive);
        let own = &all.charges[all.choices[choice].span()];
        for outcome in &mut decision.outcomes {
            if has_rule(own, outcome.rule()) && !has_rule(decisive, outcome.rule()) {
                outcome.pass_over(decision.allowed);
            }
        }
    }

    /// Adds the outcomes of the charges of a list, except for rules that have some.
    fn add_outcomes(
        &self,
        choice: usize,
        list: usize,
        all: Candidates<'_, '_>,
        decision: &mut Decision,
    ) {
        let last = all.list(choice, self.tried(choice));
        for charge in all.list(choice, list) {
            let rule = charge.rule;
            if has_rule(last, rule) || has_outcome(&decision.outcomes, rule) {
                continue;
            }
            let known = self.denied_in(choice, list);
            let known = known.filter(|outcome| outcome.rule() == rule);
            decision.outcomes.extend(known.copied());
            if !has_outcome(&decision.outcomes, rule) {
                charge.add_unknown(decision);
            }
        }
    }

    /// Returns the outcomes of a list that was tried before.
    fn denied_in(&self, choice: usize, list: usize) -> impl Iterator<Item = &Outcome> {
        let denied = self.denied.iter();
        let its = denied.filter(move |denied| denied.choice == choice && denied.list == list);
        its.map(|denied| &denied.outcome)
    }

    /// Returns the list of a choice that decides a denial: the one with the shortest wait. If it has all
    /// rules of the last list, returns the last, whose outcomes get the shortest wait.
    fn settle_decisive(
        &self,
        choice: usize,
        all: Candidates<'_, '_>,
        outcomes: &mut [Outcome],
    ) -> usize {
        let tried = self.tried(choice);
        let last = all.list(choice, tried);
        let soonest = self.soonest(choice, all, outcomes);
        if soonest.list == tried || !has_rules_of(all.list(choice, soonest.list), last) {
            return soonest.list;
        }
        // All rules of the last list are also in the soonest one. Its outcomes are the newest, so they
        // are kept, with the wait of the soonest.
        for outcome in outcomes {
            if has_rule(last, outcome.rule()) {
                outcome.set_retry_ns(soonest.wait_ns);
            }
        }
        tried
    }

    /// Returns the list of a choice with the shortest wait, of those that were tried.
    fn soonest(&self, choice: usize, all: Candidates<'_, '_>, last: &[Outcome]) -> Soonest {
        let tried = self.tried(choice);
        let charges = all.list(choice, tried);
        let is_last = |outcome: &&Outcome| has_rule(charges, outcome.rule());
        let mut soonest = Soonest {
            list: tried,
            wait_ns: longest(last.iter().filter(is_last)),
        };
        // The first of equal waits.
        for list in (0..tried).rev() {
            let wait_ns = longest(self.denied_in(choice, list));
            if wait_ns <= soonest.wait_ns {
                soonest = Soonest { list, wait_ns };
            }
        }
        soonest
    }
}

/// Returns the noted list of a choice, or the first.
fn list_of(lists: &[usize], choice: usize) -> usize {
    lists.get(choice).copied().unwrap_or(0)
}

/// The first lists of the choices, beside the lists that are charged.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FirstLists {
    LeftOut,
    /// Their charges are added, except for those with a rule of the charged list.
    Added,
}

/// Returns the charges of these lists, those outside of choices, and perhaps those of the first lists.
/// `made` keeps them if they are not neighbors.
fn charges_of<'m, 'a>(
    lists: &[usize],
    first: FirstLists,
    all: Candidates<'m, 'a>,
    made: &'m mut SmallVec<[Charge<'a>; 4]>,
) -> &'m [Charge<'a>] {
    let adds_first = first == FirstLists::Added && lists.iter().any(|list| *list > 0);
    made.clear();
    match all.choices {
        [] => return all.charges,
        [one] if !adds_first && one.span() == (0..all.charges.len()) => {
            return one.charges(all, list_of(lists, 0));
        }
        _ => {}
    }
    let mut end = 0;
    for (at, choice) in all.choices.iter().enumerate() {
        made.extend_from_slice(&all.charges[end..choice.start]);
        let own = choice.charges(all, list_of(lists, at));
        if adds_first {
            let first = choice.charges(all, 0).iter();
            made.extend(first.filter(|charge| !has_rule(own, charge.rule)).copied());
        }
        made.extend_from_slice(own);
        end = choice.end();
    }
    made.extend_from_slice(&all.charges[end..]);
    made
}

/// Returns the first list that has all rules of `list`: the one that describes a denial.
fn first_with_rules_of(list: usize, choice: usize, all: Candidates<'_, '_>) -> usize {
    let charges = all.list(choice, list);
    let mut earlier = 0..list;
    let found = earlier.find(|first| has_rules_of(all.list(choice, *first), charges));
    found.unwrap_or(list)
}

fn has_rule(charges: &[Charge<'_>], rule: RuleName) -> bool {
    charges.iter().any(|charge| charge.rule == rule)
}

/// Returns `true` if some of the charges have each rule of the others.
fn has_rules_of(charges: &[Charge<'_>], others: &[Charge<'_>]) -> bool {
    others.iter().all(|other| has_rule(charges, other.rule))
}

fn has_outcome(outcomes: &[Outcome], rule: RuleName) -> bool {
    outcomes.iter().any(|outcome| outcome.rule() == rule)
}

/// Returns the outcomes of the rules of these charges.
fn outcomes_of(charges: &[Charge<'_>], outcomes: &[Outcome]) -> SmallVec<[Outcome; 2]> {
    let outcomes = outcomes.iter();
    let its = outcomes.filter(|outcome| has_rule(charges, outcome.rule()));
    its.copied().collect()
}

/// Replaces the outcomes of the rules of these charges.
fn replace_outcomes(denial: &mut Decision, charges: &[Charge<'_>], by: SmallVec<[Outcome; 2]>) {
    denial
        .outcomes
        .retain(|outcome| !has_rule(charges, outcome.rule()));
    denial.outcomes.extend(by);
}

/// Returns the longest wait of the outcomes that decide.
fn longest<'o>(outcomes: impl Iterator<Item = &'o Outcome>) -> u64 {
    let deciding = outcomes.filter(|outcome| outcome.is_deciding());
    deciding.map(Outcome::retry_ns).max().unwrap_or(0)
}

/// The outcomes that caused a denial.
///
/// A store reports waits as if nobody queued. If the wait of an outcome is at most the `max_wait` of its
/// rule, the request could have queued for it, so another outcome may be the cause. One with a longer wait
/// certainly is. If there is none, each denying outcome may be the cause.
#[derive(Clone, Copy)]
enum Causes {
    BeyondPatience,
    EachDenial,
}

impl Causes {
    fn contain(self, outcome: &Outcome, charges: &[Charge<'_>]) -> bool {
        match self {
            Self::BeyondPatience => is_beyond_patience(charges, outcome),
            Self::EachDenial => outcome.denies(),
        }
    }
}

/// Returns `true` for a denial with a longer wait than the largest `max_wait` of its rule.
fn is_beyond_patience(charges: &[Charge<'_>], outcome: &Outcome) -> bool {
    let rule = outcome.rule();
    let its = charges.iter().filter(|charge| charge.rule == rule);
    let patience = its.map(|charge| charge.demand().max_wait).max();
    outcome.is_deciding() && outcome.retry_ns() > patience.unwrap_or(0)
}

/// Returns the outcomes of the next list, if those of the denied one show that it does not fit either.
/// The store is not asked for it.
fn foresee_denial(
    denied: &[Charge<'_>],
    next: &[Charge<'_>],
    outcomes: &[Outcome],
) -> Option<SmallVec<[Outcome; 2]>> {
    // What does not fit now may fit later.
    if next.iter().any(Charge::queues) {
        return None;
    }
    let known = outcomes_of(denied, outcomes);
    let mut foreseen: SmallVec<[Outcome; 2]> = SmallVec::new();
    for charge in next {
        if let Some(outcome) = known.iter().find(|outcome| outcome.rule() == charge.rule) {
            let outcome = for_cost_of(charge, outcome);
            foreseen.push(outcome.with_report_only(charge.report_only));
        }
    }
    let is_denied = foreseen.iter().any(Outcome::denies);
    is_denied.then_some(foreseen)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        Key, LocalStore, Quota,
        store::{Context, Op},
    };

    fn call(store: &LocalStore, charges: &[Charge<'_>]) -> Decision {
        store.call(Op::Take(charges), &Context::default()).now()
    }

    fn take(store: &LocalStore, all: Candidates<'_, '_>) -> Decision {
        let mut attempts = Attempts::default();
        loop {
            let mut decision = call(store, attempts.charges(all, &mut SmallVec::new()));
            if !attempts.advance(all, &mut decision) {
                return decision;
            }
        }
    }

    fn rule(name: &str) -> RuleName {
        RuleName::new(name).expect("a name")
    }

    /// Checks that a list of the choice is charged after a wait.
    fn assert_waits(store: &LocalStore, charges: &[Charge<'_>], choice: Choice) {
        let choices = &[choice];
        let decision = take(store, Candidates { charges, choices });
        assert!(
            decision.is_allowed() && !decision.wait().is_zero(),
            "{decision:?}"
        );
    }

    #[test]
    fn a_next_list_that_may_wait_is_not_foreseen_to_be_denied() {
        let (store, key) = (LocalStore::new(), Key::from("alice"));
        let [one, many] = [[Quota::per_minute(1)], [Quota::per_minute(9)]];
        let pool = Charge::new(rule("pool"), &key, &one);
        let share = Charge::new(rule("share"), &key, &many);
        assert!(call(&store, &[pool]).is_allowed());
        let patient = pool.with_max_wait(Duration::from_secs(90));
        assert_waits(&store, &[share, pool, patient], Choice::new(0, [2, 1]));
    }

    /// The first list is denied by the store, and the second one is foreseen to be.
    #[test]
    fn a_list_that_may_wait_is_tried_after_a_foreseen_denial() {
        let (store, key) = (LocalStore::new(), Key::from("alice"));
        let one = [Quota::per_minute(1)];
        let pool = Charge::new(rule("pool"), &key, &one);
        let share = Charge::new(rule("share"), &key, &one);
        assert!(call(&store, &[share, pool]).is_allowed());
        let patient = pool.with_max_wait(Duration::from_secs(90));
        let charges = [share, pool, pool, patient];
        assert_waits(&store, &charges, Choice::new(0, [2, 1, 1]));
    }

    #[test]
    fn a_rule_of_two_denied_lists_has_its_outcomes_once() {
        let (store, key) = (LocalStore::new(), Key::from("alice"));
        let [one, many] = [[Quota::per_minute(1)], [Quota::per_minute(9)]];
        let charge = |name, quotas| Charge::new(rule(name), &key, quotas);
        let (pool, spent) = (charge("pool", &many), charge("spent", &one));
        let other = charge("other", &one);
        assert!(call(&store, &[spent]).is_allowed());
        for is_allowed in [true, false] {
            let charges = [pool, spent, spent, pool.with_cost(2), other];
            let choices = [Choice::new(0, [2, 2, 1])];
            let decision = take(
                &store,
                Candidates {
                    charges: &charges,
                    choices: &choices,
                },
            );
            assert_eq!(decision.is_allowed(), is_allowed);
            let mut rules: Vec<_> = decision
                .outcomes()
                .iter()
                .map(|outcome| outcome.rule().to_string())
                .collect();
            rules.sort();
            assert_eq!(rules, ["other", "pool", "spent"]);
        }
    }
}

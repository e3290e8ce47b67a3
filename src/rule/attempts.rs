//! Attempts of a request: lists of charges, of which the first that fits is made.

use std::ops::Range;

use smallvec::SmallVec;

use super::RuleName;
use crate::{
    decision::{Decision, Outcome},
    store::{Answer, Charge, OwnedCharges, Store, for_cost_of},
};

/// Charges of a request, and the choices between them, for `testing::take`.
///
/// All charges must fit, except for those that a [`Choice`] passes over.
#[derive(Clone, Copy, Debug)]
pub struct Candidates<'c, 'a> {
    /// The charges, in the order of the rules.
    pub charges: &'c [Charge<'a>],
    /// The choices, in the order of their charges. They do not overlap.
    pub choices: &'c [Choice],
}

/// Choice between lists of neighboring charges: the first list that fits is charged.
///
/// For example, [`Rule::or`](crate::Rule::or) chooses between lists of one charge.
#[derive(Clone, Debug)]
pub struct Choice {
    start: usize,
    /// The end of each range of charges. The next range begins there.
    ends: SmallVec<[usize; 3]>,
}

impl Choice {
    /// Creates a choice between lists of these lengths. The first one begins at the charge with the
    /// index `start`, and each further one where the list before it ends.
    pub fn new(start: usize, lengths: impl IntoIterator<Item = usize>) -> Self {
        let mut choice = Self { start, ends: SmallVec::new() };
        for length in lengths {
            choice.add(length);
        }
        choice
    }

    /// Adds a list of this length.
    pub(crate) fn add(&mut self, length: usize) {
        self.ends.push(self.end().saturating_add(length));
    }

    fn end(&self) -> usize {
        self.ends.last().copied().unwrap_or(self.start)
    }

    fn range(&self, at: usize) -> Range<usize> {
        let start = at.checked_sub(1).map_or(self.start, |before| self.ends[before]);
        start..self.ends[at]
    }

    /// Returns the charges of a range.
    fn charges<'c, 'a>(&self, all: Candidates<'c, 'a>, range: usize) -> &'c [Charge<'a>] {
        &all.charges[self.range(range)]
    }
}

impl<'a> Candidates<'_, 'a> {
    /// Returns attempts that together have each charge.
    pub(crate) fn attempts(self) -> impl Iterator<Item = SmallVec<[Charge<'a>; 4]>> {
        let most = self.choices.iter().map(|choice| choice.ends.len()).max().unwrap_or(1);
        (0..most).map(move |at| {
            let tried = self.choices.iter().map(|choice| at.min(choice.ends.len() - 1)).collect();
            let attempts = Attempts { tried, ..Attempts::default() };
            attempts.charges(self, &mut SmallVec::new()).into()
        })
    }
}

impl<'c, 'a> From<&'c [Charge<'a>]> for Candidates<'c, 'a> {
    fn from(charges: &'c [Charge<'a>]) -> Self {
        Self { charges, choices: &[] }
    }
}

/// Owned copy of the charges of a request.
#[derive(Clone, Debug)]
pub(crate) struct OwnedCandidates {
    charges: OwnedCharges,
    choices: SmallVec<[Choice; 1]>,
}

impl From<Candidates<'_, '_>> for OwnedCandidates {
    fn from(all: Candidates<'_, '_>) -> Self {
        Self { charges: all.charges.into(), choices: all.choices.into() }
    }
}

impl OwnedCandidates {
    /// Calls `read` with the charges.
    pub(crate) fn with<T>(&self, read: impl FnOnce(Candidates<'_, '_>) -> T) -> T {
        self.charges.with(|charges| read(Candidates { charges, choices: &self.choices }))
    }
}

/// Final decision of a store, and the attempts that led to it.
pub(crate) struct Decided {
    pub(crate) decision: Decision,
    #[cfg_attr(not(feature = "testing"), expect(dead_code, reason = "for the conformance kit"))]
    pub(crate) attempts: Attempts,
}

/// Asks a store for one attempt after another, until one is allowed or all are denied.
pub(crate) async fn decide<S: Store>(
    store: &S,
    candidates: &OwnedCandidates,
    call: impl Fn(&S, &[Charge<'_>]) -> Answer<S::Future>,
) -> Result<Decided, S::Error> {
    let mut attempts = Attempts::default();
    loop {
        let answer =
            candidates.with(|all| call(store, attempts.charges(all, &mut SmallVec::new())));
        let mut decision = answer.await?;
        if !candidates.with(|all| attempts.advance(all, &mut decision)) {
            return Ok(Decided { decision, attempts });
        }
    }
}

/// Attempts of a request so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Attempts {
    /// The range of each choice that is tried. Without an entry, the first.
    tried: SmallVec<[usize; 2]>,
    /// The outcomes of the ranges that were tried before.
    denied: SmallVec<[DeniedOutcome; 2]>,
    /// The number of calls after the first.
    pub(crate) repeats: u32,
}

/// Outcome of a charge in a denied range of a choice.
#[derive(Clone, Debug)]
struct DeniedOutcome {
    choice: usize,
    range: usize,
    outcome: Outcome,
}

/// Range of a choice with the shortest wait.
struct Soonest {
    range: usize,
    wait_ns: u64,
}

impl Attempts {
    fn tried(&self, choice: usize) -> usize {
        self.tried.get(choice).copied().unwrap_or(0)
    }

    /// Returns the charges to try. `made` keeps them if they are not neighbors.
    pub(crate) fn charges<'m, 'a>(
        &self,
        all: Candidates<'m, 'a>,
        made: &'m mut SmallVec<[Charge<'a>; 4]>,
    ) -> &'m [Charge<'a>] {
        made.clear();
        match all.choices {
            [] => return all.charges,
            [one] if one.start == 0 && one.end() == all.charges.len() => {
                return one.charges(all, self.tried(0));
            }
            _ => {}
        }
        let mut end = 0;
        for (at, choice) in all.choices.iter().enumerate() {
            made.extend_from_slice(&all.charges[end..choice.start]);
            made.extend_from_slice(choice.charges(all, self.tried(at)));
            end = choice.end();
        }
        made.extend_from_slice(&all.charges[end..]);
        made
    }

    /// Returns the charges that describe the final decision. `made` keeps them if they are not neighbors.
    ///
    /// Beside the charges that were made, these are the ones of the first range of each choice, which have
    /// been passed over: a client is known and blocked by them.
    pub(crate) fn described<'m, 'a>(
        &self,
        all: Candidates<'m, 'a>,
        decision: &Decision,
        made: &'m mut SmallVec<[Charge<'a>; 4]>,
    ) -> &'m [Charge<'a>] {
        if !decision.is_allowed() || self.tried.iter().all(|range| *range == 0) {
            return self.charges(all, made);
        }
        let mut end = 0;
        for (at, choice) in all.choices.iter().enumerate() {
            made.extend_from_slice(&all.charges[end..choice.start]);
            let tried = choice.charges(all, self.tried(at));
            made.extend(
                choice.charges(all, 0).iter().filter(|charge| !has(tried, charge.rule)).copied(),
            );
            made.extend_from_slice(tried);
            end = choice.end();
        }
        made.extend_from_slice(&all.charges[end..]);
        made
    }

    /// Continues after a decision on the tried charges. Returns `false` if it is final, with the outcomes
    /// of charges that were not made.
    ///
    /// Tries the next range of each choice that was denied.
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
        // Without a longer wait, any denial must be the reason.
        let is_explained =
            denial.outcomes.iter().any(|outcome| is_beyond_patience(all.charges, outcome));
        let mut asks_again = false;
        for at in 0..all.choices.len() {
            asks_again |= self.try_next_of(at, all, denial, is_explained);
        }
        self.repeats = self.repeats.saturating_add(asks_again.into());
        asks_again
    }

    /// Moves a choice on if it was denied. Returns `true` if the store must be asked again.
    fn try_next_of(
        &mut self,
        at: usize,
        all: Candidates<'_, '_>,
        denial: &mut Decision,
        is_explained: bool,
    ) -> bool {
        let choice = &all.choices[at];
        while self.tried(at) + 1 < choice.ends.len() {
            let range = self.tried(at);
            let charges = choice.charges(all, range);
            let outcomes = outcomes_of(charges, &denial.outcomes);
            let denies = |outcome: &Outcome| {
                if is_explained {
                    return is_beyond_patience(all.charges, outcome);
                }
                outcome.denies()
            };
            if !outcomes.iter().any(denies) {
                return false;
            }
            for outcome in &outcomes {
                self.denied.push(DeniedOutcome { choice: at, range, outcome: *outcome });
            }
            self.tried.resize(all.choices.len(), 0);
            self.tried[at] += 1;
            let Some(foreseen) = foresee(choice.charges(all, range + 1), &outcomes) else {
                return true;
            };
            denial.outcomes.retain(|outcome| !has(charges, outcome.rule()));
            denial.outcomes.extend(foreseen);
        }
        false
    }

    /// Adds the outcomes of the charges that are not made to the last decision. A denial gets the
    /// shortest wait of each choice.
    fn finish(&mut self, all: Candidates<'_, '_>, decision: &mut Decision) {
        let before = decision.outcomes.len();
        if before == 0 {
            return;
        }
        for at in 0..all.choices.len() {
            self.finish_choice(at, all, decision);
        }
        if decision.outcomes.len() > before {
            let place =
                |outcome: &Outcome| all.charges.iter().position(|of| of.rule == outcome.rule());
            decision.outcomes.sort_by_key(place);
        }
    }

    fn finish_choice(&mut self, at: usize, all: Candidates<'_, '_>, decision: &mut Decision) {
        let choice = &all.choices[at];
        let last = choice.charges(all, self.tried(at));
        let decisive = if decision.is_allowed() {
            last
        } else {
            choice.charges(all, self.deny(at, all, &mut decision.outcomes))
        };
        for charge in &all.charges[choice.start..choice.end()] {
            if has(last, charge.rule) {
                continue;
            }
            let start = decision.outcomes.len();
            self.add_known(at, charge, decision);
            if decision.outcomes.len() == start {
                charge.add_unknown(decision);
            }
            if has(decisive, charge.rule) {
                continue;
            }
            for outcome in &mut decision.outcomes[start..] {
                outcome.pass_over(decision.allowed);
            }
        }
    }

    /// Adds the outcomes of a charge in a range that was tried before.
    fn add_known(&self, choice: usize, charge: &Charge<'_>, decision: &mut Decision) {
        decision.outcomes.extend(
            self.denied
                .iter()
                .filter(|denied| denied.choice == choice && denied.outcome.rule() == charge.rule)
                .map(|denied| denied.outcome),
        );
    }

    /// Passes over the outcomes of a denied choice that do not decide. Returns the range that does.
    fn deny(&mut self, at: usize, all: Candidates<'_, '_>, outcomes: &mut [Outcome]) -> usize {
        let choice = &all.choices[at];
        let tried = self.tried(at);
        let last = choice.charges(all, tried);
        let soonest = self.soonest(at, all, outcomes);
        let charges = choice.charges(all, soonest.range);
        // The last range may wait for what the soonest one needs.
        let is_part = soonest.range != tried && last.iter().all(|charge| has(charges, charge.rule));
        for outcome in outcomes.iter_mut().filter(|outcome| has(last, outcome.rule())) {
            if is_part {
                outcome.set_retry_ns(soonest.wait_ns);
            } else if !has(charges, outcome.rule()) {
                outcome.pass_over(false);
            }
        }
        let decisive = if is_part { tried } else { soonest.range };
        // The first range that has all these rules describes them best.
        let charges = choice.charges(all, decisive);
        let has_all = |range: &usize| {
            let other = choice.charges(all, *range);
            charges.iter().all(|charge| has(other, charge.rule))
        };
        self.tried.resize(all.choices.len(), 0);
        self.tried[at] = (0..decisive).find(has_all).unwrap_or(decisive);
        decisive
    }

    fn soonest(&self, at: usize, all: Candidates<'_, '_>, last: &[Outcome]) -> Soonest {
        let tried = self.tried(at);
        let charges = all.choices[at].charges(all, tried);
        let is_last = |outcome: &&Outcome| has(charges, outcome.rule());
        let mut soonest = Soonest { range: tried, wait_ns: longest(last.iter().filter(is_last)) };
        // The first of equal waits.
        for range in (0..tried).rev() {
            let its =
                self.denied.iter().filter(|denied| denied.choice == at && denied.range == range);
            let wait_ns = longest(its.map(|denied| &denied.outcome));
            if wait_ns <= soonest.wait_ns {
                soonest = Soonest { range, wait_ns };
            }
        }
        soonest
    }
}

fn has(charges: &[Charge<'_>], rule: RuleName) -> bool {
    charges.iter().any(|charge| charge.rule == rule)
}

fn outcomes_of(charges: &[Charge<'_>], outcomes: &[Outcome]) -> SmallVec<[Outcome; 2]> {
    outcomes.iter().filter(|outcome| has(charges, outcome.rule())).copied().collect()
}

/// Returns the longest wait of the outcomes that decide.
fn longest<'o>(outcomes: impl Iterator<Item = &'o Outcome>) -> u64 {
    let deciding = outcomes.filter(|outcome| outcome.is_deciding());
    deciding.map(Outcome::retry_ns).max().unwrap_or(0)
}

/// Returns `true` for a denial whose wait is longer than that of any charge of its rule may be.
///
/// The waits of a denial are those of callers that do not queue, so a shorter one may be allowed.
fn is_beyond_patience(charges: &[Charge<'_>], outcome: &Outcome) -> bool {
    let its = charges.iter().filter(|charge| charge.rule == outcome.rule());
    let patience = its.map(|charge| charge.demand().max_wait).max().unwrap_or(0);
    outcome.is_deciding() && outcome.retry_ns() > patience
}

/// Returns the outcomes of charges if the state of their accounts shows that they do not fit.
fn foresee(next: &[Charge<'_>], known: &[Outcome]) -> Option<SmallVec<[Outcome; 2]>> {
    let mut foreseen = SmallVec::new();
    for charge in next {
        if let Some(outcome) = known.iter().find(|outcome| outcome.rule() == charge.rule) {
            let outcome = for_cost_of(charge, outcome);
            foreseen.push(outcome.with_report_only(charge.report_only));
        }
    }
    foreseen.iter().any(Outcome::denies).then_some(foreseen)
}

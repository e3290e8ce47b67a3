//! The accounts of a decision: where they live, each once, and in which order they were named.

use std::hash::{BuildHasher, Hasher, RandomState};

use foldhash::{SharedSeed, quality::SeedableRandomState};
use smallvec::SmallVec;

use super::windows::Place;
use crate::{
    algorithm::{self, Ask, State, Step},
    decision::{Decision, Numbers, Outcome},
    name::RuleName,
    quota::Quota,
    store::Charge,
};

/// One quota of one charge, and where its account lives.
#[derive(Clone, Copy)]
pub(super) struct Account<'a> {
    pub(super) id: u64,
    pub(super) rule: RuleName,
    pub(super) place: usize,
    pub(super) quota: &'a Quota,
    pub(super) ask: Ask,
    pub(super) report_only: bool,
}

impl<'a> Account<'a> {
    pub(super) fn at(&self) -> Place<'a> {
        Place { id: self.id, rule: self.rule, place: self.place, quota: self.quota }
    }

    #[inline]
    pub(super) fn outcome(&self, step: &Step) -> Outcome {
        Outcome::with(self.rule, self.place, step.numbers).report_only(self.report_only)
    }

    /// The same without queueing.
    pub(super) fn hurried(&self) -> Self {
        Self { ask: Ask { max_wait: 0, ..self.ask }, ..*self }
    }

    /// What an account in this state shows.
    pub(super) fn numbers(&self, state: Option<&State>, now: u64) -> Numbers {
        algorithm::look(state, self.quota, now, self.ask).numbers
    }

    /// Whether a decision with such a step may pass.
    pub(super) fn permits(&self, step: &Step) -> bool {
        step.allowed || self.report_only
    }
}

#[derive(Default)]
pub(super) struct Accounts<'a> {
    pub(super) distinct: SmallVec<[Account<'a>; 4]>,
    named: SmallVec<[u16; 8]>,
}

impl<'a> Accounts<'a> {
    /// One account named twice is charged once, costs added.
    pub(super) fn add(&mut self, account: Account<'a>) {
        let known = self.distinct.iter().position(|known| known.id == account.id);
        let at = known.unwrap_or(self.distinct.len());
        match known {
            Some(at) => {
                let known = &mut self.distinct[at];
                known.ask.cost = known.ask.cost.saturating_add(account.ask.cost);
                known.ask.headroom = known.ask.headroom.max(account.ask.headroom);
                known.ask.max_wait = known.ask.max_wait.min(account.ask.max_wait);
                known.report_only &= account.report_only;
            }
            None => self.distinct.push(account),
        }
        self.named.push(u16::try_from(at).unwrap_or(u16::MAX));
    }

    /// Whether a decision that passes charges `account`: of a rule that only reports all are, or
    /// none.
    pub(super) fn charges(&self, account: &Account<'_>, steps: &[Step]) -> bool {
        let fits = || {
            let mut all = self.distinct.iter().zip(steps);
            all.all(|(other, step)| other.rule != account.rule || step.allowed)
        };
        account.ask.cost > 0 && (!account.report_only || fits())
    }

    /// Where in a decision's outcomes the account at `at` was first named.
    pub(super) fn first_named(&self, at: usize) -> Option<usize> {
        self.named.iter().position(|named| usize::from(*named) == at)
    }

    pub(super) fn decision(&self, steps: &[Step], now: u64, allowed: bool) -> Decision {
        let deciding =
            || self.distinct.iter().zip(steps).filter(|(account, _)| !account.report_only);
        let mut decision = Decision::new(allowed, now);
        if allowed {
            let wait = deciding().map(|(_, step)| step.wait).max().unwrap_or(0);
            decision.passes(deciding().any(|(_, step)| step.overage), wait);
        }
        for at in self.named.iter().map(|at| usize::from(*at)) {
            decision.push(self.distinct[at].outcome(&steps[at]));
        }
        decision
    }
}

/// Where accounts live: the rule's name, the key and the place of the quota, hashed.
pub(super) struct Addresses {
    /// Random per store, so that nobody outside can choose keys that meet in one set.
    seed: SeedableRandomState,
}

impl Addresses {
    pub(super) fn new() -> Self {
        let seed = RandomState::new().hash_one(0);
        Self { seed: SeedableRandomState::with_seed(seed, SharedSeed::global_random()) }
    }

    #[inline]
    pub(super) fn account<'a>(
        &self,
        charge: &Charge<'a>,
        place: usize,
        quota: &'a Quota,
    ) -> Account<'a> {
        let (rule, report_only) = (charge.rule(), charge.is_report_only());
        Account { id: self.id(charge, place), rule, place, quota, ask: charge.ask(), report_only }
    }

    pub(super) fn accounts<'a>(&self, charges: &[Charge<'a>]) -> Accounts<'a> {
        let mut accounts = Accounts::default();
        for charge in charges {
            for (place, quota) in charge.placed() {
                accounts.add(self.account(charge, place, quota));
            }
        }
        accounts
    }

    /// The record of the charge's key being blocked.
    pub(super) fn block(&self, charge: &Charge<'_>) -> u64 {
        self.id(charge, usize::MAX)
    }

    #[inline]
    pub(super) fn id(&self, charge: &Charge<'_>, place: usize) -> u64 {
        let mut hasher = self.seed.build_hasher();
        charge.key().hash_with(charge.rule().hash64().wrapping_add(place as u64), &mut hasher);
        hasher.finish()
    }
}

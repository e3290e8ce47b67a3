//! What a call asks of the server: its accounts, each once, and the plan for each.

use smallvec::SmallVec;

use super::{
    addresses::Addresses,
    plan::{LONGEST, Moved, Plan},
    script::{Frame, letter},
};
use crate::{
    algorithm::{Ask, Receipt},
    decision::{Decision, Outcome},
    name::RuleName,
    quota::Quota,
    store::Charge,
};

/// The accounts of a call, and in which order their quotas were named.
#[derive(Clone, Debug)]
pub(super) struct Question {
    pub(super) accounts: SmallVec<[Account; 2]>,
    pub(super) named: SmallVec<[Named; 4]>,
}

/// One quota as it was named.
#[derive(Clone, Copy, Debug)]
pub(super) struct Named {
    pub(super) account: usize,
    pub(super) place: usize,
    /// Which of the decision's outcomes is its own.
    outcome: usize,
}

/// The account of one rule and key.
#[derive(Clone, Debug)]
pub(super) struct Account {
    pub(super) rule: RuleName,
    pub(super) address: String,
    pub(super) report_only: bool,
    pub(super) places: Places,
}

/// What is asked of each quota of an account; `None` for one that is left alone.
pub(super) type Places = SmallVec<[Option<(Quota, Ask)>; 2]>;

/// What is to be done with the accounts.
#[derive(Clone, Copy, Debug)]
pub(super) enum Purpose<'a> {
    Take,
    Late(u64),
    Refund(u64),
    /// All that this decision on the same quotas charged, or up to so many units of it.
    Undo(&'a Decision, Option<u32>),
    Reset,
    /// For so many nanoseconds.
    Block(u64),
    Unblock,
}

impl Purpose<'_> {
    /// As the settling script calls it.
    fn word(self) -> &'static str {
        match self {
            Self::Take => "take",
            Self::Late(_) => "late",
            Self::Refund(_) => "refund",
            Self::Undo(..) => "undo",
            Self::Reset => "reset",
            Self::Block(_) => "block",
            Self::Unblock => "unblock",
        }
    }
}

impl Question {
    /// One account named twice counts as one, costs added.
    pub(super) fn of(charges: &[Charge<'_>], addresses: &Addresses) -> Self {
        let mut question = Self { accounts: SmallVec::new(), named: SmallVec::new() };
        for charge in charges {
            let address = addresses.account(charge.rule(), charge.key());
            let at = question.account(charge, address);
            let account = &mut question.accounts[at];
            for (place, quota) in charge.placed() {
                account.add(place, quota, charge.ask());
                let outcome = question.named.len();
                question.named.push(Named { account: at, place, outcome });
            }
        }
        question
    }

    fn account(&mut self, charge: &Charge<'_>, address: String) -> usize {
        let known = self.accounts.iter().position(|known| known.address == address);
        let at = known.unwrap_or(self.accounts.len());
        match known {
            Some(at) => self.accounts[at].report_only &= charge.is_report_only(),
            None => self.accounts.push(Account {
                rule: charge.rule(),
                address,
                report_only: charge.is_report_only(),
                places: SmallVec::new(),
            }),
        }
        at
    }

    /// Each account by itself, for those that live on different servers.
    pub(super) fn split(&self) -> impl Iterator<Item = Self> {
        self.accounts.iter().enumerate().map(|(at, account)| {
            let named = self.named.iter().filter(|named| named.account == at);
            let named = named.map(|named| Named { account: 0, ..*named });
            Self { accounts: [account.clone()].into_iter().collect(), named: named.collect() }
        })
    }

    /// With outcomes of its own.
    pub(super) fn alone(mut self) -> Self {
        self.named.iter_mut().enumerate().for_each(|(at, named)| named.outcome = at);
        self
    }

    /// What of it an allowed decision charged, in calls to one server each.
    pub(super) fn charged(self, taken: &Decision, sharded: bool) -> Vec<Self> {
        let charged = |account: &Account| taken.charged(account.rule);
        if !sharded && self.accounts.iter().all(charged) {
            return vec![self];
        }
        self.split().filter(|part| charged(&part.accounts[0])).collect()
    }

    /// Whether it asks the same of the same accounts.
    pub(super) fn equals(&self, other: &Self) -> bool {
        let same = |(one, other): (&Account, &Account)| {
            one.address == other.address && one.places == other.places
        };
        self.accounts.len() == other.accounts.len()
            && self.accounts.iter().zip(&other.accounts).all(same)
    }

    /// Which script answers.
    pub(super) fn frame(&self, purpose: Purpose<'_>) -> Frame {
        match purpose {
            Purpose::Take if self.accounts.iter().all(Account::is_plain) => Frame::Plain,
            Purpose::Take => Frame::Take,
            _ => Frame::Settle,
        }
    }

    /// Letters of the algorithms that are asked.
    pub(super) fn letters(&self) -> impl Iterator<Item = u8> {
        self.accounts.iter().flat_map(|a| a.places.iter().flatten()).map(|(quota, _)| letter(quota))
    }

    /// The keys and the arguments of the script.
    pub(super) fn encode(&self, purpose: Purpose<'_>) -> (Vec<String>, Vec<Vec<u8>>) {
        let mut keys: Vec<_> = self.accounts.iter().map(|a| a.address.clone()).collect();
        let mut args = Vec::with_capacity(self.accounts.len() + 2);
        if !matches!(purpose, Purpose::Take) {
            let nanos = match purpose {
                Purpose::Block(time) => time.min(LONGEST),
                Purpose::Undo(taken, _) => self.charged_at(taken),
                _ => 0,
            };
            args.push(purpose.word().into());
            args.push(Plan::default().nanos(nanos).0);
        }
        for (at, account) in self.accounts.iter().enumerate() {
            let mut plan = account.plan();
            for (place, asked) in account.places.iter().enumerate() {
                let Some((quota, ask)) = asked else {
                    plan.0.push(b'.');
                    continue;
                };
                if letter(quota) == b'l' {
                    keys.push(Addresses::list(&account.address, place));
                }
                let moved = match purpose {
                    Purpose::Take => Some(Moved::Charge),
                    Purpose::Late(units) => Some(Moved::Late(units)),
                    Purpose::Refund(units) => Some(Moved::Back(units)),
                    Purpose::Undo(taken, units) => {
                        let outcome = self.outcome(taken, at, place);
                        let receipt = outcome.and_then(|it| Receipt::new(taken, it, *ask, units));
                        receipt.map(Moved::Undone)
                    }
                    Purpose::Reset | Purpose::Block(_) | Purpose::Unblock => Some(Moved::Nothing),
                };
                let Some(moved) = moved else {
                    plan.0.push(b'.');
                    continue;
                };
                plan = plan.place(quota, *ask, moved, keys.len());
            }
            args.push(plan.0);
        }
        (keys, args)
    }

    /// The outcome that was decided for the quota at `place` of an account.
    fn outcome<'d>(&self, taken: &'d Decision, at: usize, place: usize) -> Option<&'d Outcome> {
        let named = self.named.iter().find(|it| it.account == at && it.place == place)?;
        taken.outcomes().get(named.outcome)
    }

    /// When the accounts of this call were charged, by their server's clock.
    fn charged_at(&self, taken: &Decision) -> u64 {
        let first = self.named.first().and_then(|named| taken.outcomes().get(named.outcome));
        taken.charged_at().saturating_add_signed(first.map_or(0, Outcome::skew))
    }
}

impl Account {
    /// The head of its plan.
    fn plan(&self) -> Plan {
        let plan = Plan::default().int::<1>(u64::from(!self.report_only));
        plan.int::<1>(self.places.len() as u64)
    }

    /// The plan of an account that is plain.
    pub(super) fn plain(&self) -> Vec<u8> {
        let charge =
            |plan: Plan, (quota, ask): &(Quota, Ask)| plan.place(quota, *ask, Moved::Charge, 0);
        self.places.iter().flatten().fold(self.plan(), charge).0
    }

    /// Whether its quotas are GCRA, start full and are all charged, and a refusal is one.
    fn is_plain(&self) -> bool {
        let plain = |(quota, ask): &(Quota, Ask)| {
            letter(quota) == b'g' && quota.initial_units().is_none() && ask.cost > 0
        };
        let all = self.places.iter().all(|asked| asked.as_ref().is_some_and(plain));
        all && !self.places.is_empty() && !self.report_only
    }

    /// Whether any of its quotas is asked for more than a look.
    pub(super) fn charges(&self) -> bool {
        self.places.iter().flatten().any(|(_, ask)| ask.cost > 0)
    }

    fn add(&mut self, place: usize, quota: &Quota, ask: Ask) {
        if self.places.len() <= place {
            self.places.resize(place + 1, None);
        }
        match &mut self.places[place] {
            Some((_, known)) => {
                known.cost = known.cost.saturating_add(ask.cost);
                known.headroom = known.headroom.max(ask.headroom);
                known.max_wait = known.max_wait.min(ask.max_wait);
            }
            new => *new = Some((*quota, ask)),
        }
    }
}

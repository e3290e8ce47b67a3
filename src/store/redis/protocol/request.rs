//! Requests to the server. Each account is sent once.

use std::hash::{Hash, Hasher};

use smallvec::SmallVec;

use super::{
    addresses::Addresses,
    plan::{Change, EncodedPlan, LONGEST},
    script::{ScriptKind, letter},
};
use crate::{
    algorithm::{Demand, Receipt},
    decision::{Decision, Outcome},
    name::RuleName,
    quota::Quota,
    store::{
        Charge,
        redis::{
            cluster::hash_slot::slot,
            slots::{SlotCall, SlotTake, Slots},
        },
    },
};

/// The accounts of a call. `named` are the charged quotas, in the order of the charges.
#[derive(Clone, Debug, Default)]
pub(crate) struct Request {
    pub(crate) accounts: SmallVec<[AccountRequest; 1]>,
    pub(crate) named: SmallVec<[NamedQuota; 3]>,
}

/// One quota of one charge.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NamedQuota {
    pub(crate) account: usize,
    pub(crate) quota_index: usize,
    /// The index of the quota's outcome in the decision.
    outcome: usize,
}

/// Requests are equal if they have the same demands on the same accounts.
impl PartialEq for Request {
    fn eq(&self, other: &Self) -> bool {
        self.accounts == other.accounts
    }
}

impl Eq for Request {}

impl Hash for Request {
    fn hash<H: Hasher>(&self, state: &mut H) {
        for account in &self.accounts {
            account.address.hash(state);
            for (_, ask) in account.quotas.iter().flatten() {
                (ask.cost, ask.headroom, ask.max_wait).hash(state);
            }
        }
    }
}

/// The account of one rule and key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AccountRequest {
    pub(crate) rule: RuleName,
    pub(crate) address: String,
    pub(crate) report_only: bool,
    pub(crate) quotas: QuotaRequests,
}

/// The demand on each quota of an account, or `None` for an unused quota.
pub(crate) type QuotaRequests = SmallVec<[Option<(Quota, Demand)>; 1]>;

/// The operation on the accounts.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ScriptOp<'a> {
    Take,
    Peek,
    Late(u64),
    Refund(u64),
    /// Undoes the charges of this decision, or at most a number of units of each charge.
    Undo(&'a Decision, Option<u32>),
    Reset,
    /// Blocks the key for this number of nanoseconds.
    Block(u64),
    Unblock,
}

impl ScriptOp<'_> {
    /// Returns the name of the operation in `lua/settle.lua`.
    fn name(self) -> &'static str {
        match self {
            Self::Take => "take",
            Self::Peek => "peek",
            Self::Late(_) => "late",
            Self::Refund(_) => "refund",
            Self::Undo(..) => "undo",
            Self::Reset => "reset",
            Self::Block(_) => "block",
            Self::Unblock => "unblock",
        }
    }

    /// Returns `true` if the call counts slots. Other calls keep the slots as they are.
    pub(crate) fn counts_slots(self) -> bool {
        matches!(self, Self::Take | Self::Peek | Self::Reset)
    }
}

impl Request {
    /// Creates a request. The costs of charges to one account are added.
    pub(crate) fn new(charges: &[Charge<'_>], addresses: &Addresses) -> Self {
        let mut request = Self::default();
        for charge in charges {
            let address = addresses.account(charge.rule(), charge.key());
            let known = request.accounts.iter().position(|known| known.address == address);
            let at = known.unwrap_or(request.accounts.len());
            if known.is_none() {
                let (rule, report_only, quotas) = (charge.rule(), true, SmallVec::new());
                request.accounts.push(AccountRequest { rule, address, report_only, quotas });
            }
            let account = &mut request.accounts[at];
            account.report_only &= charge.is_report_only();
            for (quota_index, quota) in charge.charged_quotas() {
                account.add(quota_index, quota, charge.demand());
                let outcome = request.named.len();
                request.named.push(NamedQuota { account: at, quota_index, outcome });
            }
        }
        request
    }

    /// Returns a request for the accounts at the indices for which `keep` returns `true`.
    pub(crate) fn part(&self, keep: impl Fn(usize) -> bool) -> Self {
        let mut part = Self::default();
        for (at, account) in self.accounts.iter().enumerate().filter(|(at, _)| keep(*at)) {
            let named = self.named.iter().filter(|named| named.account == at);
            let account_index = part.accounts.len();
            part.named.extend(named.map(|it| NamedQuota { account: account_index, ..*it }));
            part.accounts.push(account.clone());
        }
        part
    }

    /// Splits the request into one request per slot, because slots may be on different servers.
    pub(crate) fn by_slot(&self) -> Vec<Self> {
        let slots: SmallVec<[_; 4]> = self.accounts.iter().map(AccountRequest::slot).collect();
        let mut distinct = slots.clone();
        distinct.sort_unstable();
        distinct.dedup();
        distinct.iter().map(|slot| self.part(|at| slots[at] == *slot)).collect()
    }

    /// Splits the request into one request per account.
    pub(crate) fn by_account(&self) -> Vec<Self> {
        (0..self.accounts.len()).map(|index| self.part(|at| at == index)).collect()
    }

    /// Renumbers the outcomes from 0, so that this request has its own decision.
    pub(crate) fn standalone(mut self) -> Self {
        self.named.iter_mut().enumerate().for_each(|(at, named)| named.outcome = at);
        self
    }

    /// Returns requests for the accounts whose rates `taken` charged. If `sharded`, each slot has its own
    /// request.
    pub(crate) fn charged(&self, taken: &Decision, sharded: bool) -> Vec<Self> {
        let charged =
            self.part(|at| self.accounts[at].has_rates() && taken.charged(self.accounts[at].rule));
        if sharded || charged.accounts.is_empty() { charged.by_slot() } else { vec![charged] }
    }

    /// Returns `true` if the request charges only GCRA quotas that start full.
    pub(crate) fn is_plain(&self) -> bool {
        self.accounts.iter().all(AccountRequest::is_plain)
    }

    /// Returns the share of a caller in the callers of a batch, which bounds the slots that it takes.
    pub(crate) fn weight(&self) -> usize {
        let slots = self.accounts.iter().flat_map(AccountRequest::slots);
        let weights = slots.map(|(_, (quota, ask))| Slots::weight(quota, *ask));
        weights.max().unwrap_or(1)
    }

    /// Returns the number of quotas in the request.
    pub(crate) fn quota_count(&self) -> usize {
        self.accounts.iter().map(|account| account.quotas.iter().flatten().count()).sum()
    }

    /// Returns the script that runs the operation.
    pub(crate) fn script_kind(&self, op: ScriptOp<'_>) -> ScriptKind {
        match op {
            ScriptOp::Take if self.is_plain() => ScriptKind::Plain,
            ScriptOp::Take => ScriptKind::Take,
            ScriptOp::Peek => ScriptKind::Peek,
            _ => ScriptKind::Adjust,
        }
    }

    /// Returns the letters of the algorithms that the call needs.
    pub(crate) fn letters(&self) -> impl Iterator<Item = u8> {
        self.accounts.iter().flat_map(|a| a.quotas.iter().flatten()).map(|(quota, _)| letter(quota))
    }

    /// Returns the keys and the arguments of the script.
    pub(crate) fn encode(&self, op: ScriptOp<'_>, slots: &SlotCall) -> (Vec<String>, Vec<Vec<u8>>) {
        let mut keys: Vec<_> = self.accounts.iter().map(|a| a.address.clone()).collect();
        let mut args = Vec::with_capacity(self.accounts.len() + 2);
        if !matches!(op, ScriptOp::Take | ScriptOp::Peek) {
            let nanos = match op {
                ScriptOp::Block(time) => time.min(LONGEST),
                ScriptOp::Undo(taken, _) => self.charged_at(taken),
                _ => 0,
            };
            args.push(op.name().into());
            args.push(EncodedPlan::default().nanos(nanos).0);
        }
        for (at, account) in self.accounts.iter().enumerate() {
            let change = |quota_index, ask| match op {
                ScriptOp::Take | ScriptOp::Peek => Some(Change::Charge),
                ScriptOp::Late(units) => Some(Change::Late(units)),
                ScriptOp::Refund(units) => Some(Change::Refund(units)),
                ScriptOp::Undo(taken, units) => {
                    let outcome = self.outcome(taken, at, quota_index);
                    let receipt = outcome.and_then(|it| Receipt::new(taken, it, ask, units));
                    receipt.map(Change::Undo)
                }
                ScriptOp::Reset | ScriptOp::Block(_) | ScriptOp::Unblock => Some(Change::None),
            };
            let index = |key| {
                keys.push(key);
                keys.len()
            };
            args.push(account.plan(change, |quota_index| slots.of(at, quota_index), index));
        }
        (keys, args)
    }

    /// Returns the outcome in `taken` for one quota of an account.
    fn outcome<'d>(
        &self,
        taken: &'d Decision,
        at: usize,
        quota_index: usize,
    ) -> Option<&'d Outcome> {
        let named =
            self.named.iter().find(|it| it.account == at && it.quota_index == quota_index)?;
        taken.outcomes().get(named.outcome)
    }

    /// Returns the instant of the charges of `taken`, by the clock of the server that made them.
    fn charged_at(&self, taken: &Decision) -> u64 {
        let first = self.named.first().and_then(|named| taken.outcomes().get(named.outcome));
        taken.charged_at().saturating_add_signed(first.map_or(0, Outcome::skew))
    }
}

impl AccountRequest {
    /// Returns the slot of the account on a cluster.
    pub(crate) fn slot(&self) -> u16 {
        slot(self.address.as_bytes())
    }

    /// Returns the plan of the account, with a change and slots for each quota. A quota without them is
    /// not part of the call. `key` returns the index of a key in the keys of the script.
    pub(crate) fn plan<'s>(
        &self,
        change: impl Fn(usize, Demand) -> Option<Change>,
        slots: impl Fn(usize) -> Option<(&'s Slots, &'s SlotTake)>,
        mut key: impl FnMut(String) -> usize,
    ) -> Vec<u8> {
        let plan = EncodedPlan::default().int::<1>(u64::from(!self.report_only));
        let mut plan = plan.int::<1>(self.quotas.len() as u64);
        for (index, demand) in self.quotas.iter().enumerate() {
            plan = match demand {
                Some((quota, ask)) if quota.is_concurrent() => match slots(index) {
                    Some((slots, take)) => {
                        let key = key(take.set.to_string());
                        plan.slots(quota, *ask, slots, take, key)
                    }
                    None => plan.int::<1>(b'.'.into()),
                },
                Some((quota, ask)) => match change(index, *ask) {
                    Some(change) => {
                        let log = letter(quota) == b'l';
                        let key = if log { key(Addresses::list(&self.address, index)) } else { 0 };
                        plan.quota(quota, *ask, change, key)
                    }
                    None => plan.int::<1>(b'.'.into()),
                },
                None => plan.int::<1>(b'.'.into()),
            };
        }
        plan.0
    }

    /// Returns `true` if all quotas are charged, use GCRA and start full. A report-only account is
    /// not plain.
    fn is_plain(&self) -> bool {
        let plain = |(quota, ask): &(Quota, Demand)| {
            letter(quota) == b'g' && quota.initial().is_none() && ask.cost > 0
        };
        let all = self.quotas.iter().all(|demand| demand.as_ref().is_some_and(plain));
        all && !self.quotas.is_empty() && !self.report_only
    }

    /// Returns the quotas of slots, with their indices.
    pub(crate) fn slots(&self) -> impl Iterator<Item = (usize, &(Quota, Demand))> {
        let all = self.quotas.iter().enumerate();
        let known = all.filter_map(|(index, demand)| Some((index, demand.as_ref()?)));
        known.filter(|(_, (quota, _))| quota.is_concurrent())
    }

    /// Returns `true` if one of the quotas is a rate.
    pub(crate) fn has_rates(&self) -> bool {
        self.quotas.iter().flatten().any(|(quota, _)| !quota.is_concurrent())
    }

    /// Returns `true` if the call charges one of the quotas.
    pub(crate) fn charges(&self) -> bool {
        self.quotas.iter().flatten().any(|(_, ask)| ask.cost > 0)
    }

    fn add(&mut self, quota_index: usize, quota: &Quota, ask: Demand) {
        if self.quotas.len() <= quota_index {
            self.quotas.resize(quota_index + 1, None);
        }
        match &mut self.quotas[quota_index] {
            Some((_, known)) => {
                known.cost = known.cost.saturating_add(ask.cost);
                known.headroom = known.headroom.max(ask.headroom);
                known.max_wait = known.max_wait.min(ask.max_wait);
            }
            new => *new = Some((*quota, ask)),
        }
    }
}

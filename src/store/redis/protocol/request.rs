//! A request: the accounts of a call, and the demands on them.

use std::hash::{Hash, Hasher};

use smallvec::SmallVec;

use super::{
    account::AccountRequest,
    addresses::Addresses,
    plan::{Change, EncodedPlan, LONGEST, Layout, SlotTake},
    quota::QuotaRequest,
    script::ScriptKind,
};
use crate::{
    algorithm::{Demand, Receipt},
    decision::{Decision, Outcome},
    name::RuleName,
    quota::Quota,
    store::Charge,
};

/// The accounts of a call. `named` are the charged quotas, in the order of the charges.
#[derive(Clone, Debug, Default)]
pub(crate) struct Request {
    /// The time of this process, only if a quota has calendar periods.
    pub(crate) now: u64,
    pub(crate) accounts: SmallVec<[AccountRequest; 1]>,
    pub(crate) named: SmallVec<[NamedQuota; 3]>,
}

/// The kind of a request. Only requests of one kind share calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum RequestKind {
    /// Charges only GCRA quotas that start full.
    Plain,
    /// Takes slots of one quota, alone or with one GCRA quota of the same account that starts full.
    Slots,
    #[default]
    Other,
}

/// One quota of one charge.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NamedQuota {
    pub(crate) account: usize,
    /// The index of the quota in its account.
    pub(crate) quota: usize,
    /// The index of the quota in its charge.
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
        // An address stands for a rule and a key.
        for account in &self.accounts {
            account.address.hash(state);
            account
                .quotas
                .iter()
                .for_each(|quota| quota.demand.cost.hash(state));
        }
    }
}

/// The operation on the accounts.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ScriptOp<'a> {
    Take,
    Peek,
    /// Charges units, even if they do not fit, or refunds units if the number is negative.
    Adjust(i64),
    /// Undoes the charges of this decision, or at most a number of units of each charge.
    Undo(&'a Decision, Option<u32>),
    Reset,
    /// Blocks the key for this number of nanoseconds.
    Block(u64),
    Unblock,
}

impl ScriptOp<'_> {
    /// Returns `true` if the operation charges the accounts if all demands fit.
    pub(crate) fn takes(self) -> bool {
        matches!(self, ScriptOp::Take)
    }

    /// Returns `true` if the operation decides if all demands fit.
    pub(crate) fn decides(self) -> bool {
        matches!(self, ScriptOp::Take | ScriptOp::Peek)
    }
}

impl Request {
    /// Creates a request. The costs of charges to one account are added.
    pub(crate) fn new(charges: &[Charge<'_>], addresses: &Addresses) -> Self {
        let mut request = Self::default();
        for charge in charges {
            let at = request.account(charge.rule, addresses.account(charge.rule, charge.key));
            request.accounts[at].join(charge);
            for (quota_index, quota) in charge.charged_quotas() {
                let quota_request = QuotaRequest::new(charge, quota_index, quota);
                let quota = request.accounts[at].add(quota_request);
                let outcome = request.named.len();
                request.named.push(NamedQuota {
                    account: at,
                    quota,
                    quota_index,
                    outcome,
                });
            }
        }
        request
    }

    /// Ends the waits for slots, for a request that does not wait for them.
    pub(crate) fn end_waits_for_slots(&mut self) {
        let quotas = self
            .accounts
            .iter_mut()
            .flat_map(|account| &mut account.quotas);
        for quota_request in quotas.filter(|quota_request| quota_request.quota.is_concurrent()) {
            quota_request.demand.max_wait = 0;
        }
    }

    /// Returns the index of an account. Adds the account if it is new.
    fn account(&mut self, rule: RuleName, address: String) -> usize {
        let mut known = self.accounts.iter();
        if let Some(index) = known.position(|known| known.address == address) {
            return index;
        }
        self.accounts.push(AccountRequest {
            rule,
            address,
            report_only: true,
            known: 0,
            quotas: SmallVec::new(),
        });
        self.accounts.len() - 1
    }

    /// Returns a request for the accounts at the indices for which `keep` returns `true`.
    pub(crate) fn subset(&self, keep: impl Fn(usize) -> bool) -> Self {
        let mut subset = Self {
            now: self.now,
            ..Self::default()
        };
        for (at, account) in self.accounts.iter().enumerate().filter(|(at, _)| keep(*at)) {
            let named = self.named.iter().filter(|named| named.account == at);
            let account_index = subset.accounts.len();
            subset.named.extend(named.map(|named| NamedQuota {
                account: account_index,
                ..*named
            }));
            subset.accounts.push(account.clone());
        }
        subset
    }

    /// Splits the request into one request per hash slot, because hash slots may be on different servers.
    pub(crate) fn split(&self, sharded: bool) -> Vec<Self> {
        let hash_slot = |account: &AccountRequest| account.hash_slot(sharded);
        let hash_slots: SmallVec<[_; 4]> = self.accounts.iter().map(hash_slot).collect();
        let mut distinct = hash_slots.clone();
        distinct.sort_unstable();
        distinct.dedup();
        distinct
            .iter()
            .map(|hash_slot| self.subset(|at| hash_slots[at] == *hash_slot))
            .collect()
    }

    /// Splits the request into one request per account.
    pub(crate) fn by_account(&self) -> Vec<Self> {
        (0..self.accounts.len())
            .map(|index| self.subset(|at| at == index))
            .collect()
    }

    /// Renumbers the outcomes from 0, so that this request has its own decision.
    pub(crate) fn standalone(mut self) -> Self {
        self.named
            .iter_mut()
            .enumerate()
            .for_each(|(at, named)| named.outcome = at);
        self
    }

    /// Returns a request for the accounts whose rates `taken` charged.
    pub(crate) fn charged(&self, taken: &Decision) -> Self {
        self.subset(|at| self.accounts[at].has_rates() && taken.charged(self.accounts[at].rule))
    }

    pub(crate) fn kind(&self) -> RequestKind {
        if self.accounts.iter().all(AccountRequest::is_plain) {
            return RequestKind::Plain;
        }
        match &*self.accounts {
            [account] if account.takes_slots_simply() => RequestKind::Slots,
            _ => RequestKind::Other,
        }
    }

    /// Returns the kind of the script for an operation.
    pub(crate) fn script(&self, op: ScriptOp<'_>) -> ScriptKind {
        match op {
            ScriptOp::Take => match self.kind() {
                RequestKind::Plain => ScriptKind::Plain,
                RequestKind::Slots => ScriptKind::Slots,
                RequestKind::Other => ScriptKind::Take,
            },
            ScriptOp::Peek => ScriptKind::Peek,
            _ => ScriptKind::Adjust,
        }
    }

    /// Returns the quotas of all accounts.
    pub(crate) fn quotas(&self) -> impl Iterator<Item = &Quota> {
        self.accounts
            .iter()
            .flat_map(|account| &account.quotas)
            .map(|quota_request| &quota_request.quota)
    }

    /// Returns the keys and the arguments of the script. `slots` returns those of a quota, by the indices
    /// of its account and of itself.
    pub(crate) fn encode<'s>(
        &self,
        op: ScriptOp<'_>,
        slots: impl Fn(usize, usize) -> Option<&'s SlotTake>,
    ) -> (Vec<String>, Vec<Vec<u8>>) {
        let mut keys: Vec<_> = self.accounts.iter().map(|a| a.address.clone()).collect();
        let mut args = Vec::with_capacity(self.accounts.len() + 2);
        if let Some((name, nanos)) = self.named_operation(op) {
            args.extend([name.into(), EncodedPlan::default().nanos(nanos).0]);
        }
        for (at, account) in self.accounts.iter().enumerate() {
            let change = |quota, demand| self.change(op, at, quota, demand);
            let index = |key| {
                keys.push(key);
                keys.len()
            };
            args.push(account.plan(self.now, change, |quota| slots(at, quota), index));
        }
        if matches!(self.script(op), ScriptKind::Plain | ScriptKind::Slots) {
            args.push(self.layout());
        }
        (keys, args)
    }

    /// Returns the layout of a call of this request alone, whose keys and plans are in the order of the
    /// accounts.
    fn layout(&self) -> Vec<u8> {
        let mut layout = Layout::default();
        layout.group(1, self.accounts.len());
        for number in 1..=self.accounts.len() {
            layout.account(number, number);
        }
        layout.0
    }

    /// Returns the name of the operation in `lua/settle.lua`, and its time in nanoseconds.
    fn named_operation(&self, op: ScriptOp<'_>) -> Option<(&'static str, u64)> {
        Some(match op {
            ScriptOp::Take | ScriptOp::Peek => return None,
            ScriptOp::Adjust(1..) => ("late", 0),
            ScriptOp::Adjust(_) => ("refund", 0),
            ScriptOp::Undo(taken, _) => ("undo", self.charged_at(taken)),
            ScriptOp::Reset => ("reset", 0),
            ScriptOp::Block(time) => ("block", time.min(LONGEST)),
            ScriptOp::Unblock => ("unblock", 0),
        })
    }

    /// Returns what the script does to a quota of an account, by their indices.
    fn change(
        &self,
        op: ScriptOp<'_>,
        account: usize,
        quota: usize,
        demand: Demand,
    ) -> Option<Change> {
        match op {
            ScriptOp::Take | ScriptOp::Peek => Some(Change::Charge),
            ScriptOp::Undo(taken, units) => {
                let mut all = self.named.iter();
                let named = all.find(|named| named.account == account && named.quota == quota)?;
                let outcome = taken.outcomes().get(named.outcome)?;
                Receipt::new(taken, outcome, demand, units).map(Change::Undo)
            }
            ScriptOp::Adjust(units) => Some(Change::Units(units.unsigned_abs())),
            ScriptOp::Reset | ScriptOp::Block(_) | ScriptOp::Unblock => Some(Change::Units(0)),
        }
    }

    /// Returns the instant of the charges of `taken`, by the clock of the server that made them.
    fn charged_at(&self, taken: &Decision) -> u64 {
        let first = self
            .named
            .first()
            .and_then(|named| taken.outcomes().get(named.outcome));
        taken
            .charged_at
            .saturating_add_signed(first.map_or(0, Outcome::skew))
    }
}

//! Requests to the server, and the replies: the format that the store and the server share. Each
//! account is sent once.
//!
//! An argument of a script is a plan: the quotas and demands of one account, in binary. Products are
//! computed in Rust, because numbers in Lua lose digits.

pub(crate) mod addresses;
mod algorithms;
mod reader;
pub(crate) mod reply;
pub(crate) mod script;

use std::{
    hash::{Hash, Hasher},
    sync::Arc,
};

use smallvec::SmallVec;

pub(crate) use self::algorithms::{all_letters, check, letter};
use self::{addresses::Addresses, script::ScriptKind};
use crate::{
    algorithm::{Demand, Receipt, gcra},
    decision::{Decision, Outcome},
    name::RuleName,
    quota::{Quota, QuotaAddress},
    store::{Charge, redis::cluster::slot},
};

/// The maximum number of slots that one request takes.
pub(crate) const MAX_COST: u32 = 256;

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

/// The account of one rule and key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AccountRequest {
    pub(crate) rule: RuleName,
    pub(crate) address: String,
    pub(crate) report_only: bool,
    /// The number of quotas of the rule. The states of those that are not part of the call are kept.
    pub(crate) known: usize,
    pub(crate) quotas: QuotaRequests,
}

/// The demand on one quota of an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QuotaRequest {
    /// The index of the quota in the first charge that names it.
    pub(crate) index: usize,
    pub(crate) quota: Quota,
    pub(crate) address: QuotaAddress,
    pub(crate) demand: Demand,
}

impl QuotaRequest {
    /// Returns `true` if the quota is charged, uses GCRA and starts full.
    fn is_plain(&self) -> bool {
        self.quota.is_gcra() && self.quota.initial().is_none() && self.demand.cost > 0
    }

    /// Returns `true` if the quota is of slots, and some are taken.
    fn takes_slots(&self) -> bool {
        self.quota.is_concurrent() && self.demand.cost > 0
    }
}

/// The quotas of an account. Each has an address of its own.
pub(crate) type QuotaRequests = SmallVec<[QuotaRequest; 1]>;

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
}

impl Request {
    /// Creates a request. The costs of charges to one account are added.
    pub(crate) fn new(charges: &[Charge<'_>], addresses: &Addresses) -> Self {
        let mut request = Self::default();
        for charge in charges {
            let at = request.account(charge.rule, addresses.account(charge.rule, charge.key));
            let account = &mut request.accounts[at];
            // Without quotas and cost, not even a block holds.
            let reads = charge.cost == 0 && charge.charged_quotas().next().is_none();
            account.report_only &= charge.report_only || reads;
            // A charge without quotas, as of a block, does not know those of its rule.
            let known = if charge.quotas.is_empty() {
                MAX_ABSENT
            } else {
                charge.quotas.len()
            };
            account.known = account.known.max(known);
            let waits = u64::from(charge.queues());
            for (quota_index, quota) in charge.charged_quotas() {
                let mut ask = charge.demand();
                if quota.is_concurrent() {
                    // Requests that wait for slots for different times share a call.
                    ask.max_wait = waits;
                }
                let added = account.add(QuotaRequest {
                    index: quota_index,
                    quota: *quota,
                    address: QuotaAddress::at(charge.quotas, quota_index),
                    demand: ask,
                });
                let outcome = request.named.len();
                request.named.push(NamedQuota {
                    account: at,
                    quota: added,
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
        for part in quotas.filter(|part| part.quota.is_concurrent()) {
            part.demand.max_wait = 0;
        }
    }

    /// Returns the index of an account. Adds the account if it is new.
    fn account(&mut self, rule: RuleName, address: String) -> usize {
        let known = self
            .accounts
            .iter()
            .position(|known| known.address == address);
        known.unwrap_or_else(|| {
            self.accounts.push(AccountRequest {
                rule,
                address,
                report_only: true,
                known: 0,
                quotas: SmallVec::new(),
            });
            self.accounts.len() - 1
        })
    }

    /// Returns a request for the accounts at the indices for which `keep` returns `true`.
    pub(crate) fn part(&self, keep: impl Fn(usize) -> bool) -> Self {
        let mut part = Self {
            now: self.now,
            ..Self::default()
        };
        for (at, account) in self.accounts.iter().enumerate().filter(|(at, _)| keep(*at)) {
            let named = self.named.iter().filter(|named| named.account == at);
            let account_index = part.accounts.len();
            part.named.extend(named.map(|named| NamedQuota {
                account: account_index,
                ..*named
            }));
            part.accounts.push(account.clone());
        }
        part
    }

    /// Splits the request into one request per slot, because slots may be on different servers.
    pub(crate) fn split(&self, sharded: bool) -> Vec<Self> {
        let slot = |account: &AccountRequest| account.slot(sharded);
        let slots: SmallVec<[_; 4]> = self.accounts.iter().map(slot).collect();
        let mut distinct = slots.clone();
        distinct.sort_unstable();
        distinct.dedup();
        distinct
            .iter()
            .map(|slot| self.part(|at| slots[at] == *slot))
            .collect()
    }

    /// Splits the request into one request per account.
    pub(crate) fn by_account(&self) -> Vec<Self> {
        (0..self.accounts.len())
            .map(|index| self.part(|at| at == index))
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
        self.part(|at| self.accounts[at].has_rates() && taken.charged(self.accounts[at].rule))
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
            ScriptOp::Adjust(_)
            | ScriptOp::Undo(..)
            | ScriptOp::Reset
            | ScriptOp::Block(_)
            | ScriptOp::Unblock => ScriptKind::Adjust,
        }
    }

    /// Returns the quotas of all accounts.
    pub(crate) fn quotas(&self) -> impl Iterator<Item = &Quota> {
        self.accounts
            .iter()
            .flat_map(|account| &account.quotas)
            .map(|part| &part.quota)
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
            let change = |quota, ask| self.change(op, at, quota, ask);
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
        ask: Demand,
    ) -> Option<Change> {
        match op {
            ScriptOp::Take | ScriptOp::Peek => Some(Change::Charge),
            ScriptOp::Undo(taken, units) => {
                let mut all = self.named.iter();
                let named = all.find(|named| named.account == account && named.quota == quota)?;
                let outcome = taken.outcomes().get(named.outcome)?;
                Receipt::new(taken, outcome, ask, units).map(Change::Undo)
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

impl AccountRequest {
    /// Returns the slot of the account on a cluster. A store that is not `sharded` has one slot.
    pub(crate) fn slot(&self, sharded: bool) -> u16 {
        if sharded {
            slot(self.address.as_bytes())
        } else {
            0
        }
    }

    /// Returns the plan of the account, with a change and slots for each quota. A quota without them is
    /// not part of the call. `key` returns the index of a key in the keys of the script. Calendar
    /// periods are those around `now`.
    pub(crate) fn plan<'s>(
        &self,
        now: u64,
        change: impl Fn(usize, Demand) -> Option<Change>,
        slots: impl Fn(usize) -> Option<&'s SlotTake>,
        mut key: impl FnMut(String) -> usize,
    ) -> Vec<u8> {
        let mut plan = EncodedPlan::default();
        let mut count = 0;
        for (index, part) in self.quotas.iter().enumerate() {
            let QuotaRequest { quota, demand, .. } = part;
            let change = if quota.is_concurrent() {
                None
            } else {
                change(index, *demand)
            };
            plan = match (change, slots(index)) {
                (Some(change), _) => {
                    // The list is in the cluster slot of its account.
                    let has_list = algorithms::has_list(quota);
                    let key = if has_list {
                        key(self.part_key(":", part.address))
                    } else {
                        0
                    };
                    let plan = plan.address(quota, part.address);
                    let plan = plan.quota(quota, *demand, change, key);
                    let edges = quota.calendar_edges(now).into_iter().flatten();
                    edges.fold(plan, |plan, edge| plan.int::<7>(edge / 1_000))
                }
                (None, Some(take)) => {
                    let set = key(take.set.to_string());
                    let mark = if take.waits > 0 {
                        key(format!("{}w", take.set))
                    } else {
                        0
                    };
                    let plan = plan.address(quota, part.address);
                    plan.slots(quota, *demand, take, [set, mark])
                }
                (None, None) => continue,
            };
            count += 1;
        }
        let absent = self.known.saturating_sub(count).min(MAX_ABSENT);
        let head = [u64::from(!self.report_only), count as u64, absent as u64].into_iter();
        let mut bytes = head.fold(EncodedPlan::default(), EncodedPlan::int::<1>).0;
        bytes.extend(plan.0);
        bytes
    }

    /// Returns the key beside the account that belongs to a quota.
    pub(crate) fn part_key(&self, separator: &str, address: QuotaAddress) -> String {
        format!("{}{separator}{:08x}", self.address, address.number())
    }

    /// Returns `true` if an allowed request charges the account.
    pub(crate) fn is_certain(&self) -> bool {
        !self.report_only
    }

    /// Returns `true` if all quotas are charged, use GCRA and start full. A report-only account is
    /// not plain.
    pub(crate) fn is_plain(&self) -> bool {
        !self.report_only
            && !self.quotas.is_empty()
            && self.quotas.iter().all(QuotaRequest::is_plain)
    }

    /// Returns `true` if the account has one quota of slots, and at most one other, which is plain.
    fn takes_slots_simply(&self) -> bool {
        let simple = match &*self.quotas {
            [slots] => slots.takes_slots(),
            [slots, rate] if slots.takes_slots() => rate.is_plain(),
            [rate, slots] => rate.is_plain() && slots.takes_slots(),
            _ => false,
        };
        simple && !self.report_only
    }

    /// Returns the quotas of slots, with their indices in the account.
    pub(crate) fn slots(&self) -> impl Iterator<Item = (usize, &QuotaRequest)> {
        let all = self.quotas.iter().enumerate();
        all.filter(|(_, part)| part.quota.is_concurrent())
    }

    /// Returns `true` if one of the quotas is a rate.
    pub(crate) fn has_rates(&self) -> bool {
        self.quotas.iter().any(|part| !part.quota.is_concurrent())
    }

    /// Returns `true` if a block of the key denies the call.
    pub(crate) fn may_be_blocked(&self) -> bool {
        !self.report_only && (self.quotas.is_empty() || self.charges())
    }

    /// Returns `true` if the call charges one of the quotas.
    pub(crate) fn charges(&self) -> bool {
        self.quotas.iter().any(|part| part.demand.cost > 0)
    }

    /// Adds a quota, and returns its index. Demands on one account are added.
    fn add(&mut self, part: QuotaRequest) -> usize {
        let known = self
            .quotas
            .iter()
            .position(|known| known.address == part.address);
        let Some(index) = known else {
            self.quotas.push(part);
            return self.quotas.len() - 1;
        };
        let demand = &mut self.quotas[index].demand;
        demand.cost = demand.cost.saturating_add(part.demand.cost);
        demand.headroom = demand.headroom.max(part.demand.headroom);
        demand.max_wait = demand.max_wait.min(part.demand.max_wait);
        index
    }
}

/// The slots of one quota that a call takes.
pub(crate) struct SlotTake {
    /// The key of the sorted set.
    pub(crate) set: Arc<str>,
    /// The first half of the members of all slots of this process.
    pub(crate) store: u64,
    /// The number of the first slot of the first caller.
    pub(crate) first: u64,
    /// The slots that each caller takes.
    pub(crate) cost: u32,
    /// The microseconds for which a slot counts, unless it is renewed.
    pub(crate) ttl_micros: u64,
    /// The slots of the account that this process holds.
    pub(crate) own: u64,
    /// The milliseconds for which the mark of a denied request counts, or 0 if it does not wait.
    pub(crate) waits: u64,
    /// The slots that the call frees: the first number of each request, and how many.
    pub(crate) freed: Vec<(u64, u32)>,
}

/// The argument that says which groups of equal requests a call has, as `lua/groups.lua` reads it.
#[derive(Debug, Default)]
pub(crate) struct Layout(pub(crate) Vec<u8>);

impl Layout {
    /// Appends a group, whose accounts follow.
    pub(crate) fn group(&mut self, callers: usize, accounts: usize) {
        self.number(callers);
        self.number(accounts);
    }

    /// Appends an account by the numbers of its key and its plan, which start at 1.
    pub(crate) fn account(&mut self, key: usize, plan: usize) {
        self.number(key);
        self.number(plan);
    }

    fn number(&mut self, number: usize) {
        // A call is small enough that all numbers fit.
        let number = u16::try_from(number).unwrap_or(u16::MAX);
        self.0.extend_from_slice(&number.to_le_bytes());
    }
}

/// The most quotas of a rule that are not part of a call.
const MAX_ABSENT: usize = 255;
/// The longest time for which accounts are kept, in nanoseconds: ten years.
pub(crate) const LONGEST: u64 = 10 * 365 * 86_400 * 1_000_000_000;
/// The maximum units of an account.
const MOST_UNITS: u64 = 1 << 39;

/// The bytes of a plan. Its numbers are little-endian.
#[derive(Debug, Default)]
pub(crate) struct EncodedPlan(pub(crate) Vec<u8>);

/// A change of an account.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Change {
    /// Charges the demand if it fits.
    Charge,
    /// Charges units, even if they do not fit, or refunds units. No units for a reset or a block.
    Units(u64),
    /// Undoes a charge, except for refilled units.
    Undo(Receipt),
}

impl EncodedPlan {
    /// Appends the lowest `N` bytes.
    pub(crate) fn int<const N: usize>(mut self, number: u64) -> Self {
        self.0.extend_from_slice(&number.to_le_bytes()[..N]);
        self
    }

    /// Appends a time in microseconds, then the remaining nanoseconds.
    pub(crate) fn nanos(self, nanos: u64) -> Self {
        self.int::<7>(nanos / 1_000).int::<2>(nanos % 1_000)
    }

    /// Appends the letter of the algorithm and the address of a quota.
    fn address(self, quota: &Quota, address: QuotaAddress) -> Self {
        self.int::<1>(letter(quota).into())
            .int::<4>(address.number().into())
    }

    /// Appends one quota with its demand and its change. `key` is the index of the list of a
    /// sliding log in the keys of the script.
    pub(crate) fn quota(self, quota: &Quota, ask: Demand, change: Change, key: usize) -> Self {
        let capacity = u64::from(quota.limit()) + u64::from(quota.soft());
        let possible = ask.need() <= capacity;
        let flag = match change {
            Change::Undo(receipt) => !receipt.queued,
            _ => possible,
        };
        let plan = self
            .int::<1>(u64::from(ask.cost > 0))
            .int::<1>(u64::from(flag));
        if quota.is_gcra() {
            return plan.gcra(quota, ask, change, possible);
        }
        let (cost, need, end) = match change {
            Change::Charge => (ask.cost.into(), ask.need(), ask.max_wait),
            Change::Units(units) => (units, ask.need(), 0),
            Change::Undo(Receipt {
                cost, units, end, ..
            }) => (units.into(), cost.into(), end),
        };
        let plan = plan.int::<5>(cost.min(MOST_UNITS)).int::<5>(need);
        plan.int::<5>(quota.late_limit()).counted(quota, end, key)
    }

    /// Appends a quota of slots with its demand. `key` is the index of the sorted set in the keys of
    /// the script.
    pub(crate) fn slots(
        self,
        quota: &Quota,
        ask: Demand,
        take: &SlotTake,
        keys: [usize; 2],
    ) -> Self {
        let limit = u64::from(quota.limit()) + u64::from(quota.soft());
        let possible = ask.need() <= limit && ask.cost <= MAX_COST;
        let need = if possible { ask.need() } else { MOST_UNITS };
        let plan = self
            .int::<1>(u64::from(ask.cost > 0))
            .int::<1>(u64::from(possible));
        let plan = plan
            .int::<2>(take.cost.into())
            .int::<5>(need)
            .int::<5>(limit);
        let plan = keys
            .into_iter()
            .fold(plan, |plan, key| plan.int::<2>(key as u64));
        let plan = plan.int::<2>(take.waits).int::<5>(take.own.min(MOST_UNITS));
        let plan = plan.int::<7>(take.ttl_micros).int::<8>(take.store);
        let plan = plan
            .int::<8>(take.first)
            .int::<2>(take.freed.len() as u64 * 10);
        plan.slot_list(take.freed.iter().copied())
    }

    /// Appends the slots of requests: the first number and how many.
    pub(crate) fn slot_list(self, requests: impl Iterator<Item = (u64, u32)>) -> Self {
        requests.fold(self, |plan, (first, units)| {
            plan.int::<8>(first).int::<2>(units.into())
        })
    }

    fn gcra(self, quota: &Quota, ask: Demand, change: Change, possible: bool) -> Self {
        let interval = quota.interval_nanos();
        let time_of = |units: u64| interval.saturating_mul(units).min(LONGEST);
        let limit = u64::from(quota.limit());
        let plan = match change {
            Change::Charge if possible => {
                let slack = match quota.soft() {
                    0 => ask.max_wait,
                    soft => time_of(soft.into()),
                };
                let room = time_of(limit) + slack - time_of(ask.need());
                self.nanos(time_of(ask.cost.into())).nanos(room)
            }
            // The room is negative, so the demand never fits.
            Change::Charge => self
                .nanos(time_of(ask.cost.into()))
                .int::<7>(u64::MAX)
                .int::<2>(0),
            // Without queueing, no receipt ends later than this.
            Change::Units(0) => self
                .nanos(0)
                .nanos(time_of(limit + u64::from(quota.soft()))),
            Change::Units(units) => self
                .nanos(time_of(units))
                .nanos(time_of(quota.late_limit())),
            Change::Undo(Receipt { units, end, .. }) => {
                self.nanos(time_of(units.into())).nanos(end)
            }
        };
        plan.nanos(gcra::retention(quota))
            .nanos(gcra::initial_reset(quota))
    }
}

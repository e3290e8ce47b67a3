//! The charges of a call as columns for SQL, and the decision on them.

use std::time::Duration;

use tower_sluice::{
    Algorithm, Decision, Quota,
    decision::{Outcome, Source},
    rule::RuleName,
    store::Charge,
};

/// The charges of a call.
pub(crate) struct Call {
    parts: Vec<Part>,
    /// The accounts in ascending order, each once.
    pub(crate) accounts: Vec<Account>,
    blocks: Vec<Block>,
}

/// A quota of a charge.
struct Part {
    rule: RuleName,
    quota_index: usize,
    quota: Quota,
    cost: u32,
    headroom: u32,
    /// The units or nanoseconds of the quota and its soft units.
    most: i64,
    /// The index of the account.
    account: usize,
}

/// A row of the table, with what the call wants of it: units of a window, or nanoseconds under GCRA.
pub(crate) struct Account {
    pub(crate) name: Vec<u8>,
    /// The letter of the algorithm.
    pub(crate) kind: &'static str,
    pub(crate) period: i64,
    pub(crate) cost: i64,
    /// The cost, and what must be left beside it.
    pub(crate) need: i64,
    pub(crate) most: i64,
    pub(crate) late_most: i64,
}

/// The row that says until when a key is denied.
struct Block {
    rule: RuleName,
    limit: u32,
    name: Vec<u8>,
}

/// An account before a decision.
pub(crate) struct State {
    pub(crate) start: i64,
    pub(crate) used: i64,
}

impl Call {
    pub(crate) fn new(prefix: &str, charges: &[Charge<'_>]) -> Self {
        let mut accounts: Vec<Account> = Vec::new();
        for charge in charges {
            for (quota_index, quota) in charge.charged_quotas() {
                accounts.push(Account::new(prefix, charge, quota_index, quota));
            }
        }
        accounts.sort_by(|one, other| one.name.cmp(&other.name));
        accounts.dedup_by(|again, first| first.merge(again));
        let mut call = Self { parts: Vec::new(), accounts, blocks: Vec::new() };
        for charge in charges {
            call.add_parts(prefix, charge);
            if charge.cost > 0 {
                let limit = charge.quotas.first().map_or(1, Quota::limit);
                call.blocks.push(Block {
                    rule: charge.rule,
                    limit,
                    name: block_name(prefix, charge),
                });
            }
        }
        call
    }

    fn add_parts(&mut self, prefix: &str, charge: &Charge<'_>) {
        for (quota_index, quota) in charge.charged_quotas() {
            let name = account_name(prefix, charge, quota_index);
            let account = self.accounts.partition_point(|account| account.name < name);
            self.parts.push(Part {
                rule: charge.rule,
                quota_index,
                quota: *quota,
                cost: charge.cost,
                headroom: charge.headroom,
                most: most(quota),
                account,
            });
        }
    }

    /// Returns a value of each account.
    pub(crate) fn column<'a, T>(&'a self, value: impl Fn(&'a Account) -> T) -> Vec<T> {
        self.accounts.iter().map(value).collect()
    }

    pub(crate) fn block_names(&self) -> Vec<&[u8]> {
        self.blocks.iter().map(|block| &*block.name).collect()
    }

    pub(crate) fn is_look(&self) -> bool {
        self.accounts.iter().all(|account| account.cost == 0)
    }

    /// Returns a number of units of each account, which may be negative.
    pub(crate) fn times(&self, units: i64) -> Vec<i64> {
        self.column(|account| account.cost.saturating_mul(units).clamp(-MOST, MOST))
    }

    /// Returns the units of each account to give back, at most `units` of a charge. Negative.
    pub(crate) fn returns(&self, units: Option<u32>) -> Vec<i64> {
        let mut returns = vec![0; self.accounts.len()];
        for part in &self.parts {
            let units = units.map_or(part.cost, |units| units.min(part.cost));
            returns[part.account] -= scaled(&part.quota, units.into());
        }
        returns
    }

    /// Returns the instant at which each account would have been full after the decision `taken`.
    pub(crate) fn held_until(&self, taken: &Decision) -> Vec<i64> {
        let mut held_until = vec![0; self.accounts.len()];
        let mut outcomes = taken.outcomes().iter();
        for part in &self.parts {
            // The charges may be some of the decision, in its order.
            let is_own = |outcome: &&Outcome| {
                outcome.rule() == part.rule && outcome.quota_index() == part.quota_index
            };
            let Some(outcome) = outcomes.find(is_own) else {
                break;
            };
            held_until[part.account] = nanos(taken.charged_at() + outcome.reset_after());
        }
        held_until
    }

    /// Returns the denial by the longest block, if a key is blocked.
    pub(crate) fn blocked(&self, blocked_until: &[i64], instant: i64) -> Option<Decision> {
        let blocks = self.blocks.iter().zip(blocked_until);
        let (block, until) = blocks.max_by_key(|(_, until)| **until)?;
        if *until <= instant {
            return None;
        }
        let left = time(*until - instant);
        let outcome = Outcome::full(block.rule, 0, block.limit)
            .with_remaining(0)
            .with_reset_after(left)
            .with_next_after(left)
            .with_retry_after(Some(left));
        Some(Decision::deny().with_outcome(outcome).with_blocked().with_source(SOURCE))
    }

    /// Returns the decision on accounts that were in these states.
    pub(crate) fn decision(&self, is_allowed: bool, instant: i64, states: &[State]) -> Decision {
        let mut decision = if is_allowed { Decision::allow() } else { Decision::deny() };
        decision = decision.with_source(SOURCE).with_charged_at(time(instant));
        for part in &self.parts {
            let account = &self.accounts[part.account];
            let before = &states[part.account];
            let charged = if is_allowed { account.cost } else { 0 };
            let used = before.used + charged;
            let wait = account.wait(part.most, before, instant);
            let outcome = part.outcome(used, account.end(before) - instant);
            decision = decision.with_outcome(outcome.with_retry_after(wait));
            let plain = scaled(&part.quota, part.quota.limit().into());
            let headroom = scaled(&part.quota, part.headroom.into());
            if is_allowed && part.cost > 0 && used + headroom > plain {
                decision = decision.with_overage();
            }
        }
        decision
    }
}

const SOURCE: Source = Source::Other("postgres");
/// More than an account can hold, twenty years, and so small that sums fit into a bigint.
pub(crate) const MOST: i64 = i64::MAX / 8;

impl Part {
    /// Returns the outcome of an account whose window ends in the time `window_left`.
    fn outcome(&self, used: i64, window_left: i64) -> Outcome {
        let limit = i64::from(self.quota.limit());
        let unit = scaled(&self.quota, 1);
        let remaining = (limit * unit - used).max(0) / unit;
        let is_gcra = self.quota.algorithm() == Algorithm::Gcra;
        let reset = if is_gcra || used == 0 { used } else { window_left };
        let next = if is_gcra && remaining < limit {
            used - (limit - remaining - 1) * unit
        } else if remaining < limit {
            window_left
        } else {
            0
        };
        Outcome::full(self.rule, self.quota_index, self.quota.limit())
            .with_remaining(u32::try_from(remaining).unwrap_or(u32::MAX))
            .with_reset_after(time(reset))
            .with_next_after(time(next))
    }
}

impl Account {
    fn new(prefix: &str, charge: &Charge<'_>, quota_index: usize, quota: &Quota) -> Self {
        let need = match charge.cost {
            0 => 0,
            cost => i64::from(cost) + i64::from(charge.headroom),
        };
        let limit = i64::from(quota.limit());
        let max_debt = i64::from(quota.max_debt().unwrap_or_else(|| quota.limit()));
        Self {
            name: account_name(prefix, charge, quota_index),
            kind: kind(quota),
            period: nanos(quota.period()),
            cost: scaled(quota, charge.cost.into()),
            need: scaled(quota, need),
            most: most(quota),
            late_most: scaled(quota, limit + max_debt),
        }
    }

    /// Adds what another charge wants of the same account.
    fn merge(&mut self, other: &Self) -> bool {
        if self.name != other.name {
            return false;
        }
        let headroom = (self.need - self.cost).max(other.need - other.cost);
        self.cost = MOST.min(self.cost + other.cost);
        self.need = self.cost + headroom;
        self.most = self.most.min(other.most);
        true
    }

    /// Returns the wait until a quota of at most `most` admits the need, or `None` if it never does.
    fn wait(&self, most: i64, state: &State, instant: i64) -> Option<Duration> {
        let over = state.used + self.need - most;
        if self.need == 0 || over <= 0 {
            return Some(Duration::ZERO);
        }
        if self.need > most {
            return None;
        }
        Some(time(if self.kind == "g" { over } else { self.end(state) - instant }))
    }

    /// Returns the end of the window.
    fn end(&self, state: &State) -> i64 {
        state.start + self.period
    }
}

/// Returns the name of an account: the rule, the key, and what the quota counts. Limits are no part of
/// it. Quotas of a rule that count the same have an account each.
fn account_name(prefix: &str, charge: &Charge<'_>, quota_index: usize) -> Vec<u8> {
    let quotas = &charge.quotas[..=quota_index];
    let counted = counted(&quotas[quota_index]);
    let number = quotas.iter().filter(|quota| self::counted(quota) == counted).count();
    let head = format!("{prefix}\0{}\0{number}{counted}\0", charge.rule);
    [head.as_bytes(), &charge.key.to_bytes()].concat()
}

/// Returns what a quota counts.
fn counted(quota: &Quota) -> String {
    let unit = quota.unit().filter(|unit| *unit != "requests").unwrap_or_default();
    format!("{}{}{unit}", kind(quota), nanos(quota.period()))
}

/// Returns the name of the row that blocks the key of a charge. No account has it, because no rule has an
/// empty name.
pub(crate) fn block_name(prefix: &str, charge: &Charge<'_>) -> Vec<u8> {
    let head = format!("{prefix}\0\0{}\0", charge.rule);
    [head.as_bytes(), &charge.key.to_bytes()].concat()
}

fn kind(quota: &Quota) -> &'static str {
    match quota.algorithm() {
        Algorithm::Gcra => "g",
        Algorithm::AnchoredWindow => "a",
        _ => "f",
    }
}

/// Returns units as a window counts them, or as nanoseconds under GCRA.
fn scaled(quota: &Quota, units: i64) -> i64 {
    match quota.algorithm() {
        Algorithm::Gcra => units.saturating_mul(nanos(quota.interval())).min(MOST),
        _ => units,
    }
}

/// Returns what a quota and its soft units admit.
fn most(quota: &Quota) -> i64 {
    scaled(quota, i64::from(quota.limit()) + i64::from(quota.soft()))
}

pub(crate) fn nanos(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}

fn time(nanos: i64) -> Duration {
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(0))
}

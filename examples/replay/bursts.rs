//! A table of bursts, and the keys that each would have limited.

use std::collections::HashSet;

use serde::Serialize;
use tower_sluice::{
    ClientIp, Key, KeyExtractor, Quota,
    fingerprint::{Fingerprint, FingerprintKey},
};

use crate::{
    Rules, checked,
    least::{SmallestBurst, with_limit},
    rule::{AnyKey, RuleFlag},
    simulate::{Call, Simulator},
};

/// The maximum number of bursts, of all tables together.
const BURSTS: usize = 8;
/// The maximum number of keys that a row counts.
const KEYS: usize = 65_536;

/// Simulators of one quota with several bursts.
pub(crate) struct Bursts {
    rule: String,
    given: String,
    extractor: AnyKey,
    secret: FingerprintKey,
    rows: Vec<Row>,
}

struct Row {
    quota: Quota,
    simulator: Simulator<Rules>,
    requests: u64,
    keys: HashSet<Fingerprint>,
}

/// The table of one quota.
#[derive(Serialize)]
pub(crate) struct BurstTable {
    pub(crate) rule: String,
    pub(crate) given: String,
    pub(crate) rows: Vec<BurstRow>,
}

/// The requests and the keys that a quota would have limited.
#[derive(Serialize)]
pub(crate) struct BurstRow {
    pub(crate) quota: String,
    pub(crate) limit: u32,
    pub(crate) requests: u64,
    pub(crate) keys: usize,
    /// Set if more keys were limited than are counted.
    pub(crate) more: bool,
}

impl Bursts {
    /// Creates the tables of all quotas that limit a request. `found` is in the order of the rules
    /// and of their quotas.
    pub(crate) fn of(
        rules: &[RuleFlag],
        found: &[SmallestBurst],
        client: Option<&ClientIp>,
        capacity: usize,
    ) -> Result<Vec<Self>, String> {
        let flags = rules.iter().flat_map(|rule| rule.quotas.iter().map(move |_| rule));
        let limits = |least: &SmallestBurst| ladder(least.given.limit(), least.quota()?.limit());
        let found =
            flags.zip(found).filter_map(|(flag, least)| Some((flag, least, limits(least)?)));
        let found: Vec<_> = found.collect();
        let most = (BURSTS / found.len().max(1)).max(2);
        let mut tables = Vec::new();
        for (flag, least, limits) in found {
            let rows =
                thin(&limits, most).into_iter().filter_map(|limit| with_limit(least.given, limit));
            let row = |quota| {
                let mut alone = flag.clone();
                (alone.quotas, alone.report_only) = (vec![quota], false);
                let simulator = Simulator::new(checked(&[alone], client)?, capacity);
                Ok(Row { quota, simulator, requests: 0, keys: HashSet::new() })
            };
            tables.push(Self {
                rule: flag.name.to_string(),
                given: least.given.to_string(),
                extractor: flag.key.extractor(client)?,
                secret: FingerprintKey::random(),
                rows: rows.map(row).collect::<Result<_, String>>()?,
            });
        }
        Ok(tables)
    }

    pub(crate) fn note(&mut self, call: &Call) {
        for row in &mut self.rows {
            if !row.simulator.decide(call).is_limited() {
                continue;
            }
            row.requests += 1;
            let key: Option<Key> = self.extractor.extract(&call.head()).ok().flatten();
            if let Some(key) = key.filter(|_| row.keys.len() <= KEYS) {
                row.keys.insert(key.fingerprint(&self.secret));
            }
        }
    }

    pub(crate) fn table(self) -> BurstTable {
        let row = |row: Row| BurstRow {
            quota: row.quota.to_string(),
            limit: row.quota.limit(),
            requests: row.requests,
            keys: row.keys.len().min(KEYS),
            more: row.keys.len() > KEYS,
        };
        let rows = self.rows.into_iter().map(row).collect();
        BurstTable { rule: self.rule, given: self.given, rows }
    }
}

/// Returns the limits from the given one to the smallest that limits nothing, doubled each time.
fn ladder(given: u32, least: u32) -> Option<Vec<u32>> {
    let doubled = |limit: &u32| limit.checked_mul(2).filter(|limit| *limit < least);
    let mut limits: Vec<_> = std::iter::successors(Some(given.max(1)), doubled).collect();
    limits.push(least);
    (given < least).then_some(limits)
}

/// Keeps the first and the last limit, and at most `most` in all.
fn thin(limits: &[u32], most: usize) -> Vec<u32> {
    let (last, rest) = limits.split_last().unwrap_or((&0, &[]));
    let step = rest.len().div_ceil(most.saturating_sub(1).max(1)).max(1);
    rest.iter().step_by(step).chain([last]).copied().collect()
}

//! The latest denials and the most denied keys of each rule.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::SystemTime,
};

use serde::Serialize;

use super::managed::millis;
use crate::{
    decision::{Decision, Outcome},
    fingerprint::Fingerprint,
    key::Key,
    name::RuleName,
    observe::{DecisionEvent, OnDecision, Verdict},
};

/// The number of denials and of keys to keep per rule.
const MOST: usize = 50;

/// Hook that records the latest denials and the most denied keys of each rule. Clones share the
/// records.
#[derive(Clone)]
pub(super) struct DenialLog(Arc<[RuleRecord]>);

/// The denials of one rule.
pub(super) struct RuleRecord {
    name: RuleName,
    pub(super) denied: AtomicU64,
    pub(super) reported: AtomicU64,
    listed: Mutex<Listed>,
}

/// The latest denials, newest first, and the most denied keys.
///
/// The keys are counted by the Space-Saving algorithm (Metwally, Agrawal and El Abbadi, 2005): a
/// new key replaces the least denied one, so a key with more than 1/50 of all denials is listed.
#[derive(Default)]
pub(super) struct Listed {
    pub(super) last: VecDeque<Denial>,
    pub(super) top: Vec<DeniedKey>,
}

/// A denied request, or a request that a report-only rule would have denied.
#[derive(Serialize)]
pub(super) struct Denial {
    at_ms: u64,
    key: Option<Fingerprint>,
    result: &'static str,
    /// `None` if waiting does not help.
    retry_after_ms: Option<u64>,
}

/// A key and its denials.
pub(super) struct DeniedKey {
    pub(super) fingerprint: Fingerprint,
    pub(super) key: Key,
    /// The denials since the key entered the list.
    pub(super) denied: u64,
    /// The denials of the keys that this key replaced.
    replaced: u64,
    /// The end of a block that the admin router made. Until then, the key stays listed.
    pub(super) blocked_until: Option<SystemTime>,
}

impl OnDecision for DenialLog {
    fn on_decision(&self, event: &DecisionEvent<'_>) {
        let Some(decision) = event.decision() else { return };
        event.each_rule(self.0.iter().map(|rule| rule.name), |rule, verdict| {
            if let Some(rule) = self.find(rule) {
                rule.record(verdict, decision, event);
            }
        });
    }
}

impl DenialLog {
    pub(super) fn new(rules: impl Iterator<Item = RuleName>) -> Self {
        let rule = |name| RuleRecord {
            name,
            denied: AtomicU64::new(0),
            reported: AtomicU64::new(0),
            listed: Mutex::default(),
        };
        Self(rules.map(rule).collect())
    }

    pub(super) fn find(&self, name: RuleName) -> Option<&RuleRecord> {
        self.0.iter().find(|rule| rule.name == name)
    }
}

impl RuleRecord {
    pub(super) fn listed(&self) -> MutexGuard<'_, Listed> {
        self.listed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records until when a listed key is blocked.
    pub(super) fn set_blocked(&self, key: Fingerprint, until: Option<SystemTime>) {
        if let Some(listed) = self.listed().find(key) {
            listed.blocked_until = until;
        }
    }

    /// Records a denial without blocking.
    ///
    /// Under contention, a denial is counted but not listed.
    fn record(&self, verdict: Verdict, decision: &Decision, event: &DecisionEvent<'_>) {
        let count = match verdict {
            Verdict::Allowed | Verdict::FailedOpen | Verdict::FallbackAllowed => return,
            Verdict::ShadowLimited => &self.reported,
            Verdict::Limited | Verdict::FailedClosed | Verdict::FallbackLimited => &self.denied,
        };
        count.fetch_add(1, Relaxed);
        // The wait for this rule, or `None` if waiting does not help.
        let outcomes = decision.outcomes().iter();
        let denied = outcomes.filter(|it| it.rule() == self.name && it.is_denied());
        let waits = denied.map(Outcome::expected_wait);
        let retry_after = waits.reduce(|a, b| Some(a?.max(b?))).flatten();
        let key = decision.outcomes().first().and_then(|_| event.key(self.name));
        let now = SystemTime::now();
        let Ok(mut listed) = self.listed.try_lock() else { return };
        if let Some((key, fingerprint)) = key {
            listed.count(key, fingerprint, now);
        }
        listed.last.truncate(MOST - 1);
        listed.last.push_front(Denial {
            at_ms: millis(now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()),
            key: key.map(|(_, fingerprint)| fingerprint),
            result: verdict.as_str(),
            retry_after_ms: retry_after.map(millis),
        });
    }
}

impl Listed {
    /// Counts a denial of a key.
    fn count(&mut self, key: &Key, fingerprint: Fingerprint, now: SystemTime) {
        if let Some(known) = self.find(fingerprint) {
            known.denied = known.denied.saturating_add(1);
            return;
        }
        let key = key.clone();
        let new = DeniedKey { fingerprint, key, denied: 1, replaced: 0, blocked_until: None };
        if self.top.len() < MOST {
            return self.top.push(new);
        }
        let free = self.top.iter_mut().filter(|it| it.blocked_until.is_none_or(|end| end <= now));
        if let Some(least) = free.min_by_key(|it| it.count()) {
            *least = DeniedKey { replaced: least.count(), ..new };
        }
    }

    fn find(&mut self, fingerprint: Fingerprint) -> Option<&mut DeniedKey> {
        self.top.iter_mut().find(|it| it.fingerprint == fingerprint)
    }
}

impl DeniedKey {
    /// Returns the upper bound of the denials of this key.
    fn count(&self) -> u64 {
        self.denied.saturating_add(self.replaced)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::fingerprint::FingerprintKey;

    const SECRET: FingerprintKey = FingerprintKey::PUBLIC;

    fn count(keys: &mut Listed, name: &str, now: SystemTime) {
        let key = Key::from(name);
        keys.count(&key, key.fingerprint(&SECRET), now);
    }

    fn block(keys: &mut Listed, name: &str, end: SystemTime) {
        let fingerprint = Key::from(name).fingerprint(&SECRET);
        keys.find(fingerprint).expect("a listed key").blocked_until = Some(end);
    }

    fn denied(keys: &Listed, name: &str) -> Option<u64> {
        let fingerprint = Key::from(name).fingerprint(&SECRET);
        keys.top.iter().find(|it| it.fingerprint == fingerprint).map(|it| it.denied)
    }

    #[test]
    fn a_frequent_key_stays_among_many_others() {
        let (mut keys, now) = (Listed::default(), SystemTime::now());
        for n in 0..10_000 {
            count(&mut keys, &format!("other-{n}"), now);
            if n % 10 == 0 {
                count(&mut keys, "alice", now);
            }
        }
        keys.top.sort_by_key(|it| std::cmp::Reverse(it.denied));
        let list = &keys.top;
        assert_eq!(list.len(), MOST);
        assert!(denied(&keys, "alice") >= Some(900), "{:?}", denied(&keys, "alice"));
        assert!(list[0].denied == denied(&keys, "alice").unwrap_or(0) && list[1].denied <= 2);
    }

    #[test]
    fn a_blocked_key_is_listed_until_its_block_ends() {
        let (mut keys, now) = (Listed::default(), SystemTime::now());
        count(&mut keys, "alice", now);
        let end = now + Duration::from_secs(60);
        block(&mut keys, "alice", end);
        for n in 0..1_000 {
            count(&mut keys, &format!("other-{n}"), now);
        }
        assert_eq!(denied(&keys, "alice"), Some(1));
        for n in 0..1_000 {
            count(&mut keys, &format!("other-{n}"), end);
        }
        assert_eq!(denied(&keys, "alice"), None);
    }

    #[test]
    fn no_key_enters_a_list_of_blocked_keys() {
        let (mut keys, now) = (Listed::default(), SystemTime::now());
        for n in 0..MOST {
            count(&mut keys, &n.to_string(), now);
            block(&mut keys, &n.to_string(), now + Duration::from_secs(1));
        }
        count(&mut keys, "alice", now);
        assert_eq!((denied(&keys, "alice"), keys.top.len()), (None, MOST));
    }
}

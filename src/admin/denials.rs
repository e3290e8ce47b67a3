//! The latest denials and the most denied keys of each rule.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, SystemTime},
};

use parking_lot::Mutex;
use serde::Serialize;

use crate::{
    decision::{Cause, Decision, Outcome},
    fingerprint::Fingerprint,
    key::Key,
    name::RuleName,
    observe::{DecisionEvent, OnDecision},
    rule::RuleInfo,
    store::millis,
};

/// The number of denials and of keys to keep per rule.
const MOST: usize = 50;

/// Hook that records the latest denials and the most denied keys of each rule. Clones share the
/// records.
#[derive(Clone)]
pub(super) struct DenialLog(Arc<[RuleRecord]>);

/// The denials of one rule.
#[derive(Default)]
pub(super) struct RuleRecord {
    name: RuleName,
    pub(super) denied: AtomicU64,
    pub(super) reported: AtomicU64,
    pub(super) listed: Mutex<Listed>,
}

/// The latest denials, newest first, and the most denied keys.
///
/// The keys are counted by the Space-Saving algorithm (Metwally, Agrawal and El Abbadi, 2005): a
/// new key replaces the least denied one, so a key with more than 1/50 of all denials is listed. Keys that
/// are blocked keep their entries, so there are fewer than 50 for others.
#[derive(Clone, Default)]
pub(super) struct Listed {
    pub(super) recent: VecDeque<Denial>,
    pub(super) top: Vec<DeniedKey>,
}

/// A denied request, or a request that a report-only rule would have denied.
#[derive(Clone, Serialize)]
pub(super) struct Denial {
    at_ms: u64,
    key: Option<Fingerprint>,
    result: &'static str,
    /// `None` if waiting does not help.
    retry_after_ms: Option<u64>,
}

/// A key and its denials.
#[derive(Clone, Serialize)]
pub(super) struct DeniedKey {
    #[serde(rename = "key")]
    pub(super) fingerprint: Fingerprint,
    #[serde(skip)]
    pub(super) key: Key,
    /// The key as text, if the router shows it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) clear: Option<String>,
    /// The denials since the key entered the list.
    pub(super) denied: u64,
    /// The denials of the keys that this key replaced.
    #[serde(skip)]
    replaced: u64,
    /// The end of a block that the admin router made. Until then, the key stays listed.
    pub(super) blocked_until_ms: Option<u64>,
}

impl OnDecision for DenialLog {
    fn on_decision(&self, event: &DecisionEvent<'_>) {
        let Ok(decision) = event.decision else { return };
        for rule in &*self.0 {
            if let Some(cause) = event.cause(rule.name) {
                rule.record(cause, decision, event);
            }
        }
    }
}

impl DenialLog {
    pub(super) fn new(rules: &[RuleInfo<'_>]) -> Self {
        let records = rules.iter().map(|info| RuleRecord {
            name: info.name,
            ..Default::default()
        });
        Self(records.collect())
    }

    pub(super) fn find(&self, name: RuleName) -> Option<&RuleRecord> {
        self.0.iter().find(|rule| rule.name == name)
    }
}

impl RuleRecord {
    /// Records a denial without blocking.
    ///
    /// Under contention, a denial is counted but not listed.
    fn record(&self, cause: Cause, decision: &Decision, event: &DecisionEvent<'_>) {
        if cause == Cause::Reported {
            self.reported.fetch_add(1, Relaxed);
        } else if event.is_admitted {
            return;
        } else {
            self.denied.fetch_add(1, Relaxed);
        }
        let Some(mut listed) = self.listed.try_lock() else {
            return;
        };
        let has_outcomes = !decision.outcomes().is_empty();
        let key = event.key(self.name).filter(|_| has_outcomes);
        let at_ms = unix_millis(SystemTime::now());
        if let Some((key, fingerprint)) = key {
            listed.count(key, fingerprint, at_ms);
        }
        listed.recent.truncate(MOST - 1);
        listed.recent.push_front(Denial {
            at_ms,
            key: key.map(|(_, fingerprint)| fingerprint),
            result: cause.label(event.is_admitted),
            retry_after_ms: self.wait(decision).map(millis),
        });
    }

    /// Returns the wait for this rule, or `None` if waiting does not help.
    fn wait(&self, decision: &Decision) -> Option<Duration> {
        let outcomes = decision.outcomes().iter();
        let denied = outcomes.filter(|outcome| outcome.rule() == self.name && outcome.is_denied());
        denied
            .map(Outcome::retry_after)
            .reduce(|a, b| Some(a?.max(b?)))
            .flatten()
    }
}

impl Listed {
    /// Counts a denial of a key.
    fn count(&mut self, key: &Key, fingerprint: Fingerprint, now_ms: u64) {
        if let Some(known) = self.find(key) {
            known.denied = known.denied.saturating_add(1);
            return;
        }
        let new = DeniedKey {
            fingerprint,
            key: key.clone(),
            clear: None,
            denied: 1,
            replaced: 0,
            blocked_until_ms: None,
        };
        if self.top.len() < MOST {
            return self.top.push(new);
        }
        let free = self
            .top
            .iter_mut()
            .filter(|denied| denied.blocked_until_ms.is_none_or(|end| end <= now_ms));
        if let Some(least) = free.min_by_key(|denied| denied.count()) {
            *least = DeniedKey {
                replaced: least.count(),
                ..new
            };
        }
    }

    pub(super) fn find(&mut self, key: &Key) -> Option<&mut DeniedKey> {
        self.top.iter_mut().find(|denied| denied.key == *key)
    }
}

impl DeniedKey {
    /// Returns the upper bound of the denials of this key.
    fn count(&self) -> u64 {
        self.denied.saturating_add(self.replaced)
    }
}

/// Returns the Unix time in milliseconds.
pub(super) fn unix_millis(time: SystemTime) -> u64 {
    millis(
        time.duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fingerprint::FingerprintKey;

    const SECRET: FingerprintKey = FingerprintKey::PUBLIC;

    fn count(keys: &mut Listed, name: &str, now: u64) {
        let key = Key::from(name);
        keys.count(&key, key.fingerprint(&SECRET), now);
    }

    fn block(keys: &mut Listed, name: &str, end: u64) {
        keys.find(&Key::from(name))
            .expect("a listed key")
            .blocked_until_ms = Some(end);
    }

    fn denied(keys: &Listed, name: &str) -> Option<u64> {
        keys.top
            .iter()
            .find(|it| it.key == Key::from(name))
            .map(|it| it.denied)
    }

    #[test]
    fn a_frequent_key_stays_among_many_others() {
        let (mut keys, now) = (Listed::default(), 0);
        for n in 0..10_000 {
            count(&mut keys, &format!("other-{n}"), now);
            if n % 10 == 0 {
                count(&mut keys, "alice", now);
            }
        }
        keys.top.sort_by_key(|it| std::cmp::Reverse(it.denied));
        let list = &keys.top;
        assert_eq!(list.len(), MOST);
        assert!(
            denied(&keys, "alice") >= Some(900),
            "{:?}",
            denied(&keys, "alice")
        );
        assert!(list[0].denied == denied(&keys, "alice").unwrap_or(0) && list[1].denied <= 2);
    }

    #[test]
    fn a_blocked_key_is_listed_until_its_block_ends() {
        let (mut keys, now) = (Listed::default(), 0);
        count(&mut keys, "alice", now);
        let end = now + 60_000;
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
        let (mut keys, now) = (Listed::default(), 0);
        for n in 0..MOST {
            count(&mut keys, &n.to_string(), now);
            block(&mut keys, &n.to_string(), now + 1_000);
        }
        count(&mut keys, "alice", now);
        assert_eq!((denied(&keys, "alice"), keys.top.len()), (None, MOST));
    }
}

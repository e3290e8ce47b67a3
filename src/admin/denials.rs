//! The latest denials and the most denied keys of each rule.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, SystemTime},
};

use crate::{
    decision::{Decision, Outcome},
    fingerprint::Fingerprint,
    key::Key,
    name::RuleName,
    observe::{DecisionEvent, OnDecision, Verdict},
};

/// Hook that records the latest denials and the most denied keys of each rule. Clones share the
/// records.
#[derive(Clone)]
pub(super) struct DenialLog(Arc<[RuleRecord]>);

struct RuleRecord {
    name: RuleName,
    denied: AtomicU64,
    reported: AtomicU64,
    listed: Mutex<Listed>,
}

#[derive(Default)]
struct Listed {
    last: VecDeque<RecordedDenial>,
    top: TopKeys,
}

/// A denied request, or a request that a report-only rule would have denied.
#[derive(Clone, Copy)]
pub(super) struct RecordedDenial {
    pub(super) at: SystemTime,
    /// The fingerprint of the key.
    pub(super) key: Option<Fingerprint>,
    pub(super) result: &'static str,
    pub(super) retry_after: Option<Duration>,
}

impl OnDecision for DenialLog {
    fn on_decision(&self, event: &DecisionEvent<'_>) {
        let Some(decision) = event.decision() else { return };
        event.each_rule(self.0.iter().map(|rule| rule.name), |rule, verdict| {
            self.record(rule, verdict, decision, event);
        });
    }
}

impl DenialLog {
    /// The number of denials to keep per rule.
    const MOST: usize = 50;

    pub(super) fn new(rules: impl Iterator<Item = RuleName>) -> Self {
        let rule = |name| RuleRecord {
            name,
            denied: AtomicU64::new(0),
            reported: AtomicU64::new(0),
            listed: Mutex::default(),
        };
        Self(rules.map(rule).collect())
    }

    /// Records a denial without blocking.
    ///
    /// Under contention, a denial is counted but not listed.
    fn record(
        &self,
        name: RuleName,
        verdict: Verdict,
        decision: &Decision,
        event: &DecisionEvent<'_>,
    ) {
        let Some(rule) = self.find(name) else { return };
        match verdict {
            Verdict::Allowed | Verdict::FailedOpen | Verdict::FallbackAllowed => return,
            Verdict::ShadowLimited => rule.reported.fetch_add(1, Relaxed),
            Verdict::Limited | Verdict::FailedClosed | Verdict::FallbackLimited => {
                rule.denied.fetch_add(1, Relaxed)
            }
        };
        // The wait for this rule, or `None` if waiting does not help.
        let denied = decision.outcomes().iter().filter(|it| it.rule() == name && it.is_denied());
        let waits = denied.map(Outcome::expected_wait);
        let retry_after = waits.reduce(|a, b| Some(a?.max(b?))).flatten();
        let key = decision.outcomes().first().and_then(|_| event.key(name));
        let (at, result) = (SystemTime::now(), verdict.as_str());
        let Ok(mut listed) = rule.listed.try_lock() else { return };
        listed.last.truncate(Self::MOST - 1);
        if let Some((key, fingerprint)) = key {
            listed.top.count(key, fingerprint, at);
        }
        let key = key.map(|(_, fingerprint)| fingerprint);
        listed.last.push_front(RecordedDenial { at, key, result, retry_after });
    }

    /// Returns the latest denials of a rule, newest first.
    pub(super) fn last(&self, rule: RuleName) -> Vec<RecordedDenial> {
        self.with_listed(rule, |listed| listed.last.iter().copied().collect())
    }

    /// Returns the most denied keys of a rule, the most denied first.
    pub(super) fn top(&self, rule: RuleName) -> Vec<DeniedKey> {
        self.with_listed(rule, |listed| listed.top.list())
    }

    /// Records the end of a block of a listed key, or that no block exists.
    pub(super) fn set_blocked(&self, rule: RuleName, key: Fingerprint, until: Option<SystemTime>) {
        self.with_listed(rule, |listed| listed.top.set_blocked(key, until));
    }

    fn with_listed<T: Default>(&self, rule: RuleName, f: impl FnOnce(&mut Listed) -> T) -> T {
        let Some(rule) = self.find(rule) else { return T::default() };
        f(&mut rule.listed.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the numbers of denied requests, and of requests that report-only rules would have denied.
    pub(super) fn counted(&self, rule: RuleName) -> (u64, u64) {
        let counted = |rule: &RuleRecord| (rule.denied.load(Relaxed), rule.reported.load(Relaxed));
        self.find(rule).map(counted).unwrap_or_default()
    }

    fn find(&self, name: RuleName) -> Option<&RuleRecord> {
        self.0.iter().find(|rule| rule.name == name)
    }
}

/// The most denied keys of a rule, by the Space-Saving algorithm (Metwally, Agrawal and El Abbadi,
/// 2005).
///
/// A new key replaces the least denied one, so a key with more than 1/50 of all denials is listed.
#[derive(Default)]
struct TopKeys(Vec<Ranked>);

struct Ranked {
    shown: DeniedKey,
    /// The upper bound of the denials: those of the replaced keys, plus those of this key.
    count: u64,
}

/// A key and its denials.
#[derive(Clone)]
pub(super) struct DeniedKey {
    pub(super) fingerprint: Fingerprint,
    pub(super) key: Key,
    /// The denials since the key entered the list.
    pub(super) denied: u64,
    /// The end of a block that the admin router made. Until then, the key stays listed.
    pub(super) blocked_until: Option<SystemTime>,
}

impl TopKeys {
    /// The maximum number of keys.
    const MOST: usize = 50;

    /// Counts a denial of a key.
    fn count(&mut self, key: &Key, fingerprint: Fingerprint, now: SystemTime) {
        if let Some(ranked) = self.find(fingerprint) {
            ranked.count = ranked.count.saturating_add(1);
            ranked.shown.denied = ranked.shown.denied.saturating_add(1);
            return;
        }
        let shown = DeniedKey { fingerprint, key: key.clone(), denied: 1, blocked_until: None };
        if self.0.len() < Self::MOST {
            return self.0.push(Ranked { shown, count: 1 });
        }
        let free = self.0.iter_mut().filter(|it| !it.shown.is_blocked(now));
        if let Some(least) = free.min_by_key(|it| it.count) {
            *least = Ranked { shown, count: least.count.saturating_add(1) };
        }
    }

    /// Records the end of a block, or that no block exists.
    fn set_blocked(&mut self, fingerprint: Fingerprint, until: Option<SystemTime>) {
        if let Some(ranked) = self.find(fingerprint) {
            ranked.shown.blocked_until = until;
        }
    }

    /// Returns the keys, the most denied first.
    fn list(&self) -> Vec<DeniedKey> {
        let mut list: Vec<_> = self.0.iter().map(|ranked| ranked.shown.clone()).collect();
        list.sort_by_key(|shown| std::cmp::Reverse(shown.denied));
        list
    }

    fn find(&mut self, fingerprint: Fingerprint) -> Option<&mut Ranked> {
        self.0.iter_mut().find(|ranked| ranked.shown.fingerprint == fingerprint)
    }
}

impl DeniedKey {
    pub(super) fn is_blocked(&self, now: SystemTime) -> bool {
        self.blocked_until.is_some_and(|until| until > now)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::fingerprint::FingerprintKey;

    const SECRET: FingerprintKey = FingerprintKey::PUBLIC;

    fn count(keys: &mut TopKeys, name: &str, now: SystemTime) {
        let key = Key::from(name);
        keys.count(&key, key.fingerprint(&SECRET), now);
    }

    fn denied(keys: &TopKeys, name: &str) -> Option<u64> {
        let fingerprint = Key::from(name).fingerprint(&SECRET);
        let list = keys.list();
        list.iter().find(|shown| shown.fingerprint == fingerprint).map(|shown| shown.denied)
    }

    #[test]
    fn a_frequent_key_stays_among_many_others() {
        let (mut keys, now) = (TopKeys::default(), SystemTime::now());
        for n in 0..10_000 {
            count(&mut keys, &format!("other-{n}"), now);
            if n % 10 == 0 {
                count(&mut keys, "alice", now);
            }
        }
        let list = keys.list();
        assert_eq!(list.len(), TopKeys::MOST);
        assert!(denied(&keys, "alice") >= Some(900), "{:?}", denied(&keys, "alice"));
        assert!(list[0].denied == denied(&keys, "alice").unwrap_or(0) && list[1].denied <= 2);
    }

    #[test]
    fn a_blocked_key_is_listed_until_its_block_ends() {
        let (mut keys, now) = (TopKeys::default(), SystemTime::now());
        count(&mut keys, "alice", now);
        let end = now + Duration::from_secs(60);
        keys.set_blocked(Key::from("alice").fingerprint(&SECRET), Some(end));
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
        let (mut keys, now) = (TopKeys::default(), SystemTime::now());
        for n in 0..TopKeys::MOST {
            count(&mut keys, &n.to_string(), now);
            let fingerprint = Key::from(n.to_string()).fingerprint(&SECRET);
            keys.set_blocked(fingerprint, Some(now + Duration::from_secs(1)));
        }
        count(&mut keys, "alice", now);
        assert_eq!((denied(&keys, "alice"), keys.list().len()), (None, TopKeys::MOST));
    }
}

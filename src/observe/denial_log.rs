//! The latest denials and the most denied keys of each rule, for the admin page.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, SystemTime},
};

use super::{
    Verdict,
    top_keys::{DeniedKey, TopKeys},
};
use crate::{fingerprint::Fingerprint, key::Key, name::RuleName};

/// The latest denials and the most denied keys of each rule, if enabled. Clones share the records.
#[derive(Clone, Debug, Default)]
pub(crate) struct DenialLog(Option<Arc<[RuleRecord]>>);

#[derive(Debug)]
struct RuleRecord {
    name: RuleName,
    denied: AtomicU64,
    reported: AtomicU64,
    listed: Mutex<Listed>,
}

#[derive(Debug, Default)]
struct Listed {
    last: VecDeque<RecordedDenial>,
    top: TopKeys,
}

/// A denied request, or a request that a report-only rule would have denied.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordedDenial {
    pub(crate) at: SystemTime,
    /// The fingerprint of the key.
    pub(crate) key: Option<Fingerprint>,
    pub(crate) result: &'static str,
    pub(crate) retry_after: Option<Duration>,
}

/// The numbers of denied requests, and of requests that report-only rules would have denied.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counted {
    pub(crate) denied: u64,
    pub(crate) reported: u64,
}

impl DenialLog {
    /// The number of denials to keep per rule.
    pub(crate) const MOST: usize = 50;

    pub(crate) fn enabled(rules: impl IntoIterator<Item = RuleName>) -> Self {
        let rule = |name| RuleRecord {
            name,
            denied: AtomicU64::new(0),
            reported: AtomicU64::new(0),
            listed: Mutex::default(),
        };
        Self(Some(rules.into_iter().map(rule).collect()))
    }

    #[inline]
    pub(crate) fn is_enabled(&self) -> bool {
        cfg!(feature = "admin") && self.0.is_some()
    }

    /// Records a denial without blocking.
    ///
    /// Under contention, a denial is counted but not listed.
    pub(super) fn record<'a>(
        &self,
        rule: RuleName,
        verdict: Verdict,
        details: impl FnOnce() -> (Option<(&'a Key, Fingerprint)>, Option<Duration>),
    ) {
        let Some(rule) = self.find(rule) else { return };
        match verdict {
            Verdict::Allowed | Verdict::FailedOpen | Verdict::FallbackAllowed => return,
            Verdict::ShadowLimited => rule.reported.fetch_add(1, Relaxed),
            Verdict::Limited | Verdict::FailedClosed | Verdict::FallbackLimited => {
                rule.denied.fetch_add(1, Relaxed)
            }
        };
        let (at, (key, retry_after), result) = (SystemTime::now(), details(), verdict.as_str());
        let Ok(mut listed) = rule.listed.try_lock() else { return };
        if listed.last.len() >= Self::MOST {
            listed.last.pop_back();
        }
        if let Some((key, fingerprint)) = key {
            listed.top.count(key, fingerprint, at);
        }
        let key = key.map(|(_, fingerprint)| fingerprint);
        listed.last.push_front(RecordedDenial { at, key, result, retry_after });
    }

    /// Records a denial under every rule, because no single rule decided.
    pub(super) fn record_all(&self, verdict: Verdict, retry_after: Option<Duration>) {
        for rule in self.0.iter().flat_map(|rules| rules.iter()) {
            self.record(rule.name, verdict, || (None, retry_after));
        }
    }

    /// Returns the latest denials of a rule, newest first.
    pub(crate) fn last(&self, rule: RuleName) -> Vec<RecordedDenial> {
        self.with_listed(rule, |listed| listed.last.iter().copied().collect())
    }

    /// Returns the most denied keys of a rule, the most denied first.
    pub(crate) fn top(&self, rule: RuleName) -> Vec<DeniedKey> {
        self.with_listed(rule, |listed| listed.top.list())
    }

    /// Records the end of a block of a listed key, or that no block exists.
    pub(crate) fn set_blocked(&self, rule: RuleName, key: Fingerprint, until: Option<SystemTime>) {
        self.with_listed(rule, |listed| listed.top.set_blocked(key, until));
    }

    fn with_listed<T: Default>(&self, rule: RuleName, f: impl FnOnce(&mut Listed) -> T) -> T {
        let Some(rule) = self.find(rule) else { return T::default() };
        f(&mut rule.listed.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn counted(&self, rule: RuleName) -> Counted {
        let counted = |rule: &RuleRecord| Counted {
            denied: rule.denied.load(Relaxed),
            reported: rule.reported.load(Relaxed),
        };
        self.find(rule).map(counted).unwrap_or_default()
    }

    fn find(&self, name: RuleName) -> Option<&RuleRecord> {
        self.0.as_ref()?.iter().find(|rule| rule.name == name)
    }
}

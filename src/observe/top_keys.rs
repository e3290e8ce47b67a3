//! The most denied keys of a rule, for the admin page.

use std::time::SystemTime;

use crate::{fingerprint::Fingerprint, key::Key};

/// The most denied keys of a rule, by the Space-Saving algorithm (Metwally, Agrawal and El Abbadi,
/// 2005).
///
/// A new key replaces the least denied one, so a key with more than 1/50 of all denials is listed.
#[derive(Debug, Default)]
pub(super) struct TopKeys(Vec<Ranked>);

#[derive(Debug)]
struct Ranked {
    shown: DeniedKey,
    /// The upper bound of the denials: those of the replaced keys, plus those of this key.
    count: u64,
}

/// A key and its denials.
#[derive(Clone, Debug)]
pub(crate) struct DeniedKey {
    pub(crate) fingerprint: Fingerprint,
    pub(crate) key: Key,
    /// The denials since the key entered the list.
    pub(crate) denied: u64,
    /// The end of a block that the admin router made. Until then, the key stays listed.
    pub(crate) blocked_until: Option<SystemTime>,
}

impl TopKeys {
    /// The maximum number of keys.
    pub(super) const MOST: usize = 50;

    /// Counts a denial of a key.
    pub(super) fn count(&mut self, key: &Key, fingerprint: Fingerprint, now: SystemTime) {
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
    pub(super) fn set_blocked(&mut self, fingerprint: Fingerprint, until: Option<SystemTime>) {
        if let Some(ranked) = self.find(fingerprint) {
            ranked.shown.blocked_until = until;
        }
    }

    /// Returns the keys, the most denied first.
    pub(super) fn list(&self) -> Vec<DeniedKey> {
        let mut list: Vec<_> = self.0.iter().map(|ranked| ranked.shown.clone()).collect();
        list.sort_by_key(|shown| std::cmp::Reverse(shown.denied));
        list
    }

    fn find(&mut self, fingerprint: Fingerprint) -> Option<&mut Ranked> {
        self.0.iter_mut().find(|ranked| ranked.shown.fingerprint == fingerprint)
    }
}

impl DeniedKey {
    pub(crate) fn is_blocked(&self, now: SystemTime) -> bool {
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

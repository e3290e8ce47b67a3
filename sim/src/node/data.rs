//! The keys of a node: strings, lists and sorted sets, each with an optional time to live.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    mem,
};

/// The value of a key.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Text(Vec<u8>),
    List(VecDeque<Vec<u8>>),
    Sorted(Sorted),
}

/// The members of a set with their scores, in order.
pub type Sorted = Vec<(f64, Vec<u8>)>;

/// A value with its time to live.
#[derive(Clone, Debug)]
pub struct Entry {
    value: Value,
    /// The Unix time of the end, in milliseconds.
    expires: Option<i64>,
}

/// An error of a key that holds another type.
pub const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";

/// All keys. `now` is the node's clock, in microseconds of Unix time.
#[derive(Debug, Default)]
pub struct Data {
    pub now: i64,
    entries: BTreeMap<Vec<u8>, Entry>,
    /// The keys that changed since the last call of [`changes`](Data::changes).
    changed: BTreeSet<Vec<u8>>,
}

/// Changed keys, each with its new value or none.
pub type Changes = Vec<(Vec<u8>, Option<Entry>)>;

impl Data {
    /// Returns the clock in milliseconds.
    pub fn millis(&self) -> i64 {
        self.now.div_euclid(1_000)
    }

    pub fn get(&mut self, key: &[u8]) -> Option<&mut Value> {
        let now = self.millis();
        if self.entries.get(key).is_some_and(|it| it.expires.is_some_and(|end| end < now)) {
            self.entries.remove(key);
        }
        self.entries.get_mut(key).map(|entry| &mut entry.value)
    }

    pub fn text(&mut self, key: &[u8]) -> Result<Option<&mut Vec<u8>>, &'static str> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Text(text)) => Ok(Some(text)),
            Some(_) => Err(WRONG_TYPE),
        }
    }

    pub fn list(&mut self, key: &[u8]) -> Result<Option<&mut VecDeque<Vec<u8>>>, &'static str> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::List(list)) => Ok(Some(list)),
            Some(_) => Err(WRONG_TYPE),
        }
    }

    pub fn sorted(&mut self, key: &[u8]) -> Result<Option<&mut Sorted>, &'static str> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Sorted(set)) => Ok(Some(set)),
            Some(_) => Err(WRONG_TYPE),
        }
    }

    /// Replaces the value of a key and its time to live.
    pub fn set(&mut self, key: &[u8], value: Value, expires: Option<i64>) {
        self.entries.insert(key.to_vec(), Entry { value, expires });
    }

    /// Removes a key. Returns `true` if there was one.
    pub fn remove(&mut self, key: &[u8]) -> bool {
        self.get(key).is_some() && self.entries.remove(key).is_some()
    }

    /// Removes a list or a set without elements, as the servers do.
    pub fn remove_empty(&mut self, key: &[u8]) {
        let is_empty = match self.get(key) {
            Some(Value::List(list)) => list.is_empty(),
            Some(Value::Sorted(set)) => set.is_empty(),
            _ => false,
        };
        if is_empty {
            self.entries.remove(key);
        }
    }

    /// Returns the end of a key in milliseconds of Unix time, or `None` if there is no such key.
    pub fn expires(&mut self, key: &[u8]) -> Option<Option<i64>> {
        self.get(key)?;
        self.entries.get(key).map(|entry| entry.expires)
    }

    /// Returns `true` if a key ends within a few milliseconds of now.
    pub fn is_ending(&self, key: &[u8], millis: u64) -> bool {
        let end = self.entries.get(key).and_then(|entry| entry.expires);
        end.is_some_and(|end| end.abs_diff(self.millis()) <= millis)
    }

    /// Sets the end of a key. Returns `true` if there is such a key.
    pub fn expire(&mut self, key: &[u8], at: i64) -> bool {
        let exists = self.get(key).is_some();
        if let Some(entry) = self.entries.get_mut(key) {
            entry.expires = Some(at);
        }
        exists
    }

    pub fn keys(&self) -> Vec<Vec<u8>> {
        self.entries.keys().cloned().collect()
    }

    pub fn clear(&mut self) {
        self.changed.extend(self.entries.keys().cloned());
        self.entries.clear();
    }

    /// Records that a command may have changed a key.
    pub fn touch(&mut self, key: &[u8]) {
        self.changed.insert(key.to_vec());
    }

    /// Returns the changes since the last call, for a replica.
    pub fn changes(&mut self) -> Changes {
        let changed = mem::take(&mut self.changed).into_iter();
        changed.map(|key| (key.clone(), self.entries.get(&key).cloned())).collect()
    }

    /// Applies the changes of another node.
    pub fn apply(&mut self, changes: Changes) {
        for (key, entry) in changes {
            match entry {
                Some(entry) => drop(self.entries.insert(key, entry)),
                None => drop(self.entries.remove(&key)),
            }
        }
    }

    /// Replaces all keys by those of another node.
    pub fn copy(&mut self, other: &Self) {
        self.entries.clone_from(&other.entries);
    }
}

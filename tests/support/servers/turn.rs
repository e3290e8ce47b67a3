//! A limit on the tests that have servers at the same time.

use std::{
    collections::BTreeMap,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    thread,
};

/// A test may wait for others before its first server, and never while it has one.
pub(crate) const MOST: usize = 6;

/// The servers of each test that has one, by the name of its thread.
static TESTS: Mutex<BTreeMap<String, usize>> = Mutex::new(BTreeMap::new());
static ENDED: Condvar = Condvar::new();

fn tests() -> MutexGuard<'static, BTreeMap<String, usize>> {
    TESTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The turn of a test, which lasts as long as it has a server. A thread that is not the test's own
/// has no name with a path, and does not wait.
#[derive(Debug)]
pub(crate) struct Turn(Option<String>);

impl Turn {
    pub(crate) fn take() -> Self {
        let thread = thread::current();
        let test = thread.name().filter(|name| name.contains("::")).map(str::to_owned);
        if let Some(test) = &test {
            let full =
                |tests: &mut BTreeMap<_, _>| tests.len() >= MOST && !tests.contains_key(test);
            let tests = ENDED.wait_while(tests(), full);
            let mut tests = tests.unwrap_or_else(PoisonError::into_inner);
            *tests.entry(test.clone()).or_default() += 1;
        }
        Self(test)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let Some(test) = &self.0 else { return };
        let mut tests = tests();
        if let Some(servers) = tests.get_mut(test) {
            *servers -= 1;
        }
        tests.retain(|_, servers| *servers > 0);
        drop(tests);
        ENDED.notify_all();
    }
}

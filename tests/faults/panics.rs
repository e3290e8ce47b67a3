//! Panics of any thread or task, by the fault during which they happened.

use std::{
    panic,
    sync::{Mutex, PoisonError},
    thread,
};

static SEEN: Mutex<Vec<(String, String)>> = Mutex::new(Vec::new());

/// Records panics from now on. Threads are named after their fault.
pub(crate) fn watch() {
    panic::set_hook(Box::new(|info| {
        let name = thread::current().name().unwrap_or_default().to_owned();
        eprintln!("{name}: {info}");
        SEEN.lock().unwrap_or_else(PoisonError::into_inner).push((name, info.to_string()));
    }));
}

/// Returns the panics during the fault of this name.
pub(crate) fn of(name: &str) -> Vec<String> {
    let seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
    seen.iter().filter(|(thread, _)| thread == name).map(|(_, what)| what.clone()).collect()
}

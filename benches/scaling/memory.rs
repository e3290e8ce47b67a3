//! The memory of an account, and the keys without a slot in a store at its capacity.

use std::{fs, process::Command};

use tower_sluice::{Key, LocalStore, Quota, StoreExt, rule::RuleName, store::Charge};

const TWO: Quota = Quota::per_hour(2);

/// Measures each size in its own process, so that none reuses the memory of another.
pub(crate) fn table() {
    println!("memory, and keys without a slot of their own, at the capacity");
    for keys in [1_000, 10_000, 100_000, 1_000_000] {
        let itself = std::env::current_exe().expect("this program");
        let output = Command::new(itself).args(["memory", &keys.to_string()]).output();
        let output = output.expect("it runs");
        print!("  {}", String::from_utf8_lossy(&output.stdout));
    }
}

/// Runs the child process.
pub(crate) fn count(keys: u32) {
    let (rule, before) = (RuleName::default(), resident());
    let store = LocalStore::with_capacity(keys as usize);
    let admits = |key: u32| {
        let key = Key::from(key);
        store.take(&[Charge::new(rule, &key, TWO.as_ref())]).now().is_allowed()
    };
    // Both units of each key.
    let denied = (0..keys).filter(|key| !(admits(*key) && admits(*key))).count();
    let (bytes, per) = ((resident() - before) as f64, f64::from(keys));
    let without = keys as usize - store.stats().active;
    let freed = (0..keys).filter(|key| admits(*key)).count();
    let late_denied = (keys..keys + keys / 100).filter(|key| !admits(*key)).count();
    println!(
        "{keys:>7} keys: {:.1} bytes each; {:.3} % without a slot, {:.3} % denied early, {freed} in \
         debt forgotten; of new keys {:.2} % denied early",
        bytes / per,
        100.0 * without as f64 / per,
        100.0 * denied as f64 / per,
        10_000.0 * late_denied as f64 / per,
    );
}

/// Returns the resident memory of this process in bytes.
fn resident() -> u64 {
    let pages = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    4_096 * pages.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0)
}

//! The published scenario tables, and a function that runs them on a store.
#![allow(dead_code, reason = "each test uses a part")]

use tower_sluice::testing::{Case, Subject, TABLES, play};

/// Returns the text of a published table.
pub(crate) fn read(file: &str) -> &'static str {
    let found = TABLES.iter().find(|(name, _)| *name == file);
    found.unwrap_or_else(|| panic!("{file} is not in TABLES; add it in src/testing/scenario.rs")).1
}

/// Runs a table. Returns the numbers of its cases that ran and that were skipped.
pub(crate) async fn all_pass(subject: &mut impl Subject, file: &str) -> (usize, usize) {
    let (mut passed, mut skipped) = (0, 0);
    for case in Case::read(read(file)).expect("a list of cases") {
        match play(subject, &case).await {
            Ok(true) => passed += 1,
            Ok(false) => skipped += 1,
            Err(error) => panic!("{file}, {}: {error}", case.name),
        }
    }
    (passed, skipped)
}

//! The published scenario tables, and playing them on a store.
#![allow(dead_code, reason = "each test uses a part")]

use std::path::PathBuf;

use tower_sluice::testing::{Case, Played, Subject, play};

/// The tables lie beside the project; `SLUICE_SCENARIOS` names another place.
pub(crate) fn read(file: &str) -> String {
    let beside = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../shared/scenarios");
    let folder = std::env::var_os("SLUICE_SCENARIOS").map_or(beside, PathBuf::from);
    let path = folder.join(file);
    std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}; set SLUICE_SCENARIOS", path.display()))
}

/// Plays a file; how many of its cases were played, and how many are for a clock that steps back.
pub(crate) async fn all_pass(subject: &mut impl Subject, file: &str) -> (usize, usize) {
    let (mut passed, mut skipped) = (0, 0);
    for case in Case::read(&read(file)).expect("a list of cases") {
        match play(subject, &case).await {
            Ok(Played::Passed) => passed += 1,
            Ok(Played::Skipped) => skipped += 1,
            Err(error) => panic!("{file}: {error}"),
        }
    }
    (passed, skipped)
}

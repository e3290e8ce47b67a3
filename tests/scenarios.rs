//! The numbers of the published scenario tables, to the nanosecond.

use std::path::PathBuf;

use tower_sluice::testing::{Case, Local, Played, play};

/// The tables lie beside the project; `SLUICE_SCENARIOS` names another place.
fn cases(file: &str) -> Vec<Case> {
    let beside = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../shared/scenarios");
    let folder = std::env::var_os("SLUICE_SCENARIOS").map_or(beside, PathBuf::from);
    let path = folder.join(file);
    let text = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}; set SLUICE_SCENARIOS", path.display()));
    Case::read(&text).expect("a list of cases")
}

/// Plays a file; how many of its cases were played, and how many are for a clock that steps back.
async fn all_pass(file: &str) -> (usize, usize) {
    let (mut passed, mut skipped) = (0, 0);
    for case in cases(file) {
        match play(&mut Local::default(), &case).await {
            Ok(Played::Passed) => passed += 1,
            Ok(Played::Skipped) => skipped += 1,
            Err(error) => panic!("{file}: {error}"),
        }
    }
    (passed, skipped)
}

#[tokio::test]
async fn gcra_equals_its_table() {
    assert_eq!(all_pass("gcra.json").await, (18, 1));
}

#[tokio::test]
async fn token_bucket_equals_its_table() {
    assert_eq!(all_pass("token_bucket.json").await, (16, 1));
}

#[tokio::test]
async fn fixed_window_equals_its_table() {
    assert_eq!(all_pass("fixed_window.json").await, (23, 1));
}

#[tokio::test]
async fn sliding_window_equals_its_table() {
    assert_eq!(all_pass("sliding_window.json").await, (10, 0));
}

#[tokio::test]
async fn sliding_log_equals_its_table() {
    assert_eq!(all_pass("sliding_log.json").await, (12, 0));
}

#[tokio::test]
async fn combinations_equal_their_table() {
    assert_eq!(all_pass("combined.json").await, (6, 0));
}

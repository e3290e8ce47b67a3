//! The numbers of the published scenario tables, to the nanosecond.

#[path = "support/tables.rs"]
mod tables;

use tables::all_pass;
use tower_sluice::testing::Local;

#[tokio::test]
async fn gcra_equals_its_table() {
    assert_eq!(all_pass(&mut Local::default(), "gcra.json").await, (18, 1));
}

#[tokio::test]
async fn token_bucket_equals_its_table() {
    assert_eq!(all_pass(&mut Local::default(), "token_bucket.json").await, (16, 1));
}

#[tokio::test]
async fn fixed_window_equals_its_table() {
    assert_eq!(all_pass(&mut Local::default(), "fixed_window.json").await, (23, 1));
}

#[tokio::test]
async fn sliding_window_equals_its_table() {
    assert_eq!(all_pass(&mut Local::default(), "sliding_window.json").await, (10, 0));
}

#[tokio::test]
async fn sliding_log_equals_its_table() {
    assert_eq!(all_pass(&mut Local::default(), "sliding_log.json").await, (12, 0));
}

#[tokio::test]
async fn combinations_equal_their_table() {
    assert_eq!(all_pass(&mut Local::default(), "combined.json").await, (6, 0));
}

//! The published tables of cases for waiting and for adaptive limits, on the embedded store.

use crate::support::slot_tables::{adaptive, play_adaptive, play_waiting, waiting};

#[tokio::test(start_paused = true)]
async fn requests_wait_as_in_the_published_table() {
    for case in &waiting() {
        play_waiting(case).await;
    }
}

#[test]
fn limits_adapt_as_in_the_published_table() {
    adaptive().iter().for_each(play_adaptive);
}

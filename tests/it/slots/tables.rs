//! The published tables of cases for waiting and for adaptive limits, on the embedded store.

use tower_sluice::{Limiter, LocalStore};

use crate::support::{
    driven::Time,
    slot_tables::{adaptive, play_adaptive, play_waiting, waiting},
};

#[tokio::test(start_paused = true)]
async fn requests_wait_as_in_the_published_table() {
    for case in &waiting() {
        play_waiting(case, &mut Time::default(), false).await;
    }
}

#[tokio::test]
async fn limits_adapt_as_in_the_published_table() {
    for case in &adaptive() {
        let limiter = Limiter::named("default", LocalStore::new());
        let limited = async |quota, limit| {
            let all = limiter.take("all", &[quota], limit).now();
            assert!(all.is_allowed() && !limiter.take("all", &[quota], 1).now().is_allowed());
        };
        play_adaptive(case, limited).await;
    }
}

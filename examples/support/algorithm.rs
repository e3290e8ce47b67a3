//! An algorithm as a word: `gcra`, `sliding_window:10`.

use tower_sluice::Algorithm;

const ALGORITHMS: &str = "give gcra, token_bucket, fixed_window, paced_window, anchored_window, \
                          sliding_window:BUCKETS or sliding_log";

pub(crate) fn counted_by(value: &str) -> Result<Algorithm, String> {
    match value.split_once(':') {
        None if value == "gcra" => Ok(Algorithm::Gcra),
        None if value == "token_bucket" => Ok(Algorithm::TokenBucket),
        None if value == "fixed_window" => Ok(Algorithm::fixed_window()),
        None if value == "paced_window" => Ok(Algorithm::fixed_window().paced()),
        None if value == "anchored_window" => Ok(Algorithm::AnchoredWindow),
        None if value == "sliding_log" => Ok(Algorithm::SlidingLog),
        Some(("sliding_window", n)) => match n.parse() {
            Ok(buckets) => Ok(Algorithm::SlidingWindow { buckets }),
            Err(_) => Err(format!("buckets is {n:?}; give a whole number from 0 to {}", u32::MAX)),
        },
        _ => Err(format!("algorithm is {value:?}; {ALGORITHMS}")),
    }
}

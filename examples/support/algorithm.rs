//! Algorithms as words: `gcra`, `sliding_window:10`.

use tower_sluice::Algorithm;

const BUCKETS: &str = "sliding_window:BUCKETS";

/// Algorithms without a parameter; [`BUCKETS`] describes the other one.
pub(crate) const PLAIN: [(&str, Algorithm); 6] = [
    ("gcra", Algorithm::Gcra),
    ("token_bucket", Algorithm::TokenBucket),
    ("fixed_window", Algorithm::fixed_window()),
    ("paced_window", Algorithm::FixedWindow { carry_over: 0, paced: true }),
    ("anchored_window", Algorithm::AnchoredWindow),
    ("sliding_log", Algorithm::SlidingLog),
];

pub(crate) fn counted_by(value: &str) -> Result<Algorithm, String> {
    if let Some((_, algorithm)) = PLAIN.iter().find(|(word, _)| *word == value) {
        return Ok(*algorithm);
    }
    match value.split_once(':') {
        Some(("sliding_window", n)) => match n.parse() {
            Ok(buckets) => Ok(Algorithm::SlidingWindow { buckets }),
            Err(_) => Err(format!("buckets is {n:?}; give a whole number from 0 to {}", u32::MAX)),
        },
        _ => {
            let words = PLAIN.map(|(word, _)| word).join(", ");
            Err(format!("algorithm is {value:?}; give {words} or {BUCKETS}"))
        }
    }
}

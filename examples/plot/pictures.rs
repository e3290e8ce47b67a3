//! The list of pictures.

use std::time::Duration;

use tower_sluice::{Algorithm, Quota};

pub(crate) struct Picture {
    /// The file name, without its extension.
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    /// The caption.
    pub(crate) line: &'static str,
    pub(crate) quota: Quota,
    /// The maximum wait of a call.
    pub(crate) patience: Duration,
}

const FOUR: Quota = Quota::per_second(4);

const fn picture(
    name: &'static str,
    title: &'static str,
    line: &'static str,
    quota: Quota,
) -> Picture {
    Picture { name, title, line, quota, patience: Duration::ZERO }
}

/// All pictures, in the order of the guide.
pub(crate) const PICTURES: [Picture; 9] = [
    picture("gcra", "GCRA", "One unit comes back every 250 ms.", FOUR),
    Picture {
        patience: Duration::from_secs(1),
        ..picture(
            "waiting",
            "GCRA, waiting for up to 1 s",
            "Calls wait in line for the next unit, up to a second.",
            FOUR,
        )
    },
    picture(
        "token_bucket",
        "Token bucket, burst 6",
        "Four units come back together; up to six are kept.",
        FOUR.burst(6).algorithm(Algorithm::TokenBucket),
    ),
    picture(
        "fixed_window",
        "Fixed window",
        "Full again each second: at an edge, twice the limit.",
        FOUR.algorithm(Algorithm::fixed_window()),
    ),
    picture(
        "carry_over",
        "Fixed window, carry-over 3",
        "Unused units of a used window carry over.",
        FOUR.algorithm(Algorithm::fixed_window().carry_over(3)),
    ),
    picture(
        "paced_window",
        "Fixed window, paced",
        "A window's units come one by one; none outlives it.",
        FOUR.algorithm(Algorithm::fixed_window().paced()),
    ),
    picture(
        "anchored_window",
        "Anchored window",
        "A window begins with the first call after the last one.",
        FOUR.algorithm(Algorithm::AnchoredWindow),
    ),
    picture(
        "sliding_window",
        "Sliding window, 4 buckets",
        "The last second, in quarters that leave one by one.",
        FOUR.algorithm(Algorithm::SlidingWindow { buckets: 4 }),
    ),
    picture(
        "sliding_log",
        "Sliding log",
        "Each allowed call counts for exactly one second.",
        FOUR.algorithm(Algorithm::SlidingLog),
    ),
];

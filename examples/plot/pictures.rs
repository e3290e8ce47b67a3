//! The list of pictures.

use std::time::Duration;

use tower_sluice::{Algorithm, Quota};

pub(crate) struct Picture {
    /// The file name, without its extension.
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    /// The arithmetic, in one line.
    pub(crate) line: &'static str,
    /// The reason to choose the algorithm, or not to.
    pub(crate) take: &'static str,
    pub(crate) quota: Quota,
    /// The maximum wait of a call.
    pub(crate) patience: Duration,
}

const FOUR: Quota = Quota::per_second(4);

const fn picture(
    name: &'static str,
    title: &'static str,
    [line, take]: [&'static str; 2],
    quota: Quota,
) -> Picture {
    Picture { name, title, line, take, quota, patience: Duration::ZERO }
}

/// All pictures, in the order of the guide.
pub(crate) const PICTURES: [Picture; 9] = [
    picture(
        "gcra",
        "GCRA",
        ["One unit comes back every 250 ms.", "The default: even, and no boundary to wait for."],
        FOUR,
    ),
    Picture {
        patience: Duration::from_secs(1),
        ..picture(
            "waiting",
            "GCRA, waiting for up to 1 s",
            [
                "Calls wait in line for the next unit, up to a second.",
                "For jobs: few calls are denied, and many are late.",
            ],
            FOUR,
        )
    },
    picture(
        "token_bucket",
        "Token bucket, burst 6",
        [
            "Four units come back together; up to six are kept.",
            "For \"n more every minute\": units return in groups.",
        ],
        FOUR.with_burst(6).with_algorithm(Algorithm::TokenBucket),
    ),
    picture(
        "fixed_window",
        "Fixed window",
        [
            "Full again each second: at an edge, twice the limit.",
            "For quotas read from a clock, not for protection.",
        ],
        FOUR.with_algorithm(Algorithm::fixed_window()),
    ),
    picture(
        "carry_over",
        "Fixed window, carry-over 3",
        [
            "Unused units of a used window carry over.",
            "For clients that use less now and more later.",
        ],
        FOUR.with_algorithm(Algorithm::FixedWindow { carry_over: 3, paced: false }),
    ),
    picture(
        "paced_window",
        "Fixed window, paced",
        [
            "A window's units come one by one; none outlives it.",
            "For clock quotas, without a rush at the boundary.",
        ],
        FOUR.with_algorithm(Algorithm::FixedWindow { carry_over: 0, paced: true }),
    ),
    picture(
        "anchored_window",
        "Anchored window",
        [
            "A window begins with the first call after the last one.",
            "No boundary that all clients share.",
        ],
        FOUR.with_algorithm(Algorithm::AnchoredWindow),
    ),
    picture(
        "sliding_window",
        "Sliding window, 4 buckets",
        [
            "The last second, in quarters that leave one by one.",
            "Exact in a span one bucket shorter; little memory.",
        ],
        FOUR.with_algorithm(Algorithm::SlidingWindow { buckets: 4 }),
    ),
    picture(
        "sliding_log",
        "Sliding log",
        [
            "Each allowed call counts for exactly one second.",
            "The exact limit; memory grows with the limit.",
        ],
        FOUR.with_algorithm(Algorithm::SlidingLog),
    ),
];

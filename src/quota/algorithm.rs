//! Which algorithm counts.

/// How an account fills and drains.
///
/// | | burst at once | memory | right for |
/// |---|---|---|---|
/// | [`Gcra`](Algorithm::Gcra) | `burst` | one instant | almost everything |
/// | [`TokenBucket`](Algorithm::TokenBucket) | `burst` | two numbers | "n more every minute" |
/// | [`FixedWindow`](Algorithm::FixedWindow) | `units`, twice that around an edge | two numbers | quotas people read on a clock |
/// | [`AnchoredWindow`](Algorithm::AnchoredWindow) | `units`, twice that around an edge | two numbers | "n per hour from the first" |
/// | [`SlidingWindow`](Algorithm::SlidingWindow) | `units` | `buckets` + 1 counts | nearly exact windows |
/// | [`SlidingLog`](Algorithm::SlidingLog) | `units` | one entry per charge | exact windows of few units |
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Algorithm {
    /// The generic cell rate algorithm (ITU-T I.371): one unit comes back every interval.
    #[default]
    Gcra,
    /// `units` come back together, at whole periods after the account's first charge.
    TokenBucket,
    /// Windows of one period, aligned to the Unix epoch; see [`Algorithm::fixed_window`].
    FixedWindow {
        /// How much of what a used window left is lent to the next one, at most.
        carry_over: u32,
        /// Whether the units of a window pass evenly spaced.
        paced: bool,
    },
    /// A window of one period that starts with the first charge.
    AnchoredWindow,
    /// The last period in `buckets` equal buckets, the oldest by its share still inside. One
    /// bucket is the two-counter form.
    SlidingWindow {
        /// At least 1.
        buckets: u32,
    },
    /// Every charge of the last period, with its instant.
    SlidingLog,
}

impl Algorithm {
    /// Windows of one period, aligned to the Unix epoch.
    ///
    /// ```
    /// use tower_sluice::{Algorithm, Quota};
    ///
    /// const DAILY: Quota =
    ///     Quota::per_day(100).algorithm(Algorithm::fixed_window().carry_over(30));
    /// ```
    #[must_use]
    pub const fn fixed_window() -> Self {
        Self::FixedWindow { carry_over: 0, paced: false }
    }

    /// Lends what a used window left, up to `max` units, to the next one.
    ///
    /// # Panics
    ///
    /// When the algorithm is not a [fixed window](Algorithm::fixed_window).
    #[track_caller]
    #[must_use]
    pub const fn carry_over(self, max: u32) -> Self {
        match self {
            Self::FixedWindow { paced, .. } => Self::FixedWindow { carry_over: max, paced },
            _ => panic!("algorithm: carry_over is for fixed_window() only"),
        }
    }

    /// Spaces the units of a window evenly.
    ///
    /// # Panics
    ///
    /// When the algorithm is not a [fixed window](Algorithm::fixed_window).
    #[track_caller]
    #[must_use]
    pub const fn paced(self) -> Self {
        match self {
            Self::FixedWindow { carry_over, .. } => Self::FixedWindow { carry_over, paced: true },
            _ => panic!("algorithm: paced is for fixed_window() only"),
        }
    }
}

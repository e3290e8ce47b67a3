//! Medians, and the output of targets.

use std::fmt;

/// One number per round.
#[derive(Clone, Debug, Default)]
pub(crate) struct Series(pub(crate) Vec<f64>);

impl Series {
    pub(crate) fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    pub(crate) fn quantile(&self, share: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an index")]
        let at = (sorted.len() as f64 * share) as usize;
        sorted[at.min(sorted.len() - 1)]
    }

    /// Returns the median of each round's ratio to the corresponding round of `base`.
    pub(crate) fn over(&self, base: &Self) -> f64 {
        let ratios = self.0.iter().zip(&base.0).map(|(mine, other)| mine / other);
        Self(ratios.collect()).median()
    }

    /// Returns the median of each round's difference to the corresponding round of `base`.
    pub(crate) fn beyond(&self, base: &Self) -> f64 {
        let more = self.0.iter().zip(&base.0).map(|(mine, other)| mine - other);
        Self(more.collect()).median()
    }
}

/// A measured number, with an upper target.
pub(crate) struct AtMost(pub(crate) f64, pub(crate) f64);

impl fmt::Display for AtMost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(target, measured) = *self;
        let verdict = if measured <= target { "met" } else { "missed" };
        write!(f, "{measured:>7.2}  (target <= {target}: {verdict})")
    }
}

/// A measured number, with a lower target.
pub(crate) struct AtLeast(pub(crate) f64, pub(crate) f64);

impl fmt::Display for AtLeast {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(target, measured) = *self;
        let verdict = if measured >= target { "met" } else { "missed" };
        write!(f, "{measured:>7.2}  (target >= {target}: {verdict})")
    }
}

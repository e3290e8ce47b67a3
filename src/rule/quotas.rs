//! Lists of quotas that are charged together.

use smallvec::SmallVec;

use crate::{
    log::{log_once, warn},
    quota::Quota,
};

/// List of quotas that are charged together.
///
/// A request is charged to all quotas or to none. An empty list limits nothing. With feature
/// `serde`, the list is read from one quota or from a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quotas(SmallVec<[Quota; 1]>);

/// The maximum number of quotas in a rule.
pub(super) const MAX_QUOTAS: usize = 255;

impl Quotas {
    /// Returns the quotas that are charged: at most the first 255.
    pub(crate) fn charged(&self) -> &[Quota] {
        &self.0[..self.0.len().min(MAX_QUOTAS)]
    }

    /// Returns the first two quotas that count the same. The address has a number for the second, so they
    /// would have an account each.
    pub(super) fn first_equal(quotas: &[Quota]) -> Option<[Quota; 2]> {
        for (at, second) in quotas.iter().enumerate() {
            let first = quotas[..at]
                .iter()
                .find(|first| first.address() == second.address());
            if let Some(first) = first {
                return Some([*first, *second]);
            }
        }
        None
    }

    /// Warns of two quotas that count the same, once. Those that are fixed are an error of the layer.
    pub(super) fn warn_if_equal(&self) {
        let Some([first, second]) = Self::first_equal(self.charged()) else {
            return;
        };
        log_once!(warn!(
            target: "tower_sluice::lint",
            lint = "equal_quotas",
            "a plan has the quotas {first} and {second}, which count the same, so the larger has no \
             effect; keep the smaller, or give them different periods, algorithms or units (logged \
             once)"
        ));
    }

    #[track_caller]
    pub(super) fn checked(self) -> Self {
        assert!(
            self.0.len() <= MAX_QUOTAS,
            "rule: {} quotas; give at most {MAX_QUOTAS}",
            self.0.len()
        );
        self
    }
}

/// Returns the quotas for [`Limiter::take`](crate::Limiter::take).
impl AsRef<[Quota]> for Quotas {
    fn as_ref(&self) -> &[Quota] {
        &self.0
    }
}

impl From<Quota> for Quotas {
    fn from(quota: Quota) -> Self {
        Self(SmallVec::from_buf([quota]))
    }
}

impl<const N: usize> From<[Quota; N]> for Quotas {
    fn from(quotas: [Quota; N]) -> Self {
        Self(quotas.into_iter().collect())
    }
}

impl From<&[Quota]> for Quotas {
    fn from(quotas: &[Quota]) -> Self {
        Self(quotas.into())
    }
}

impl From<Vec<Quota>> for Quotas {
    fn from(quotas: Vec<Quota>) -> Self {
        Self(quotas.into())
    }
}

//! What a rule does with a request, and with one that has no identity.

use http::StatusCode;

/// What a rule does with one request; see [`Rule::mode`](crate::Rule::mode).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mode {
    /// It is charged.
    #[default]
    Charge,
    /// This rule does not apply to it; others do.
    Skip,
    /// No rule of the layer applies to it: the store is not asked.
    Exempt,
    /// It is charged, and refused if it has no identity, whatever the rule's [`Missing`] policy.
    Require,
}

/// What becomes of a request that does not say who it is.
///
/// With the feature `serde`: `"reject"` (with 400), `"skip"`, `"share"`, or a status for refusals,
/// from 400 to 599, as `{ reject = 401 }`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Missing {
    /// It is refused with this status.
    Reject(StatusCode),
    /// The rule does not apply to it: whoever leaves the identity out is not limited by this rule.
    Skip,
    /// All such requests share one account of the rule.
    Share,
}

/// Refused with 400.
impl Default for Missing {
    fn default() -> Self {
        Self::Reject(StatusCode::BAD_REQUEST)
    }
}

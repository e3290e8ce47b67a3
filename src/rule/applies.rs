//! Policies that select if a rule applies to a request, and how a missing identity is handled.

use http::StatusCode;

/// The way a rule treats a request. See [`Rule::applies`](crate::Rule::applies).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Applies {
    /// The rule charges the request.
    #[default]
    Charge,
    /// The rule does not apply to the request. Other rules do. If no rule applies, the store is not
    /// called.
    Skip,
    /// The rule charges the request, and rejects it if it has no identity, regardless of the
    /// [`OnMissingKey`] policy.
    Require,
}

/// The policy for a request without an identity.
///
/// Feature `serde` reads `"reject"` (with 400), `"skip"`, `"share"`, or a status from 400 to 599 as
/// `{ reject = 401 }`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnMissingKey {
    /// Rejects the request with this status.
    Reject(StatusCode),
    /// Skips the rule. A client can then avoid the rule by omitting its identity.
    Skip,
    /// Charges all such requests to one account of the rule.
    Share,
}

/// Returns [`OnMissingKey::Reject`] with status 400.
impl Default for OnMissingKey {
    fn default() -> Self {
        Self::Reject(StatusCode::BAD_REQUEST)
    }
}

//! Policies for requests that a rule skips, or that have no identity.

use http::StatusCode;

/// Treatment of a request by a rule. See [`Rule::applies`](crate::Rule::applies).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Applies {
    /// The rule charges the request.
    #[default]
    Charge,
    /// The rule ignores the request, but other rules still apply.
    Skip,
    /// The rule charges the request, and rejects a request without an identity.
    ///
    /// The [`OnMissingKey`] policy then has no effect.
    Require,
}

/// Policy for a request without an identity.
///
/// With feature `serde`, it is read from `"reject"` (with 400), `"skip"`, `"share"`, or
/// `{ reject = 401 }` with a status from 400 to 599.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnMissingKey {
    /// Rejects the request with this status.
    Reject(StatusCode),
    /// Ignores the request. Clients can then avoid the rule by omitting their identity.
    Skip,
    /// Charges all requests without an identity to one account of the rule.
    Share,
}

/// Returns [`OnMissingKey::Reject`] with status 400.
impl Default for OnMissingKey {
    fn default() -> Self {
        Self::Reject(StatusCode::BAD_REQUEST)
    }
}

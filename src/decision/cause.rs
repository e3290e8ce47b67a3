//! The one reading of a decision that steers responses, metrics, caches, breakers and penalties.

use http::StatusCode;

use super::{Decision, NEVER, Source};

/// Reason of a [`Rejection`](crate::reject::Rejection).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// A quota is exhausted. The request can be retried later.
    Limited,
    /// The request costs more than the limit of a quota. A retry is denied again.
    TooCostly,
    /// A quota is [blocked](crate::Quota::blocked).
    Blocked,
    /// The key is [blocked](crate::Limiter::block) for a time.
    KeyBlocked,
    /// The store failed, and [`FailClosed`](crate::store::FailClosed) denied the request, or this process
    /// is too [busy](Source::Busy).
    Unavailable,
    /// An [adaptive](crate::rule::Adaptive) limit is reached, because the service is overloaded.
    Overloaded,
    /// The request has no usable key.
    Unkeyed,
}

/// Cause of a decision, or of a rejection. Only a rejection has one of the first four.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The request has no usable key.
    Unkeyed,
    /// The cost is above the limit of a quota.
    TooCostly,
    /// A quota admits nothing.
    QuotaBlocked,
    /// The key is blocked for a time.
    KeyBlocked,
    /// A store decided by its accounts, or no store was needed.
    Quota,
    /// A limiter decided that is no store.
    Limiter,
    /// This process knew the answer: a denial was repeated, or units were charged in advance.
    Known,
    /// A table of the embedded store is full.
    Full,
    /// The store does not support the operation.
    Unsupported,
    /// The layer reached its adaptive limit.
    Overload,
    /// The store failed, and the request is allowed.
    FailedOpen,
    /// The store failed, and the request is denied, unless it is report-only or has the cost 0.
    FailedClosed,
    /// The store failed, and the local store decided.
    Fallback,
    /// The answer of the store was not read in time.
    Busy,
    /// A rule or layer that is report-only would deny the request, which runs.
    Reported,
}

impl Source {
    pub(crate) fn cause(self) -> Cause {
        match self {
            Self::Local | Self::Redis | Self::Bypass | Self::Other(_) => Cause::Quota,
            Self::Governor => Cause::Limiter,
            Self::DenyCache | Self::Leased => Cause::Known,
            Self::Overflow => Cause::Full,
            Self::Unsupported => Cause::Unsupported,
            Self::Overload => Cause::Overload,
            Self::FailedOpen => Cause::FailedOpen,
            Self::FailedClosed => Cause::FailedClosed,
            Self::Fallback => Cause::Fallback,
            Self::Busy => Cause::Busy,
        }
    }

    /// The number of labels `store`.
    #[cfg(feature = "metrics")]
    pub(crate) const STORES: usize = 11;

    /// Returns the label `store` of the time until an answer.
    #[cfg(feature = "metrics")]
    pub(crate) fn store(self) -> &'static str {
        match self {
            Self::Overflow | Self::Overload => "local",
            Self::Other(_) | Self::Unsupported => "other",
            named => named.as_str(),
        }
    }
}

impl Decision {
    pub(crate) fn cause(&self) -> Cause {
        self.source.cause()
    }
}

impl Cause {
    /// The number of labels in metrics.
    #[cfg(feature = "metrics")]
    pub(crate) const LABELS: usize = 8;

    /// Returns the cause of a rejection, which has no decision without a usable key.
    pub(crate) fn of_rejection(decision: Option<&Decision>) -> Self {
        let Some(decision) = decision else {
            return Self::Unkeyed;
        };
        let cause = decision.cause();
        if cause.is_unavailable() || cause == Self::Overload {
            return cause;
        }
        match decision.binding() {
            _ if decision.is_blocked() => Self::KeyBlocked,
            Some(outcome) if outcome.is_known() && outcome.limit() == 0 => Self::QuotaBlocked,
            Some(outcome) if outcome.retry_ns() == NEVER => Self::TooCostly,
            _ => Self::Quota,
        }
    }

    /// Returns the reason that users see.
    pub(crate) fn reason(self) -> Reason {
        match self {
            Self::Unkeyed => Reason::Unkeyed,
            Self::TooCostly => Reason::TooCostly,
            Self::QuotaBlocked => Reason::Blocked,
            Self::KeyBlocked => Reason::KeyBlocked,
            Self::Overload => Reason::Overloaded,
            Self::FailedClosed | Self::Busy => Reason::Unavailable,
            _ => Reason::Limited,
        }
    }

    /// Returns the default status of a rejection.
    pub(crate) fn http(self) -> StatusCode {
        match self {
            Self::Unkeyed => StatusCode::BAD_REQUEST,
            Self::QuotaBlocked => StatusCode::FORBIDDEN,
            Self::FailedClosed | Self::Busy | Self::Overload => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::TOO_MANY_REQUESTS,
        }
    }

    /// Returns the gRPC code of a rejection that has this status over HTTP.
    pub(crate) fn grpc(self, status: StatusCode) -> u16 {
        match (self, status) {
            (Self::FailedClosed | Self::Busy | Self::Overload, _) => 14, // UNAVAILABLE
            (Self::Unkeyed | Self::QuotaBlocked | Self::KeyBlocked, StatusCode::FORBIDDEN) => 7, // PERMISSION_DENIED
            (Self::Unkeyed, StatusCode::UNAUTHORIZED) => 16, // UNAUTHENTICATED
            (Self::Unkeyed, StatusCode::SERVICE_UNAVAILABLE) => 14,
            (Self::Unkeyed, status) if status.is_server_error() => 13, // INTERNAL
            (Self::Unkeyed, status) if status != StatusCode::TOO_MANY_REQUESTS => 3, // INVALID_ARGUMENT
            _ => 8, // RESOURCE_EXHAUSTED
        }
    }

    /// Returns the word in metrics and log lines, for a request that runs or does not.
    pub(crate) fn label(self, is_admitted: bool) -> &'static str {
        match (self, is_admitted) {
            (Self::FailedOpen, _) => "failed_open",
            (Self::FailedClosed, _) => "failed_closed",
            (Self::Busy, _) => "busy",
            (Self::Reported, _) => "shadow_limited",
            (Self::Fallback, true) => "fallback_allowed",
            (Self::Fallback, false) => "fallback_limited",
            (_, true) => "allowed",
            (_, false) => "limited",
        }
    }

    /// Returns `true` if a rejection without a wait forbids a retry.
    pub(crate) fn forbids_retry(self) -> bool {
        !matches!(self.reason(), Reason::Unkeyed | Reason::Limited)
    }

    /// Returns `true` for a rejection by a limit that admits the request at another time.
    pub(crate) fn is_exhausted(self) -> bool {
        matches!(self, Self::Quota | Self::Overload)
    }

    /// Returns `true` if the call of the store failed, and a policy decided.
    pub(crate) fn counts_as_failure(self) -> bool {
        matches!(self, Self::FailedOpen | Self::FailedClosed | Self::Fallback)
    }

    /// Returns `true` if a denial is no fault of the client: the store failed, or was not asked in
    /// time.
    pub(crate) fn is_unavailable(self) -> bool {
        matches!(self, Self::FailedClosed | Self::Busy)
    }

    /// Returns `true` if no store did what was asked.
    pub(crate) fn is_undone(self) -> bool {
        self == Self::FailedOpen || self.is_unavailable()
    }

    /// Returns `true` if a denial by a decision with this cause is a strike: quotas decided, not a
    /// failure or the state of this process.
    pub(crate) fn is_strike(self) -> bool {
        matches!(self, Self::Quota | Self::Limiter | Self::Known)
    }

    /// Returns `true` if the decision is an answer, of the store or of the policy in its place.
    pub(crate) fn is_answer(self) -> bool {
        !matches!(self, Self::Known | Self::Busy)
    }

    /// Returns `true` if the decision may be repeated, or its charge be leased out, without a call.
    pub(crate) fn is_cacheable(self) -> bool {
        self.is_answer() && !self.counts_as_failure()
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, time::Duration};

    use super::*;
    use crate::{decision::Outcome, name::RuleName};

    const SOURCES: [Source; 14] = [
        Source::Local,
        Source::Redis,
        Source::Other("mine"),
        Source::Bypass,
        Source::Governor,
        Source::DenyCache,
        Source::Leased,
        Source::Overflow,
        Source::Unsupported,
        Source::Overload,
        Source::FailedOpen,
        Source::FailedClosed,
        Source::Fallback,
        Source::Busy,
    ];

    fn outcome(limit: u32, wait: Option<Duration>) -> Outcome {
        Outcome::full(RuleName::default(), 0, limit)
            .with_remaining(0)
            .with_retry_after(wait)
    }

    fn row(cause: Cause) -> String {
        let http = cause.http();
        let yes = |is_set: bool, word: &'static str| if is_set { word } else { "-" };
        format!(
            "{cause:?}: {} {} {} {} {} {} {} {}",
            http.as_u16(),
            cause.grpc(http),
            cause.label(true),
            cause.label(false),
            yes(cause.counts_as_failure(), "failure"),
            yes(cause.is_strike(), "strike"),
            yes(cause.forbids_retry(), "no_retry"),
            yes(cause.is_cacheable(), "cache"),
        )
    }

    #[test]
    fn each_cause_has_one_reading() {
        let rejected = [
            Cause::Unkeyed,
            Cause::TooCostly,
            Cause::QuotaBlocked,
            Cause::KeyBlocked,
        ];
        let mut causes = Vec::from(rejected);
        causes.extend(SOURCES.map(Source::cause));
        causes.dedup();
        let rows: Vec<_> = causes.into_iter().map(row).collect();
        // Cause, HTTP, gRPC, labels if admitted and if denied, failure, strike, retry without a wait,
        // and cache. Caches and penalties never see one of the first four.
        let expected = [
            "Unkeyed: 400 3 allowed limited - - - cache",
            "TooCostly: 429 8 allowed limited - - no_retry cache",
            "QuotaBlocked: 403 7 allowed limited - - no_retry cache",
            "KeyBlocked: 429 8 allowed limited - - no_retry cache",
            "Quota: 429 8 allowed limited - strike - cache",
            "Limiter: 429 8 allowed limited - strike - cache",
            "Known: 429 8 allowed limited - strike - -",
            "Full: 429 8 allowed limited - - - cache",
            "Unsupported: 429 8 allowed limited - - - cache",
            "Overload: 503 14 allowed limited - - no_retry cache",
            "FailedOpen: 429 8 failed_open failed_open failure - - -",
            "FailedClosed: 503 14 failed_closed failed_closed failure - no_retry -",
            "Fallback: 429 8 fallback_allowed fallback_limited failure - - -",
            "Busy: 503 14 busy busy - - no_retry -",
        ];
        assert_eq!(rows, expected);
    }

    #[cfg(feature = "metrics")]
    #[test]
    fn there_is_a_metric_for_each_label() {
        let stores: BTreeSet<_> = SOURCES.into_iter().map(Source::store).collect();
        assert_eq!(stores.len(), Source::STORES, "{stores:?}");
        let causes = SOURCES.into_iter().map(Source::cause);
        let causes = causes.chain([Cause::Reported]);
        let labels = causes.flat_map(|cause| [cause.label(true), cause.label(false)]);
        let labels: BTreeSet<_> = labels.collect();
        assert_eq!(labels.len(), Cause::LABELS, "{labels:?}");
    }

    #[test]
    fn a_rejection_names_a_failure_before_a_block_and_a_block_before_the_cost() {
        let second = Some(Duration::from_secs(1));
        for source in SOURCES {
            let of = |limit, wait| {
                Decision::deny()
                    .with_source(source)
                    .with_outcome(outcome(limit, wait))
            };
            let found = [
                of(5, second),
                of(5, None),
                of(0, None),
                of(5, second).with_blocked(),
            ]
            .map(|denial| Cause::of_rejection(Some(&denial)));
            let cause = source.cause();
            let expected = match cause {
                Cause::Overload | Cause::FailedClosed | Cause::Busy => [cause; 4],
                _ => [
                    Cause::Quota,
                    Cause::TooCostly,
                    Cause::QuotaBlocked,
                    Cause::KeyBlocked,
                ],
            };
            assert_eq!(found, expected, "{source:?}");
        }
        assert_eq!(Cause::of_rejection(None), Cause::Unkeyed);
    }
}

//! A store without limits.

use std::{convert::Infallible, time::Duration};

use crate::{
    decision::Decision,
    store::{Answer, Charge, Never, Store},
};

/// A store that allows everything and keeps nothing, for tests of the code behind a limiter.
///
/// ```
/// use tower_sluice::{PeerIp, Quota, RateLimitLayer, testing::NoLimit};
///
/// let layer = RateLimitLayer::new(PeerIp::new(), Quota::per_second(1), NoLimit);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct NoLimit;

fn allowed() -> Answer<Never<Result<Decision, Infallible>>> {
    Answer::Now(Ok(Decision::allow()))
}

impl Store for NoLimit {
    type Error = Infallible;
    type Future = Never<Result<Decision, Infallible>>;

    fn take(&self, _: &[Charge<'_>]) -> Answer<Self::Future> {
        allowed()
    }

    fn settle(&self, _: &Charge<'_>, _: i64) -> Answer<Self::Future> {
        allowed()
    }

    fn reset(&self, _: &Charge<'_>) -> Answer<Self::Future> {
        allowed()
    }

    fn block(&self, _: &Charge<'_>, _: Duration) -> Answer<Self::Future> {
        allowed()
    }

    fn unblock(&self, _: &Charge<'_>) -> Answer<Self::Future> {
        allowed()
    }
}

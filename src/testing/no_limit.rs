//! A store without limits.

use std::convert::Infallible;

use crate::{
    decision::Decision,
    store::{Answer, Charge, Never, Op, Store, Unsupported},
};

/// Store that allows every request, for tests of the code behind a limiter.
///
/// ```
/// use tower_sluice::{PeerIp, Quota, RateLimitLayer, testing::NoLimit};
///
/// let layer = RateLimitLayer::new(PeerIp::new(), Quota::per_second(1), NoLimit);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct NoLimit;

impl Store for NoLimit {
    type Error = Infallible;
    type Future = Never<Result<Decision, Infallible>>;

    fn call(&self, _: Op<'_>) -> Answer<Self::Future> {
        Answer::Now(Ok(Decision::allow()))
    }

    fn supports(&self, _: &[Charge<'_>]) -> Result<(), Unsupported> {
        Ok(())
    }
}

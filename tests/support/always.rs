//! A store with one decision.

use std::convert::Infallible;

use tower_sluice::{
    Decision, Store,
    store::{Answer, Context, Never, Op},
};

/// A store that makes this decision on every request.
pub(crate) struct Always(pub(crate) fn() -> Decision);

impl Store for Always {
    type Error = Infallible;
    type Future = Never<Result<Decision, Infallible>>;

    fn call(&self, _: Op<'_>, _: &Context<'_>) -> Answer<Self::Future> {
        Answer::Now(Ok((self.0)()))
    }
}

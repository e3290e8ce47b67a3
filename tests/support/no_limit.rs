//! A store that allows everything.

use std::convert::Infallible;

use tower_sluice::{
    Decision, Store,
    store::{Answer, Charge, Context, Never, Op, Unsupported},
};

pub(crate) struct NoLimit;

impl Store for NoLimit {
    type Error = Infallible;
    type Future = Never<Result<Decision, Infallible>>;

    fn call(&self, _: Op<'_>, _: &Context<'_>) -> Answer<Self::Future> {
        Answer::Now(Ok(Decision::allow()))
    }

    fn supports(&self, _: &[Charge<'_>]) -> Result<(), Unsupported> {
        Ok(())
    }
}

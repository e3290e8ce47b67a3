//! Header fields of decisions outside a layer.

use std::sync::Arc;

use http::HeaderMap;

use super::{Headers, Items, Template};
use crate::{
    decision::{Decision, Outcome},
    key::Key,
    quota::Quota,
    store::Charge,
};

impl Headers {
    /// Adds the fields for a decision of a [`Limiter`](crate::Limiter) to `headers`.
    ///
    /// `quotas` are the quotas that were passed to the limiter. A denial also gets `Retry-After`,
    /// if waiting helps. [`Decision::rejection`] creates a whole response to a denial.
    ///
    /// ```
    /// use http::Response;
    /// use tower_sluice::{Headers, Limiter, Quota};
    ///
    /// const SEARCHES: Quota = Quota::per_minute(30);
    /// let searches = Limiter::local();
    ///
    /// let decision = searches.take("alice", &SEARCHES, 1).now();
    /// let mut response = Response::new("found");
    /// Headers::Draft11.write(&decision, &SEARCHES, response.headers_mut());
    /// assert_eq!(response.headers()["ratelimit"], "\"default\";r=29;t=2");
    /// ```
    pub fn write(
        self,
        decision: &Decision,
        quotas: &(impl AsRef<[Quota]> + ?Sized),
        headers: &mut HeaderMap,
    ) {
        let wait = if decision.is_allowed() { None } else { decision.expected_wait() };
        Template::of_call(self, decision, quotas.as_ref()).complete(headers, decision, wait);
    }
}

impl Template {
    /// Creates the template for the quotas of one call of a limiter.
    pub(crate) fn of_call(family: Headers, decision: &Decision, quotas: &[Quota]) -> Arc<Self> {
        let rule = decision.outcomes().first().map(Outcome::rule).unwrap_or_default();
        let key = Key::everyone();
        let charge = Charge::new(rule, &key, quotas);
        Arc::new(Self::new(family, Arc::new(Items::charged(&[charge]))))
    }
}

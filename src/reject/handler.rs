//! Rejections by handlers that call a limiter.

use http::Response;

use super::{ExplainContext, Reject, Rejection, TooManyRequests};
use crate::{
    decision::Decision,
    headers::{Headers, Template},
    key::{Everyone, RequestHead},
    quota::Quota,
    rule::Rule,
};

impl Decision {
    /// Creates the response to a denied request, or returns `None` if the request is allowed.
    ///
    /// Use this in a handler that calls a [`Limiter`](crate::Limiter), with the quotas of that
    /// call. The response is that of [`TooManyRequests`], with `Retry-After` and the fields of
    /// [`Headers::Draft11`].
    ///
    /// ```
    /// use http::{Response, request::Parts};
    /// use tower_sluice::{Limiter, Quota};
    ///
    /// const INVITATIONS: Quota = Quota::per_hour(2);
    ///
    /// async fn invite(limiter: Limiter, head: Parts, recipient: String) -> Response<String> {
    ///     let decision = limiter.take(recipient, &INVITATIONS, 1).now();
    ///     if let Some(rejection) = decision.rejection(&INVITATIONS, &head) {
    ///         return rejection;
    ///     }
    ///     Response::new("sent".into())
    /// }
    /// # let head = || http::Request::new(()).into_parts().0;
    /// # let limiter = Limiter::local();
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// # for status in [200, 200, 429] {
    /// #     let response = invite(limiter.clone(), head(), "bob@example.com".into()).await;
    /// #     assert_eq!(response.status(), status);
    /// # }
    /// # });
    /// ```
    ///
    /// For a response of your own, see [`Headers::write`]. After a dry run, call this method on
    /// [`Explanation::decision`](crate::explain::Explanation::decision).
    #[must_use]
    pub fn rejection<'h, B>(
        &self,
        quotas: &(impl AsRef<[Quota]> + ?Sized),
        head: impl Into<RequestHead<'h>>,
    ) -> Option<Response<B>>
    where
        B: Default + 'static,
    {
        if self.is_allowed() {
            return None;
        }
        let template = Template::of_call(Headers::Draft11, self, quotas.as_ref());
        let no_rules = Vec::<Rule<Everyone>>::new();
        let context = ExplainContext { rules: &no_rules, secret: None };
        let why = Rejection::denied(self, self.expected_wait(), &template, context);
        Some(TooManyRequests::new().respond(&why, &head.into()))
    }
}

//! Extractors of axum for the values that a layer exposes to handlers.

use axum::extract::FromRequestParts;
use http::{StatusCode, request::Parts};

use super::{ChargeHandle, Slot};
use crate::decision::Decision;

macro_rules! extractor {
    ($exposed:ident, $setting:literal, $more:literal) => {
        /// Fails with 500 and a text that names the fix, if the request has no such value.
        impl<S: Sync> FromRequestParts<S> for $exposed {
            type Rejection = (StatusCode, &'static str);

            async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
                let text = concat!(
                    "the request has no `",
                    stringify!($exposed),
                    "`; call `",
                    $setting,
                    "` on the RateLimitLayer around this handler",
                    $more
                );
                parts
                    .extensions
                    .get()
                    .cloned()
                    .ok_or((StatusCode::INTERNAL_SERVER_ERROR, text))
            }
        }
    };
}

extractor!(ChargeHandle, "expose_charge", "");
extractor!(Decision, "expose_decision", "");
extractor!(
    Slot,
    "expose_slot",
    "; a request without a quota of slots has none"
);

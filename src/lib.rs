//! Rate limiting for any HTTP Tower service.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod algorithm;
mod decision;
mod future;
mod gate;
mod headers;
pub mod identify;
pub mod key;
mod layer;
mod limiter;
mod name;
mod quota;
pub mod reject;
mod rule;
mod service;
pub mod store;
#[cfg(feature = "testing")]
pub mod testing;

pub use crate::{
    decision::{Decision, Outcome, Source},
    future::ResponseFuture,
    headers::{EXPOSED_HEADERS, Headers},
    identify::IdentifyLayer,
    key::{Key, KeyError, KeyExtractor, PeerIp, key_fn},
    layer::RateLimitLayer,
    limiter::Limiter,
    name::{NameError, RuleName},
    quota::{Quota, QuotaError},
    reject::{Reject, Rejection, TooManyRequests, reject_fn},
    rule::{Cost, Missing, Quotas, Rule, RuleError, Rules},
    service::RateLimit,
    store::{Answer, Charge, LocalStore, Store},
};

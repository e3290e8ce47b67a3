//! The path of a request through the layer.
//!
//! The module `admission` decides from the head of a request if the request runs, waits in the
//! queue, waits for the store, or is rejected. [`RateLimit`] and its future act on this admission.
//! A dry run of the layer and the simulator use the same steps.
//!
//! This module also contains the types of some settings of a [`RateLimitLayer`].

pub(crate) mod access;
pub(crate) mod adjust;
pub(crate) mod admission;
pub(crate) mod config;
mod context;
mod future;
mod layer;
pub(crate) mod overcommit;
mod queue;
mod service;
pub(crate) mod stats;
mod toggle;
pub(crate) mod waiters;

#[cfg(feature = "axum")]
pub use self::adjust::NoChargeHandle;
pub use self::{
    access::AccessList,
    adjust::{Adjustment, ChargeHandle, UnknownRule},
    future::ResponseFuture,
    layer::RateLimitLayer,
    overcommit::Overcommit,
    service::RateLimit,
    stats::{Counters, Counts},
    toggle::Toggle,
};
pub use crate::head::ResponseHead;

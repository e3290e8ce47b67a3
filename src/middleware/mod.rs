//! The way of one request through the layer.
//!
//! `admission` leads from the head of a request to its admission: the request runs, waits in the queue
//! or for the store, or is answered with a rejection. [`RateLimit`] and its future act on the admission.
//! A dry run of the layer and the simulator take the same steps.
//!
//! This module also has the settings of a [`RateLimitLayer`] that are types of their own.

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

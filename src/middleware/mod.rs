//! The path of a request through the layer.
//!
//! The module `admission` decides by the head of a request if it runs, waits, or is rejected.
//! [`RateLimit`] and its future act on this decision. A dry run of the layer and the simulator use
//! the same steps.
//!
//! The module also has the types of some settings of a [`RateLimitLayer`].

pub(crate) mod access;
pub(crate) mod adjust;
pub(crate) mod admission;
pub(crate) mod config;
mod context;
mod future;
mod layer;
pub(crate) mod overcommit;
pub(crate) mod queue;
mod service;
pub(crate) mod stats;
mod toggle;

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

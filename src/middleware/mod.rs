//! The layer, and the path of a request through it.
//!
//! The module `admission` shows this path. [`RateLimit`] and its future carry it out. Dry runs and the
//! simulator use the same code.

pub(crate) mod access;
pub(crate) mod adjust;
pub(crate) mod admission;
pub(crate) mod config;
mod context;
mod drain;
#[cfg(feature = "axum")]
mod exposed;
pub(crate) mod hold;
mod layer;
pub(crate) mod overcommit;
pub(crate) mod penalty;
#[cfg(feature = "serde")]
mod penalty_settings;
pub(crate) mod queue;
mod retry_after;
mod service;
mod waiting;

pub use self::{
    access::AccessList,
    adjust::{Adjustment, ChargeHandle},
    hold::{HoldUntil, SlotBody},
    layer::RateLimitLayer,
    overcommit::Overcommit,
    penalty::Penalty,
    queue::QueueHandle,
    retry_after::RetryAfter,
    service::{RateLimit, ResponseFuture},
};
pub use crate::{
    decision::Slot,
    head::ResponseHead,
    observe::{Counters, Counts, DecisionEvent, OnDecision},
    toggle::Toggle,
};

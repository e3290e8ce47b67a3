//! Stores that decide without accounts while the inner store fails.

mod fail_closed;
mod fail_open;
mod outage_log;

pub use self::{
    fail_closed::{FailClosed, FailClosedFuture},
    fail_open::{FailOpen, FailOpenFuture},
};

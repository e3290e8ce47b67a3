//! Requests through the layer: allowed, queued, rejected and adjusted.

mod access;
mod axum;
mod cancelled;
mod closing;
mod handler;
mod headers;
mod http;
mod on_decision;
mod one_limit;
mod overcommit;
mod penalty;
mod report_only;
mod reservation;
mod retry_after;
mod settle;
mod tower;
mod unfilled;
mod unread;
mod until_ready;
mod waiters;
mod waiting;

//! Requests through the layer: allowed, queued, rejected and adjusted.

#[cfg(feature = "testing")]
mod access;
#[cfg(all(feature = "axum", feature = "testing"))]
mod axum;
#[cfg(feature = "testing")]
mod cancelled;
#[cfg(feature = "testing")]
mod closing;
#[cfg(feature = "testing")]
mod handler;
#[cfg(feature = "testing")]
mod headers;
#[cfg(feature = "testing")]
mod http;
mod on_decision;
#[cfg(all(feature = "axum", feature = "testing"))]
mod one_limit;
#[cfg(feature = "testing")]
mod overcommit;
#[cfg(feature = "testing")]
mod penalty;
#[cfg(feature = "testing")]
mod report_only;
#[cfg(all(feature = "axum", feature = "testing"))]
mod reservation;
#[cfg(feature = "testing")]
mod retry_after;
#[cfg(feature = "testing")]
mod settle;
#[cfg(all(feature = "axum", feature = "testing"))]
mod settle_cut;
mod tower;
#[cfg(all(feature = "axum", feature = "testing"))]
mod unfilled;
#[cfg(all(feature = "axum", feature = "testing"))]
mod unread;
#[cfg(feature = "testing")]
mod until_ready;
#[cfg(feature = "testing")]
mod waiters;
#[cfg(feature = "testing")]
mod waiting;

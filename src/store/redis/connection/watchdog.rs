//! Detects connections that look alive but no longer reply.

use std::{
    sync::atomic::{
        AtomicU32, AtomicU64,
        Ordering::{AcqRel, Acquire, Relaxed, Release},
    },
    time::Duration,
};

use tokio::time::Instant;

/// The time without a reply after which a connection is replaced.
const MAX_SILENCE: Duration = Duration::from_secs(1);
/// The minimum number of requests without a reply before a connection is replaced. One such request
/// may belong to a dropped caller.
const MIN_REQUESTS: u32 = 2;

#[derive(Debug)]
pub(crate) struct Watchdog {
    created: Instant,
    /// The time of the first request without a reply, in milliseconds since `created`, plus one.
    ///
    /// Zero if every request has a reply.
    since: AtomicU64,
    requests: AtomicU32,
}

impl Watchdog {
    pub(crate) fn new() -> Self {
        Self { created: Instant::now(), since: AtomicU64::new(0), requests: AtomicU32::new(0) }
    }

    /// Records a request. Returns `true` if the connection has not replied for too long.
    pub(crate) fn request_sent(&self) -> bool {
        let now = u64::try_from(self.created.elapsed().as_millis()).unwrap_or(u64::MAX - 1) + 1;
        match self.since.compare_exchange(0, now, AcqRel, Acquire) {
            Ok(_) => {
                self.requests.store(1, Relaxed);
                false
            }
            Err(since) => {
                let before = self.requests.fetch_add(1, Relaxed);
                let silent = u128::from(now.saturating_sub(since));
                before >= MIN_REQUESTS && silent >= MAX_SILENCE.as_millis()
            }
        }
    }

    pub(crate) fn reply_received(&self) {
        self.since.store(0, Release);
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_dropped_caller_does_not_trigger_the_watchdog() {
        let watchdog = Watchdog::new();
        for _ in 0..3 {
            assert!(!watchdog.request_sent(), "the first request");
            advance(Duration::from_secs(60)).await;
            assert!(!watchdog.request_sent(), "the caller before may be dropped");
            watchdog.reply_received();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn requests_without_a_reply_for_a_second_trigger_the_watchdog() {
        let watchdog = Watchdog::new();
        assert!(!watchdog.request_sent() && !watchdog.request_sent() && !watchdog.request_sent());
        advance(MAX_SILENCE - Duration::from_millis(1)).await;
        assert!(!watchdog.request_sent());
        advance(Duration::from_millis(1)).await;
        assert!(watchdog.request_sent());
        watchdog.reply_received();
        assert!(!watchdog.request_sent());
    }
}

//! Log macros, which do nothing without the feature `tracing`, and a limit for log lines.
//!
//! Warnings and errors have the field `help`, which names the page that explains them.

use std::{mem::take, time::Duration};

use tokio::time::Instant;

#[cfg(feature = "tracing")]
pub(crate) use tracing::info;

/// The field `help` of each warning and error.
#[cfg(feature = "tracing")]
pub(crate) const HELP: &str = "guide::troubleshooting#warnings-in-the-log";

#[cfg(feature = "tracing")]
macro_rules! error_with_help {
    ($($text:tt)+) => {
        tracing::error!(help = $crate::log::HELP, $($text)+)
    };
}

#[cfg(feature = "tracing")]
macro_rules! warn_with_help {
    (target: $target:literal, $($text:tt)+) => {
        tracing::warn!(target: $target, help = $crate::log::HELP, $($text)+)
    };
    ($($text:tt)+) => {
        tracing::warn!(help = $crate::log::HELP, $($text)+)
    };
}

#[cfg(feature = "tracing")]
pub(crate) use {error_with_help as error, warn_with_help as warn};

/// Checks the arguments of a log line without logging it.
#[cfg(not(feature = "tracing"))]
macro_rules! skip {
    (target: $target:literal, lint = $lint:literal, $($text:tt)+) => {{
        let _ = format_args!($($text)+);
    }};
    ($($text:tt)+) => {{
        let _ = format_args!($($text)+);
    }};
}

#[cfg(not(feature = "tracing"))]
pub(crate) use skip as error;
#[cfg(not(feature = "tracing"))]
pub(crate) use skip as info;
#[cfg(not(feature = "tracing"))]
pub(crate) use skip as warn;

/// Logs a line the first time that this line of code is reached.
macro_rules! log_once {
    ($line:expr) => {{
        use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
        static IS_LOGGED: AtomicBool = AtomicBool::new(false);
        if !IS_LOGGED.load(Relaxed) && !IS_LOGGED.swap(true, Relaxed) {
            $line;
        }
    }};
}

pub(crate) use log_once;

/// Returns `true` if the program has a subscriber for log lines.
pub(crate) fn is_received() -> bool {
    #[cfg(feature = "tracing")]
    return tracing::dispatcher::get_default(|subscriber| {
        !subscriber.is::<tracing::subscriber::NoSubscriber>()
    });
    #[cfg(not(feature = "tracing"))]
    false
}

/// The minimum time between two log lines of one kind.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Limits the log lines of an event that clients can cause.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LogCount {
    /// The time of the last logged event.
    last: Option<Instant>,
    /// The events since then.
    unlogged: u64,
}

impl LogCount {
    /// Counts an event. Returns the events since the last log line if this one should be logged.
    ///
    /// Two log lines are at least [`LOG_INTERVAL`] apart.
    pub(crate) fn count(&mut self) -> Option<u64> {
        self.unlogged += 1;
        if self.last.is_some_and(|last| last.elapsed() < LOG_INTERVAL) {
            return None;
        }
        self.last = Some(Instant::now());
        Some(take(&mut self.unlogged))
    }
}

/// Limits the log lines of a store that fails and recovers again and again.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LogLimit {
    /// The time of the last logged failure.
    last: Option<Instant>,
    /// `true` if the current outage was logged.
    logged: bool,
}

impl LogLimit {
    /// Returns `true` if this failure should be logged.
    ///
    /// Each outage is logged at most once. Two logged failures are at least [`LOG_INTERVAL`] apart.
    pub(crate) fn should_log_failure(&mut self) -> bool {
        let is_due = self.last.is_none_or(|last| last.elapsed() >= LOG_INTERVAL);
        let should_log = !self.logged && is_due;
        if should_log {
            *self = Self {
                last: Some(Instant::now()),
                logged: true,
            };
        }
        should_log
    }

    /// Ends the current outage. Returns `true` if the outage was logged.
    pub(crate) fn should_log_recovery(&mut self) -> bool {
        take(&mut self.logged)
    }
}

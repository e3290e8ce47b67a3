//! The story of a run: time, actor and event, as a table.

use std::{
    fmt::Display,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

/// The events of a run, if it is `recorded`, and its violations.
#[derive(Debug)]
pub struct Story {
    start: Instant,
    recorded: bool,
    events: Mutex<Vec<String>>,
    violations: Mutex<Vec<String>>,
}

impl Story {
    pub fn new(recorded: bool) -> Self {
        let (events, violations) = (Mutex::default(), Mutex::default());
        Self { start: Instant::now(), recorded, events, violations }
    }

    pub fn start(&self) -> Instant {
        self.start
    }

    /// Returns the virtual time since the start.
    pub fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// Returns the virtual time from the start to `instant`.
    pub fn at(&self, instant: Instant) -> Duration {
        instant - self.start
    }

    /// Adds an event. `event` is called only if the story is recorded.
    pub fn record<T: Display>(&self, actor: impl Display, event: impl FnOnce() -> T) {
        if self.recorded {
            let line = format!("{:>10.3} | {actor:<9} | {}", self.now().as_secs_f64(), event());
            self.events.lock().unwrap_or_else(PoisonError::into_inner).push(line);
        }
    }

    /// Adds a violation of a bound.
    pub fn violate(&self, what: &str, details: impl Display) {
        self.record("oracle", || format!("VIOLATION: {what}: {details}"));
        let line = format!("{what}: {details}");
        self.violations.lock().unwrap_or_else(PoisonError::into_inner).push(line);
    }

    pub fn events(&self) -> Vec<String> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn violations(&self) -> Vec<String> {
        self.violations.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

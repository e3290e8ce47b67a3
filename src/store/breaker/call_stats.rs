//! Statistics of recent answers.

use std::time::Duration;

const BUCKETS: usize = 10;

/// Consecutive failures, and the answers of the last second in buckets of 100 ms.
#[derive(Debug, Default)]
pub(super) struct CallStats {
    consecutive_failures: u32,
    buckets: [Bucket; BUCKETS],
}

#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    number: usize,
    answers: u32,
    failures: u32,
}

impl CallStats {
    pub(super) fn record(&mut self, now: Duration, ok: bool) {
        self.consecutive_failures =
            if ok { 0 } else { self.consecutive_failures.saturating_add(1) };
        let number = bucket_number(now);
        let bucket = &mut self.buckets[number % BUCKETS];
        if bucket.number != number {
            *bucket = Bucket { number, ..Bucket::default() };
        }
        bucket.answers = bucket.answers.saturating_add(1);
        bucket.failures = bucket.failures.saturating_add(u32::from(!ok));
    }

    pub(super) fn consecutive_failures(&self) -> u32 {
        self.consecutive_failures
    }

    /// Returns the answers of the last second, and the failures among them.
    pub(super) fn last_second(&self, now: Duration) -> (u64, u64) {
        let recent = |bucket: &&Bucket| bucket.number + BUCKETS > bucket_number(now);
        let add = |(answers, failures), bucket: &Bucket| {
            (answers + u64::from(bucket.answers), failures + u64::from(bucket.failures))
        };
        self.buckets.iter().filter(recent).fold((0, 0), add)
    }
}

fn bucket_number(now: Duration) -> usize {
    usize::try_from(now.as_millis() / 100).unwrap_or(0)
}

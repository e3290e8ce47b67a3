//! How long nothing has been answered on a connection that looks alive.

use std::{
    sync::atomic::{
        AtomicU32, AtomicU64,
        Ordering::{AcqRel, Acquire, Relaxed, Release},
    },
    time::Duration,
};

use tokio::time::Instant;

/// After so long without an answer a connection is given up.
const SILENCE: Duration = Duration::from_secs(1);
/// So many questions must have had no answer: that of a caller who has left is not seen.
const QUESTIONS: u32 = 2;

#[derive(Debug)]
pub(super) struct Silence {
    born: Instant,
    /// When the first question without any answer since was asked, in milliseconds since `born`,
    /// plus one; 0 when there is none.
    since: AtomicU64,
    questions: AtomicU32,
}

impl Silence {
    pub(super) fn new() -> Self {
        Self { born: Instant::now(), since: AtomicU64::new(0), questions: AtomicU32::new(0) }
    }

    /// Notes that something is asked; whether nothing has been answered for too long.
    pub(super) fn asked(&self) -> bool {
        let now = u64::try_from(self.born.elapsed().as_millis()).unwrap_or(u64::MAX - 1) + 1;
        match self.since.compare_exchange(0, now, AcqRel, Acquire) {
            Ok(_) => {
                self.questions.store(1, Relaxed);
                false
            }
            Err(since) => {
                let before = self.questions.fetch_add(1, Relaxed);
                let silent = u128::from(now.saturating_sub(since));
                before >= QUESTIONS && silent >= SILENCE.as_millis()
            }
        }
    }

    pub(super) fn answered(&self) {
        self.since.store(0, Release);
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_caller_who_left_is_no_silence() {
        let silence = Silence::new();
        for _ in 0..3 {
            assert!(!silence.asked(), "it is not known yet");
            advance(Duration::from_secs(60)).await;
            assert!(!silence.asked(), "the caller of the one before may have left");
            silence.answered();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn several_questions_and_a_second_without_an_answer_are_silence() {
        let silence = Silence::new();
        assert!(!silence.asked() && !silence.asked() && !silence.asked());
        advance(SILENCE - Duration::from_millis(1)).await;
        assert!(!silence.asked());
        advance(Duration::from_millis(1)).await;
        assert!(silence.asked());
        silence.answered();
        assert!(!silence.asked());
    }
}

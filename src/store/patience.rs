//! The time for which an answer is awaited.

use std::{
    future::poll_fn,
    pin::{Pin, pin},
    task::{Context, Poll, ready},
    time::Duration,
};

use pin_project_lite::pin_project;
use tokio::time::{Instant, Sleep, sleep_until};

/// The number of steps in which the time passes.
const STEPS: u32 = 4;
/// The time by which a timer of an idle runtime may be late.
const RESOLUTION: Duration = Duration::from_millis(2);

pin_project! {
    /// A future that completes after a time, in which the runtime was not busy with other work.
    ///
    /// A timer is late while the runtime is busy. In this time, the request may not have been sent,
    /// or the answer may have arrived without being read, so this time does not count.
    #[derive(Debug)]
    pub(super) struct Patience {
        #[pin]
        sleep: Sleep,
        step: Duration,
        steps: u32,
        is_extended: bool,
    }
}

impl Patience {
    pub(super) fn new(time: Duration) -> Self {
        let step = time / STEPS;
        let sleep = sleep_until(Instant::now() + step);
        Self { sleep, step, steps: STEPS - 1, is_extended: false }
    }
}

impl Future for Patience {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut this = self.project();
        loop {
            ready!(this.sleep.as_mut().poll(cx));
            let (now, due) = (Instant::now(), this.sleep.deadline());
            let is_late = now > due + RESOLUTION && is_real(now);
            match this.steps.checked_sub(1) {
                Some(left) => *this.steps = left,
                // The runtime needs time to read the answer.
                None if is_late && !*this.is_extended => *this.is_extended = true,
                None => return Poll::Ready(()),
            }
            this.sleep.as_mut().reset(if is_late { now } else { due } + *this.step);
        }
    }
}

/// Returns `true` if `now` is the time of the system's clock. A clock that a test moves does not make a
/// timer late.
fn is_real(now: Instant) -> bool {
    let (now, real) = (now.into_std(), std::time::Instant::now());
    real.saturating_duration_since(now).max(now.saturating_duration_since(real)) < RESOLUTION
}

/// Returns the output of `future`, or `None` if it takes longer than `time`.
///
/// The timer starts when the future is pending, because it needs a runtime.
pub(super) async fn within<F: Future>(time: Duration, future: F) -> Option<F::Output> {
    let (mut future, mut patience) = (pin!(future), pin!(None));
    poll_fn(|cx| {
        if let Poll::Ready(output) = future.as_mut().poll(cx) {
            return Poll::Ready(Some(output));
        }
        if patience.is_none() {
            patience.set(Some(Patience::new(time)));
        }
        let patience = patience.as_mut().as_pin_mut();
        patience.map_or(Poll::Pending, |patience| patience.poll(cx).map(|()| None))
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::thread;

    use tokio::time::{advance, sleep};

    use super::*;

    const TIME: Duration = Duration::from_millis(50);

    #[tokio::test(start_paused = true)]
    async fn the_time_is_exact_while_the_runtime_is_idle() {
        for micros in [50_000, 45_000, 100_000, 1_000_000] {
            let (time, start) = (Duration::from_micros(micros), Instant::now());
            Patience::new(time).await;
            let took = start.elapsed();
            assert!(took >= time && took < time + RESOLUTION, "{time:?}: {took:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_clock_of_a_test_does_not_make_a_timer_late() {
        let (start, patience) = (Instant::now(), tokio::spawn(Patience::new(TIME)));
        tokio::task::yield_now().await;
        advance(TIME).await;
        patience.await.expect("no panic");
        assert!(start.elapsed() <= TIME + RESOLUTION);
    }

    /// The answer that arrives in the meantime can still be read.
    #[test]
    fn a_blocked_thread_is_noticed() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let took = runtime.expect("a runtime").block_on(async {
            let start = Instant::now();
            let patience = tokio::spawn(Patience::new(TIME));
            sleep(Duration::from_millis(1)).await;
            thread::sleep(2 * TIME);
            patience.await.expect("no panic");
            start.elapsed()
        });
        assert!(took > 2 * TIME + TIME / STEPS, "{took:?}");
    }
}

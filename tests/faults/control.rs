//! A task that only sleeps, to measure the delay that the machine adds.

use std::{
    fs::File,
    os::unix::fs::FileExt,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use crate::log::{Stall, now};

const NAP: Duration = Duration::from_millis(1);
/// A longer delay is a stall.
const STALL: Duration = Duration::from_millis(5);

/// The observations of the task.
#[derive(Clone, Debug, Default)]
pub(crate) struct Control {
    seen: Arc<Mutex<(Vec<Stall>, Duration)>>,
    over: Arc<AtomicBool>,
}

impl Control {
    /// Sleeps and measures on the caller's thread, until [`Control::end`].
    ///
    /// A late wake-up is a stall of the machine if the thread mostly waited for a processor, by the
    /// kernel's count. Otherwise it is a fault of the code.
    pub(crate) async fn watch(self) {
        let waits = Waits::open();
        let (mut slept, mut waited) = (now(), waits.so_far());
        while !self.over.load(Relaxed) {
            tokio::time::sleep(NAP).await;
            let (woke, waiting) = (now(), waits.so_far());
            let lag = (woke - slept).saturating_sub(NAP);
            let mut seen = self.seen.lock().expect("no panic here");
            seen.1 = seen.1.max(lag);
            if lag > STALL && (waiting - waited) * 2 > lag {
                seen.0.push((slept, woke));
            }
            (slept, waited) = (woke, waiting);
        }
    }

    pub(crate) fn end(&self) {
        self.over.store(true, Relaxed);
    }

    /// Returns the stalls, and the longest delay.
    pub(crate) fn seen(&self) -> (Vec<Stall>, Duration) {
        self.seen.lock().expect("no panic here").clone()
    }
}

/// Returns the time for which this thread has waited for a processor, by the kernel's count.
struct Waits(Option<File>);

impl Waits {
    fn open() -> Self {
        Self(File::open("/proc/thread-self/schedstat").ok())
    }

    fn so_far(&self) -> Duration {
        let mut text = [0; 64];
        let read = self.0.as_ref().and_then(|file| file.read_at(&mut text, 0).ok());
        let text = String::from_utf8_lossy(&text[..read.unwrap_or(0)]);
        let nanos = text.split_whitespace().nth(1).and_then(|word| word.parse().ok());
        Duration::from_nanos(nanos.unwrap_or(0))
    }
}

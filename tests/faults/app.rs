//! An app with its own store, which sends requests at a steady rate.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use serde::{Deserialize, Serialize};
use tokio::{
    runtime::Builder,
    sync::{mpsc, oneshot},
    time::sleep,
};
use tower_sluice::{Decision, Limiter, store::Answer};

use crate::{
    child::Child,
    control::Control,
    log::{Entry, LineCount, Log, now},
    random::mix,
    stack::{Door, Policy, QUOTA, Stack},
};

/// The work of an app.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Plan {
    pub(crate) name: String,
    pub(crate) door: Door,
    pub(crate) policy: Policy,
    /// Decisions per second.
    pub(crate) rate: u32,
    pub(crate) keys: u16,
    /// The number of the app. Each app uses other keys at a time.
    pub(crate) number: usize,
}

/// A running app.
pub(crate) enum App {
    Thread { stop: Arc<AtomicBool>, thread: JoinHandle<Log> },
    Process(Child),
}

impl App {
    /// Starts an app on a thread with its own runtime. Returns once the app is connected.
    pub(crate) async fn start(plan: Plan) -> Self {
        let (stop, (connected, is_connected)) = (Arc::<AtomicBool>::default(), oneshot::channel());
        let (flag, name) = (stop.clone(), plan.name.clone());
        let work =
            move || run(&plan, &flag, || connected.send(()).expect("the receiver waits"), |_| {});
        let thread = thread::Builder::new().name(name).spawn(work).expect("a thread");
        is_connected.await.expect("the app connects");
        Self::Thread { stop, thread }
    }

    /// Asks the app to end. Returns its log once all requests are answered.
    pub(crate) fn stop(&self) {
        match self {
            Self::Thread { stop, .. } => stop.store(true, Relaxed),
            Self::Process(child) => child.stop(),
        }
    }

    pub(crate) fn log(self) -> Log {
        match self {
            Self::Thread { thread, .. } => thread.join().unwrap_or_default(),
            Self::Process(child) => child.log(),
        }
    }
}

/// Sends the requests of `plan` until `stop`, and passes each entry to `see` when it is made.
pub(crate) fn run(
    plan: &Plan,
    stop: &AtomicBool,
    ready: impl FnOnce(),
    see: impl FnMut(&Entry),
) -> Log {
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let (lines, _guard) = LineCount::start();
    runtime.block_on(async {
        let stack = Stack::build(&plan.door, plan.policy).await.expect("the app connects");
        let control = Control::default();
        let controls = tokio::spawn(control.clone().watch());
        ready();
        let entries = load(plan, &stack, stop, see).await;
        control.end();
        controls.await.expect("the task ends");
        let counts = stack.heard.counts();
        let ((stalls, lag), healed) = (control.seen(), (stack.healed)());
        let (answered, errors, texts) = (counts.answered, counts.errors, counts.texts);
        let lines = lines.get();
        Log { entries, errors, texts, answered, healed, stalls, lag, lines }
    })
}

async fn load(
    plan: &Plan,
    stack: &Stack,
    stop: &AtomicBool,
    mut see: impl FnMut(&Entry),
) -> Vec<Entry> {
    let limiter = Limiter::named("default", stack.store.clone());
    let names: Vec<_> = (0..plan.keys).map(name).collect();
    let (send, mut receive) = mpsc::unbounded_channel::<Entry>();
    let (began, mut sent, mut entries) = (now(), 0_u64, Vec::new());
    while !stop.load(Relaxed) {
        let due = (now() - began).as_nanos() * u128::from(plan.rate) / 1_000_000_000;
        while u128::from(sent) < due {
            let key = draw(plan, sent);
            sent += 1;
            let asked = now();
            let answer = limiter.take(names[usize::from(key)].as_str(), &QUOTA, 1);
            let note = move |decision: &Decision, at_once| {
                let (allowed, source) = (decision.is_allowed(), decision.source());
                Entry { key, asked, answered: now(), allowed, source, at_once }
            };
            match answer {
                Answer::Now(decision) => drop(send.send(note(&decision, true))),
                Answer::Later(later) => {
                    let send = send.clone();
                    tokio::spawn(async move {
                        let decision = later.await;
                        // The receiver stays until all senders are done.
                        let _ = send.send(note(&decision, false));
                    });
                }
            }
        }
        sleep(Duration::from_millis(1)).await;
        while let Ok(entry) = receive.try_recv() {
            see(&entry);
            entries.push(entry);
        }
    }
    drop(send);
    while let Some(entry) = receive.recv().await {
        see(&entry);
        entries.push(entry);
    }
    entries
}

/// Returns the name of the key of this number.
pub(crate) fn name(key: u16) -> String {
    format!("k{key:03}")
}

/// Returns random keys, equal in every run.
fn draw(plan: &Plan, sent: u64) -> u16 {
    let draw = mix(sent * 2 + plan.number as u64);
    u16::try_from(draw % u64::from(plan.keys)).expect("below the number of keys")
}

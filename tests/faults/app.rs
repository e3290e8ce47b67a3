//! An app: a store of its own, and requests at a steady rate, whether answers come or not.

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
use tower_sluice::{Answer, Decision, Limiter};

use crate::{
    child::Child,
    control::Control,
    log::{Entry, Log, now},
    random::mix,
    stack::{Door, Policy, QUOTA, Stack},
};

/// What an app is to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Plan {
    pub(crate) name: String,
    pub(crate) door: Door,
    pub(crate) policy: Policy,
    /// Decisions per second.
    pub(crate) rate: u32,
    pub(crate) keys: u16,
    /// Which app it is: each asks for other keys at a time.
    pub(crate) number: usize,
}

/// An app that runs.
pub(crate) enum App {
    Thread { stop: Arc<AtomicBool>, thread: JoinHandle<Log> },
    Process(Child),
}

impl App {
    /// An app on a thread with a runtime of its own, once it is connected.
    pub(crate) async fn start(plan: Plan) -> Self {
        let (stop, (tell, told)) = (Arc::<AtomicBool>::default(), oneshot::channel());
        let (flag, name) = (stop.clone(), plan.name.clone());
        let work = move || run(&plan, &flag, || tell.send(()).expect("somebody waits"), |_| {});
        let thread = thread::Builder::new().name(name).spawn(work).expect("a thread");
        told.await.expect("the app connects");
        Self::Thread { stop, thread }
    }

    /// Asks it to end; its log once all is answered.
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

/// Asks as `plan` says until `stop`, and shows each entry to `see` when it is made.
pub(crate) fn run(
    plan: &Plan,
    stop: &AtomicBool,
    ready: impl FnOnce(),
    see: impl FnMut(&Entry),
) -> Log {
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let stack = Stack::build(&plan.door, plan.policy).await.expect("the app connects");
        let control = Control::default();
        let controls = tokio::spawn(control.clone().watch());
        ready();
        let entries = load(plan, &stack, stop, see).await;
        control.end();
        controls.await.expect("it only sleeps");
        let counts = stack.heard.counts();
        let ((stalls, lag), healed) = (control.seen(), (stack.healed)());
        let (answered, errors, texts) = (counts.answered, counts.errors, counts.texts);
        Log { entries, errors, texts, answered, healed, stalls, lag }
    })
}

async fn load(
    plan: &Plan,
    stack: &Stack,
    stop: &AtomicBool,
    mut see: impl FnMut(&Entry),
) -> Vec<Entry> {
    let limiter = Limiter::new(stack.store.clone());
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
                Answer::Now(Ok(decision)) => drop(send.send(note(&decision, true))),
                Answer::Later(later) => {
                    let send = send.clone();
                    tokio::spawn(async move {
                        let Ok(decision) = later.await;
                        // whoever is told is there until all have told
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

/// The name of a key of this number.
pub(crate) fn name(key: u16) -> String {
    format!("k{key:03}")
}

/// Keys at random, the same ones in every run.
fn draw(plan: &Plan, sent: u64) -> u16 {
    let draw = mix(sent * 2 + plan.number as u64);
    u16::try_from(draw % u64::from(plan.keys)).expect("below the number of keys")
}

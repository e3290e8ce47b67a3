//! The wrappers around the store of a process, in a random composition.

use std::{convert::Infallible, fmt, pin::Pin, sync::Arc, time::Duration};

use redis::aio::ConnectionLike;
use tower::BoxError;
use tower_sluice::{
    Decision, RedisStore, Store, StoreExt,
    store::{Answer, Charge, Context, DynStore, FailureDomain, Instances, Op, Unsupported},
};

use super::{network::Wire, virtual_local::VirtualLocal};
use crate::random::Random;

/// The policy of a process for failures of the node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum OnFailure {
    Open,
    Closed,
    Fallback,
}

/// The wrappers of a process.
#[derive(Clone, Copy, Debug)]
pub struct Wrappers {
    pub budget: Duration,
    pub breaker: bool,
    pub deny_cache: bool,
    /// The percentage of a limit that the process may lease.
    pub leases: Option<u32>,
    pub coalesce: bool,
    pub resp3: bool,
    /// `true` if all accounts of a key are in one hash slot of a cluster.
    pub hash_tag: bool,
    pub on_failure: OnFailure,
    /// `true` if the processes are counted.
    pub counted: bool,
}

impl Wrappers {
    pub fn random(random: &mut Random, leases: bool, hash_tag: bool) -> Self {
        Self {
            budget: Duration::from_millis(*random.pick(&[50, 100, 100, 250])),
            breaker: random.percent(75),
            deny_cache: random.percent(40),
            leases: (leases && random.percent(70)).then(|| *random.pick(&[1, 5, 12])),
            coalesce: random.percent(75),
            resp3: random.percent(50),
            hash_tag,
            on_failure: *random.pick(&[
                OnFailure::Fallback,
                OnFailure::Fallback,
                OnFailure::Open,
                OnFailure::Closed,
            ]),
            counted: false,
        }
    }

    /// Returns the longest time of a call that takes `times` timeouts. One that borrows units makes up to
    /// three calls, and waits for those of others before.
    pub fn longest(&self, times: u32) -> Duration {
        let waits = 2 * Duration::from_millis(100);
        let call = times * self.budget;
        if self.leases.is_some() { 3 * call + waits } else { call }
    }

    /// Returns the wrappers of a process that is counted.
    pub fn counted(self, falls_back: bool) -> Self {
        let on_failure = if falls_back { OnFailure::Fallback } else { self.on_failure };
        // A percentage of all processes, which they divide.
        let leases = self.leases.map(|percent| percent.max(4) * 2);
        Self { on_failure, leases, counted: true, ..self }
    }
}

impl fmt::Display for Wrappers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "timeout {:?}", self.budget)?;
        for (is_on, name) in [
            (self.breaker, "breaker"),
            (self.deny_cache, "deny cache"),
            (!self.coalesce, "no batches"),
            (self.resp3, "RESP3"),
            (self.counted, "counted"),
        ] {
            if is_on {
                write!(f, ", {name}")?;
            }
        }
        if let Some(percent) = self.leases {
            write!(f, ", leases {percent} %")?;
        }
        write!(f, ", on failure {:?}", self.on_failure)
    }
}

pub type Wrapped = Arc<DynStore<Infallible>>;
/// A store of a process, and the number of processes that share its servers.
pub type Shared = (Wrapped, Instances);

/// Applies the wrappers in the documented order.
///
/// Returns the number of processes as well.
pub fn wrap<C>(
    store: RedisStore<C>,
    wrappers: &Wrappers,
    processes: u32,
    wire: &Arc<Wire>,
) -> Shared
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    let processes =
        if wrappers.counted { store.live_instances(processes) } else { processes.into() };
    let store = store.timeout(wrappers.budget);
    let store = Noted { store, wire: wire.clone(), budget: wrappers.budget };
    let wrapped = match wrappers.breaker {
        true => above_breaker(store.breaker(), wrappers, &processes, wire),
        false => above_breaker(store, wrappers, &processes, wire),
    };
    (wrapped, processes)
}

fn above_breaker<S>(store: S, wrappers: &Wrappers, processes: &Instances, wire: &Wire) -> Wrapped
where
    S: Store<Error: Into<BoxError>, Future: Send> + Send + Sync + 'static,
{
    let mut store = store.boxed();
    if wrappers.deny_cache {
        store = store.deny_cache().boxed();
    }
    if let Some(percent) = wrappers.leases {
        let leases = store.leases(percent);
        let is_counted = wrappers.counted;
        let leases = if is_counted { leases.instances(processes.clone()) } else { leases };
        store = leases.boxed();
    }
    match wrappers.on_failure {
        OnFailure::Open => store.fail_open().boxed(),
        OnFailure::Closed => store.fail_closed().boxed(),
        OnFailure::Fallback => {
            let local = VirtualLocal::new(wire.story().0.start());
            store.fallback(local, processes.clone()).boxed()
        }
    }
}

/// A store whose errors are in the story, because the policy for failures shows none. No call may fail
/// for the silence of a server that answers.
struct Noted<S> {
    store: S,
    wire: Arc<Wire>,
    budget: Duration,
}

fn note(wire: &Wire, budget: Duration, error: &BoxError) {
    let ((story, name), text) = (wire.story(), error.to_string());
    story.record(&name, || format!("the store failed: {text}"));
    if text.contains("silent: no answer within") && wire.has_answer(budget) {
        story.violate("silence", format!("{name}: {text}, although it answers"));
    }
}

impl<S> Store for Noted<S>
where
    S: Store<Error: Into<BoxError>, Future: Send + 'static>,
{
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Decision, BoxError>> + Send>>;

    fn call(&self, op: Op<'_>, context: &Context<'_>) -> Answer<Self::Future> {
        let (wire, budget) = (self.wire.clone(), self.budget);
        let noted = move |answer: Result<Decision, S::Error>| {
            answer.map_err(Into::into).inspect_err(|error| note(&wire, budget, error))
        };
        match self.store.call(op, context) {
            Answer::Now(answer) => Answer::Now(noted(answer)),
            Answer::Later(later) => Answer::Later(Box::pin(async move { noted(later.await) })),
        }
    }

    fn undo(&self, charges: &[Charge<'_>], taken: &Decision, units: Option<u32>) {
        self.store.undo(charges, taken, units);
    }

    fn supports(&self, charges: &[Charge<'_>]) -> Result<(), Unsupported> {
        self.store.supports(charges)
    }

    fn failure_domains(&self, op: Op<'_>) -> Vec<FailureDomain> {
        self.store.failure_domains(op)
    }
}

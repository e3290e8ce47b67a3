//! The calls of a request: each is recorded, and compared with embedded accounts at its own instant.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{task_local, time::Instant};
use tower_sluice::{
    Algorithm, Decision, Key, Quota, Store, StoreExt,
    decision::Source,
    rule::RuleName,
    store::{Answer, Charge, Context, Op, Unsupported},
};

use super::{
    World,
    deployment::Deployment,
    exact::{Mirror, equal},
    lock,
    wrappers::Wrapped,
};

/// The longest time for which a deny cache repeats a denial.
const MAX_AGE: Duration = Duration::from_secs(1);

type Future = Pin<Box<dyn std::future::Future<Output = Result<Decision, Infallible>> + Send>>;

/// The instant of a script, and the clock of its server.
#[derive(Clone, Copy, Debug)]
pub struct Script {
    pub at: Instant,
    pub clock: Duration,
}

/// A call of a request to its store.
#[derive(Debug)]
pub struct Call {
    /// The rules and headrooms of the charges.
    pub asked: Vec<(RuleName, u32)>,
    pub decision: Decision,
    /// The last script of the servers, which is that of this call if a server has decided.
    script: Script,
    /// The instant of the answer.
    end: Instant,
}

impl Call {
    /// Returns `true` if the servers decided, now or in a denial that is repeated.
    pub fn is_by_servers(&self) -> bool {
        matches!(self.decision.source(), Source::Redis | Source::DenyCache)
    }
}

task_local! {
    /// The calls of the request that runs.
    static CALLS: Calls;
}

/// The calls of a request.
#[derive(Clone, Default)]
pub struct Calls(Arc<Mutex<Vec<Call>>>);

impl Calls {
    /// Runs a request, whose calls to [recorded](record) stores are added.
    pub async fn of<T>(&self, request: impl std::future::Future<Output = T>) -> T {
        CALLS.scope(self.clone(), request).await
    }

    pub fn take(&self) -> Vec<Call> {
        std::mem::take(&mut lock(&self.0))
    }
}

/// Returns a store that records its calls.
pub fn record(world: &World, store: Wrapped) -> Wrapped {
    Arc::new(Recorder { store, nodes: world.nodes.clone() })
}

struct Recorder {
    store: Wrapped,
    nodes: Arc<Deployment>,
}

impl Store for Recorder {
    type Error = Infallible;
    type Future = Future;

    fn call(&self, op: Op<'_>, context: &Context<'_>) -> Answer<Self::Future> {
        let answer = self.store.call(op, context);
        let Op::Take(charges) = op else { return answer };
        let Ok(calls) = CALLS.try_with(Clone::clone) else { return answer };
        let asked = charges.iter().map(|it| (it.rule, it.headroom)).collect();
        let nodes = self.nodes.clone();
        let note = move |decision: &Decision| {
            let (script, end) = (nodes.last_script(), Instant::now());
            lock(&calls.0).push(Call { asked, decision: decision.clone(), script, end });
        };
        match answer {
            Answer::Now(Ok(decision)) => {
                note(&decision);
                Answer::Now(Ok(decision))
            }
            Answer::Now(Err(error)) => match error {},
            Answer::Later(answer) => Answer::Later(Box::pin(async move {
                let Ok(decision) = answer.await;
                note(&decision);
                Ok(decision)
            })),
        }
    }

    fn undo(&self, charges: &[Charge<'_>], taken: &Decision, units: Option<u32>) {
        self.store.undo(charges, taken, units);
    }

    fn supports(&self, charges: &[Charge<'_>]) -> Result<(), Unsupported> {
        self.store.supports(charges)
    }
}

/// A denial by a server, which a deny cache may repeat.
struct Denial {
    place: usize,
    rule: RuleName,
    key: Key,
    quota: Quota,
    need: u32,
    wait: Duration,
    /// The instant of the answer, from which a cache computes waits.
    end: Instant,
}

impl Denial {
    /// Returns the wait for a need at an instant, if a cache repeats the denial for it.
    fn repeated(&self, need: u32, now: Instant) -> Option<Duration> {
        // A call starts before its answer.
        if need < self.need || now >= self.end + MAX_AGE {
            return None;
        }
        let is_gcra = self.quota.algorithm() == Algorithm::Gcra;
        if self.wait == Duration::MAX || is_gcra && need > self.quota.limit() {
            return Some(Duration::MAX);
        }
        let more = if is_gcra { need - self.need } else { 0 };
        Some((self.wait + self.quota.interval() * more).saturating_sub(now - self.end))
    }
}

/// Embedded accounts on the clock of a server.
pub struct Model {
    mirror: Mirror,
    last: Option<Script>,
    denials: Vec<Denial>,
}

impl Model {
    pub fn new() -> Self {
        Self { mirror: Mirror::new(), last: None, denials: Vec::new() }
    }

    /// Goes on to a script.
    pub fn reach(&mut self, script: Script) {
        self.mirror.go_on(script.clock);
        self.last = Some(script);
    }

    /// Goes on to an instant without a script.
    fn wait_until(&mut self, now: Instant) {
        let Some(last) = self.last else { return };
        self.reach(Script { at: now, clock: last.clock + (now - last.at) });
    }

    pub fn peek(&self, charge: Charge<'_>) -> Decision {
        self.mirror.store.peek(&[charge]).now()
    }

    /// Returns the units above `keeps` of a taken charge, or charges those below it.
    pub fn keep(&self, charge: Charge<'_>, taken: &Decision, keeps: u32) {
        if keeps < charge.cost {
            self.mirror.store.undo(&[charge], taken, Some(charge.cost - keeps));
        } else if keeps > charge.cost {
            drop(self.mirror.store.adjust(&charge, i64::from(keeps - charge.cost)).now());
        }
    }

    /// Compares a call with the same charges at its instant: a decision by a server must be equal, and
    /// a cached denial must be true, and have the wait of an earlier denial in the same process.
    ///
    /// # Errors
    ///
    /// Fails with the difference.
    pub fn check(
        &mut self,
        place: usize,
        charges: &[Charge<'_>],
        call: &Call,
    ) -> Result<Decision, String> {
        let asked: Vec<_> = charges.iter().map(|it| (it.rule, it.headroom)).collect();
        if asked != call.asked {
            return Err(format!("a call with {:?} instead of {asked:?}", call.asked));
        }
        match call.decision.source() {
            Source::Redis => self.check_script(place, charges, call),
            Source::DenyCache => self.check_cached(place, charges, call),
            other => Err(format!("a call decided by {other}")),
        }
    }

    fn check_script(
        &mut self,
        place: usize,
        charges: &[Charge<'_>],
        call: &Call,
    ) -> Result<Decision, String> {
        self.reach(call.script);
        let expected = equal(&call.decision, self.mirror.store.take(charges).now())?;
        if expected.is_allowed() {
            return Ok(expected);
        }
        for (charge, outcome) in charges.iter().zip(expected.outcomes()) {
            if outcome.is_denied() {
                self.denials.push(Denial {
                    place,
                    rule: charge.rule,
                    key: charge.key.clone(),
                    quota: charge.quotas[0],
                    need: charge.cost + charge.headroom,
                    wait: outcome.retry_after().unwrap_or(Duration::MAX),
                    end: call.end,
                });
            }
        }
        Ok(expected)
    }

    fn check_cached(
        &mut self,
        place: usize,
        charges: &[Charge<'_>],
        call: &Call,
    ) -> Result<Decision, String> {
        self.wait_until(call.end);
        let look = self.mirror.store.peek(charges).now();
        if look.is_allowed() || call.decision.is_allowed() {
            return Err(format!("a cached {:?} instead of {look:?}", call.decision));
        }
        for (charge, outcome) in charges.iter().zip(call.decision.outcomes()) {
            if !outcome.is_denied() {
                continue;
            }
            let wait = outcome.retry_after().unwrap_or(Duration::MAX);
            let need = charge.cost + charge.headroom;
            let is_its = |it: &&Denial| {
                it.place == place
                    && it.rule == charge.rule
                    && it.key == *charge.key
                    && it.quota == charge.quotas[0]
            };
            let mut waits =
                self.denials.iter().filter(is_its).filter_map(|it| it.repeated(need, call.end));
            if !waits.any(|it| it == wait) {
                return Err(format!("a cached wait of {wait:?} that no denial explains"));
            }
        }
        Ok(look)
    }
}

/// Returns the wait of a denial.
pub fn wait(denial: &Decision) -> Duration {
    denial.retry_after().unwrap_or(Duration::MAX)
}

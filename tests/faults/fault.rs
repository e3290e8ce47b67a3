//! Faults: what they do to the world, and what must hold all the same.

use std::{collections::BTreeMap, time::Duration};

use tokio::{runtime::Builder, time::Instant};

use crate::{
    app::App,
    judge,
    options::Options,
    panics,
    row::Row,
    servers::Server,
    stack::{Door, Policy},
    stage::{self, Ran},
};

/// What surrounds the apps, and what goes wrong with it.
pub(crate) trait World {
    /// Where the app of this number finds Redis.
    fn door(&self, app: usize) -> Door;

    /// Does what goes wrong. What goes wrong again and again does so until `end`.
    async fn strike(&mut self, apps: &[App], end: Instant);

    /// Puts it right again.
    async fn heal(&mut self);

    /// What this world has to say about it, after the load.
    async fn look(&mut self, ran: &Ran) -> Findings {
        let _ = ran;
        Findings::default()
    }

    /// Whether the fault is over when `strike` returns, not when its time is.
    fn ends_itself(&self) -> bool {
        false
    }

    /// Whether apps are processes of their own.
    fn has_processes(&self) -> bool {
        false
    }
}

/// What a world found out.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    pub(crate) notes: Vec<String>,
    pub(crate) broken: Vec<String>,
    /// Units above the limit that each key may have got beside what [`Must`] allows.
    pub(crate) allowance: BTreeMap<u16, u64>,
}

impl Findings {
    pub(crate) fn note(mut self, note: String) -> Self {
        self.notes.push(note);
        self
    }

    /// Breaks unless it `holds`.
    pub(crate) fn demand(mut self, holds: bool, what: String) -> Self {
        if !holds {
            self.broken.push(what);
        }
        self
    }
}

/// What must hold, beside what always must (see [`judge`]).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Must {
    /// Units above the limit that a key may get in any window at most; `None` where there is no
    /// bound.
    pub(crate) overshoot: Option<u64>,
    /// Within this time of the fault every breaker is open.
    pub(crate) open: Option<Duration>,
    /// Within this time of the repair every app has all its decisions from Redis again.
    pub(crate) recover: Option<Duration>,
    /// Kinds of errors that may be seen; none: Redis decides all.
    pub(crate) errors: &'static [&'static str],
    /// Whether there may be none all the same.
    pub(crate) may_pass: bool,
}

impl Must {
    /// Nobody notices: Redis decides everything, and no key gets above its limit.
    pub(crate) const UNNOTICED: Self =
        Self { overshoot: Some(0), open: None, recover: None, errors: &[], may_pass: true };

    /// The policy decides what Redis does not, until a second after it is back at most.
    pub(crate) const fn policy(overshoot: u64, errors: &'static [&'static str]) -> Self {
        let recover = Some(Duration::from_secs(1));
        Self { overshoot: Some(overshoot), open: None, recover, errors, may_pass: false }
    }

    /// And breakers are open soon.
    pub(crate) const fn opens(self, millis: u64) -> Self {
        Self { open: Some(Duration::from_millis(millis)), ..self }
    }

    pub(crate) const fn recovers(self, millis: u64) -> Self {
        Self { recover: Some(Duration::from_millis(millis)), ..self }
    }

    /// Nobody need notice.
    pub(crate) const fn may_pass(self) -> Self {
        Self { may_pass: true, ..self }
    }

    pub(crate) const fn overshoots(self, overshoot: Option<u64>) -> Self {
        Self { overshoot, ..self }
    }
}

/// One row of the table.
pub(crate) struct Fault {
    pub(crate) name: &'static str,
    pub(crate) holds: &'static str,
    must: Must,
    policy: Policy,
    /// Whether nothing else is played meanwhile.
    pub(crate) alone: bool,
    act: Box<dyn Fn(&Fault, &Options) -> Row + Send + Sync>,
}

impl Fault {
    /// A fault of the world that `make` makes.
    pub(crate) fn new<W, M>(name: &'static str, holds: &'static str, must: Must, make: M) -> Self
    where
        W: World,
        M: AsyncFn(&Options) -> W + Send + Sync + 'static,
    {
        let act = move |fault: &Self, options: &Options| {
            let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
            let (ran, found) = runtime.block_on(async {
                let mut world = make(options).await;
                let ran = stage::play(&mut world, fault.name, fault.policy, options).await;
                let found = world.look(&ran).await;
                (ran, found)
            });
            judge::judge(fault.name, fault.holds, &fault.must, &ran, found)
        };
        Self { name, holds, must, policy: Policy::Fallback, alone: false, act: Box::new(act) }
    }

    /// A fault that is played in another way.
    pub(crate) fn other(
        name: &'static str,
        holds: &'static str,
        play: impl AsyncFn(&Options, Row) -> Row + Send + Sync + 'static,
    ) -> Self {
        let act = move |fault: &Self, options: &Options| {
            let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(play(options, Row::new(fault.name, fault.holds)))
        };
        Self {
            name,
            holds,
            must: Must::UNNOTICED,
            policy: Policy::Fallback,
            alone: false,
            act: Box::new(act),
        }
    }

    /// A fault of one server: what is done to it, and what puts it right.
    pub(crate) fn of_server<S, H>(
        name: &'static str,
        holds: &'static str,
        must: Must,
        (strike, heal): (S, H),
    ) -> Self
    where
        S: AsyncFn(&mut Server, Instant) + Clone + Send + Sync + 'static,
        H: AsyncFn(&mut Server) + Clone + Send + Sync + 'static,
    {
        Self::new(name, holds, must, async move |options: &Options| OneServer {
            server: options.server().await,
            strike: strike.clone(),
            heal: heal.clone(),
        })
    }

    pub(crate) fn policy(self, policy: Policy) -> Self {
        Self { policy, ..self }
    }

    /// For what needs the whole machine.
    pub(crate) fn alone(self) -> Self {
        Self { alone: true, ..self }
    }

    /// Plays it on a thread of its name, so that panics are known as its own.
    pub(crate) fn play(&self, options: &Options) -> Row {
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name(self.name.to_owned());
            let act = thread.spawn_scoped(scope, || (self.act)(self, options));
            let row = act.expect("a thread").join();
            let mut row = row.unwrap_or_else(|_| Row::new(self.name, self.holds));
            row.broken
                .extend(panics::of(self.name).into_iter().map(|what| format!("panic: {what}")));
            row
        })
    }
}

/// The world of one server, to which all apps connect.
struct OneServer<S, H> {
    server: Server,
    strike: S,
    heal: H,
}

impl<S, H> World for OneServer<S, H>
where
    S: AsyncFn(&mut Server, Instant),
    H: AsyncFn(&mut Server),
{
    fn door(&self, _: usize) -> Door {
        Door::Server(self.server.url())
    }

    async fn strike(&mut self, _: &[App], end: Instant) {
        (self.strike)(&mut self.server, end).await;
    }

    async fn heal(&mut self) {
        (self.heal)(&mut self.server).await;
    }
}

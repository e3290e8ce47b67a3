//! Faults, and the requirements that must hold during them.

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

/// The environment of the apps, and its fault.
pub(crate) trait World {
    /// Returns the address of Redis for the app of this number.
    fn door(&self, app: usize) -> Door;

    /// Causes the fault. A repeated fault repeats until `end`.
    async fn strike(&mut self, apps: &[App], end: Instant);

    /// Repairs the fault.
    async fn heal(&mut self);

    /// Returns the findings of this world, after the load.
    async fn look(&mut self, ran: &Ran) -> Findings {
        let _ = ran;
        Findings::default()
    }

    /// Returns `true` if the fault is over when `strike` returns, not at the end of its time.
    fn ends_itself(&self) -> bool {
        false
    }

    /// Returns `true` if apps are separate processes.
    fn has_processes(&self) -> bool {
        false
    }
}

/// The findings of a world.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    pub(crate) notes: Vec<String>,
    pub(crate) broken: Vec<String>,
    /// The units above the limit that each key may have received, in addition to [`Must`].
    pub(crate) allowance: BTreeMap<u16, u64>,
}

impl Findings {
    pub(crate) fn note(mut self, note: String) -> Self {
        self.notes.push(note);
        self
    }

    /// Fails the row unless the condition holds.
    pub(crate) fn demand(mut self, holds: bool, what: String) -> Self {
        if !holds {
            self.broken.push(what);
        }
        self
    }
}

/// The requirements of a fault, in addition to those of every fault (see [`judge`]).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Must {
    /// The most units above the limit that a key may receive in any window. `None` if there is no
    /// bound.
    pub(crate) overshoot: Option<u64>,
    /// The time after the fault within which every breaker is open.
    pub(crate) open: Option<Duration>,
    /// The time after the repair within which Redis makes all decisions again.
    pub(crate) recover: Option<Duration>,
    /// The permitted kinds of errors. With none, Redis decides all.
    pub(crate) errors: &'static [&'static str],
    /// `true` if the fault may cause no error.
    pub(crate) may_pass: bool,
}

impl Must {
    /// The fault has no effect: Redis decides everything, within the limits.
    pub(crate) const UNNOTICED: Self =
        Self { overshoot: Some(0), open: None, recover: None, errors: &[], may_pass: true };

    /// The policy decides instead of Redis, until at most a second after Redis is back.
    pub(crate) const fn policy(overshoot: u64, errors: &'static [&'static str]) -> Self {
        let recover = Some(Duration::from_secs(1));
        Self { overshoot: Some(overshoot), open: None, recover, errors, may_pass: false }
    }

    /// Also requires breakers to open soon.
    pub(crate) const fn opens(self, millis: u64) -> Self {
        Self { open: Some(Duration::from_millis(millis)), ..self }
    }

    /// Permits the fault to have no effect.
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
    /// `true` if no other fault runs at the same time.
    pub(crate) alone: bool,
    act: Box<dyn Fn(&Fault, &Options) -> Row + Send + Sync>,
}

impl Fault {
    /// Creates a fault of the world that `make` makes.
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

    /// Creates a fault that runs in another way.
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

    /// Creates a fault of one server, from its cause and its repair.
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

    /// Marks a fault that needs the whole machine.
    pub(crate) fn alone(self) -> Self {
        Self { alone: true, ..self }
    }

    /// Runs the fault on a thread of its name, so that its panics are attributed to it.
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

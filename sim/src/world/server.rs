//! The node as a process: it runs, pauses, is slow, dies and starts again.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::{Mutex as Turns, watch},
    task::AbortHandle,
    time::{Instant, sleep},
};

use crate::node::{Mutant, Node, Reply, Request, Session};

/// A node that can fail.
pub struct Server {
    node: Mutex<Node>,
    state: Mutex<State>,
    pause: watch::Sender<bool>,
    /// One command after another.
    turn: Turns<()>,
    start: Instant,
}

struct State {
    runs: bool,
    /// The time of each command.
    work: Duration,
    /// The Unix time at the start, and the steps of the clock since then, in microseconds.
    epoch: i64,
    connections: Vec<AbortHandle>,
    /// The clock at the last script.
    last_script: Duration,
    commands: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Server {
    pub fn new(epoch: i64, mutant: Option<&'static Mutant>) -> Arc<Self> {
        let state = State {
            runs: true,
            work: Duration::ZERO,
            epoch,
            connections: Vec::new(),
            last_script: Duration::ZERO,
            commands: 0,
        };
        Arc::new(Self {
            node: Mutex::new(Node::new(mutant)),
            state: Mutex::new(state),
            pause: watch::Sender::new(false),
            turn: Turns::new(()),
            start: Instant::now(),
        })
    }

    pub fn runs(&self) -> bool {
        lock(&self.state).runs
    }

    pub fn connected(&self, connection: AbortHandle) {
        let mut state = lock(&self.state);
        state.connections.retain(|task| !task.is_finished());
        state.connections.push(connection);
    }

    /// Returns the node's clock.
    pub fn clock(&self) -> Duration {
        Duration::from_micros(u64::try_from(self.micros()).unwrap_or(0))
    }

    fn micros(&self) -> i64 {
        let elapsed = i64::try_from(self.start.elapsed().as_micros()).unwrap_or(i64::MAX);
        lock(&self.state).epoch + elapsed
    }

    /// Returns the node's clock at the last script.
    pub fn last_script(&self) -> Duration {
        lock(&self.state).last_script
    }

    pub fn commands(&self) -> u64 {
        lock(&self.state).commands
    }

    /// Runs one command, after those before it.
    pub async fn run(&self, session: &mut Session, request: &Request) -> Reply {
        let _turn = self.turn.lock().await;
        drop(self.pause.subscribe().wait_for(|paused| !paused).await);
        let work = lock(&self.state).work;
        if !work.is_zero() {
            sleep(work).await;
        }
        let mut node = lock(&self.node);
        node.set_clock(self.micros());
        let reply = node.run(session, request);
        let clock = self.clock();
        let mut state = lock(&self.state);
        state.commands += 1;
        if request[0].starts_with(b"EVAL") {
            state.last_script = clock;
        }
        reply
    }

    /// Ends the process. `loses` says that its keys were in memory only.
    pub fn kill(&self, loses: bool) {
        let mut node = lock(&self.node);
        if loses {
            node.lose();
        }
        node.forget_scripts();
        let mut state = lock(&self.state);
        state.runs = false;
        state.connections.drain(..).for_each(|task| task.abort());
    }

    pub fn start(&self) {
        lock(&self.state).runs = true;
    }

    pub fn pause(&self, paused: bool) {
        self.pause.send_replace(paused);
    }

    pub fn set_work(&self, work: Duration) {
        lock(&self.state).work = work;
    }

    pub fn step_clock(&self, micros: i64) {
        lock(&self.state).epoch += micros;
    }

    /// Changes the node directly.
    pub fn change<T>(&self, change: impl FnOnce(&mut Node) -> T) -> T {
        let mut node = lock(&self.node);
        node.set_clock(self.micros());
        change(&mut node)
    }
}

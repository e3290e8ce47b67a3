//! A server: it runs, pauses, is slow, dies and starts again, and follows or leads another.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    sync::{Mutex as Turns, watch},
    task::AbortHandle,
    time::{Instant, sleep},
};

use super::{
    calls::Script,
    hash_slots::{self, HashSlots},
    lock,
};
use crate::node::{Changes, Node, Reply, Request, Session};

/// A server that can fail.
pub struct Server {
    pub index: usize,
    node: Mutex<Node>,
    state: Mutex<State>,
    pause: watch::Sender<bool>,
    /// One command after another.
    turn: Turns<()>,
    start: Instant,
    /// The view of the cluster, or `None` outside of one.
    view: Mutex<Option<Arc<Mutex<HashSlots>>>>,
}

struct State {
    /// The faults that keep the server from running.
    deaths: u32,
    /// The time of each command.
    work: Duration,
    /// The Unix time at the start, and the steps of the clock since then, in microseconds.
    epoch: i64,
    connections: Vec<AbortHandle>,
    last_script: Script,
    commands: u64,
    scripts: u64,
    /// The server's clock at each script that ran to its end.
    clocks: Vec<Duration>,
    /// The server that follows this one, and the time by which it is behind.
    replica: Option<(Arc<Server>, Duration)>,
    /// Changes that the replica does not have yet.
    backlog: VecDeque<(Instant, Changes)>,
}

impl Server {
    pub fn new(index: usize, epoch: i64, view: Option<Arc<Mutex<HashSlots>>>) -> Arc<Self> {
        let node = Node::default();
        let state = State {
            deaths: 0,
            work: Duration::ZERO,
            epoch,
            connections: Vec::new(),
            last_script: Script { at: Instant::now(), clock: Duration::ZERO },
            commands: 0,
            scripts: 0,
            clocks: Vec::new(),
            replica: None,
            backlog: VecDeque::new(),
        };
        Arc::new(Self {
            index,
            node: Mutex::new(node),
            state: Mutex::new(state),
            pause: watch::Sender::new(false),
            turn: Turns::new(()),
            start: Instant::now(),
            view: Mutex::new(view),
        })
    }

    pub fn runs(&self) -> bool {
        lock(&self.state).deaths == 0
    }

    pub fn connected(&self, connection: AbortHandle) {
        let mut state = lock(&self.state);
        state.connections.retain(|task| !task.is_finished());
        state.connections.push(connection);
    }

    /// Returns the server's clock.
    pub fn clock(&self) -> Duration {
        Duration::from_micros(u64::try_from(self.micros()).unwrap_or(0))
    }

    fn micros(&self) -> i64 {
        let elapsed = i64::try_from(self.start.elapsed().as_micros()).unwrap_or(i64::MAX);
        lock(&self.state).epoch + elapsed
    }

    pub fn last_script(&self) -> Script {
        lock(&self.state).last_script
    }

    pub fn commands(&self) -> u64 {
        lock(&self.state).commands
    }

    pub fn scripts(&self) -> u64 {
        lock(&self.state).scripts
    }

    /// Returns the clock at each script since the last call.
    pub fn take_clocks(&self) -> Vec<Duration> {
        std::mem::take(&mut lock(&self.state).clocks)
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
        let asking = std::mem::take(&mut session.asking);
        let reply = match self.redirect(&node, request, asking) {
            Some(reply) => reply,
            None => node.run(session, request),
        };
        let changes = node.changes();
        drop(node);
        let clock = self.clock();
        let mut state = lock(&self.state);
        state.commands += 1;
        // Processes that register do so in the background.
        let registers = request.get(3).is_some_and(|key| key.ends_with(b":instances"));
        if request[0].starts_with(b"EVAL") && !registers {
            state.last_script = Script { at: Instant::now(), clock };
            // The client repeats a script that the server does not have, or not any more.
            if !matches!(reply, Reply::Error(_)) {
                state.scripts += 1;
                state.clocks.push(clock);
            }
        }
        state.send(changes);
        reply
    }

    fn redirect(&self, node: &Node, request: &Request, asking: bool) -> Option<Reply> {
        let view = lock(&self.view);
        let hash_slots = lock(view.as_ref()?);
        if request[0].eq_ignore_ascii_case(b"cluster") {
            return Some(hash_slots.reply());
        }
        hash_slots.redirect(self.index, hash_slots::keys(request), asking, |key| node.has(key))
    }

    /// Ends the process. `loses` says that its keys were in memory only.
    pub fn kill(&self, loses: bool) {
        if loses {
            self.change(Node::lose);
        }
        lock(&self.node).forget_scripts();
        lock(&self.state).deaths += 1;
        self.disconnect();
    }

    pub fn start(&self) {
        lock(&self.state).deaths -= 1;
    }

    pub fn disconnect(&self) {
        lock(&self.state).connections.drain(..).for_each(|task| task.abort());
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
        let result = change(&mut node);
        let changes = node.changes();
        drop(node);
        lock(&self.state).send(changes);
        result
    }

    /// Makes `other` a copy of this server that follows it.
    pub fn lead(&self, other: &Arc<Self>, lag: Duration) {
        lock(&other.state).replica = None;
        other.change(|node| {
            node.copy(&lock(&self.node));
            node.set_read_only(true);
        });
        let mut state = lock(&self.state);
        state.replica = Some((other.clone(), lag));
        state.backlog.clear();
    }

    /// Ends the replication from this server. The replica lacks the changes of the last moment.
    pub fn isolate(&self) {
        let mut state = lock(&self.state);
        state.send(Changes::new());
        state.replica = None;
        state.backlog.clear();
        let mut view = lock(&self.view);
        // The last view of a server that hears of no others.
        *view = view.take().map(|shared| Arc::new(Mutex::new(lock(&shared).clone())));
    }

    /// Sets the view of the cluster.
    pub fn join(&self, view: Option<Arc<Mutex<HashSlots>>>) {
        *lock(&self.view) = view;
    }
}

impl State {
    /// Sends changes to the replica, and those that have waited for as long as it is behind.
    fn send(&mut self, changes: Changes) {
        let Some((replica, lag)) = &self.replica else { return };
        let now = Instant::now();
        if !changes.is_empty() {
            self.backlog.push_back((now + *lag, changes));
        }
        while self.backlog.front().is_some_and(|(due, _)| *due <= now) {
            let (_, changes) = self.backlog.pop_front().unwrap_or((now, Changes::new()));
            lock(&replica.node).apply(changes);
        }
    }
}

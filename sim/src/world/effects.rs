//! The effects of a fault on the running system, from its start to its end.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep};

use super::{
    DELAY, LEASE, LONGEST, World,
    deployment::STALE,
    faults::{Fault, Trouble},
    hash_slots::Moving,
    lock,
    oracle::{Cause, Loss},
    process::Process,
    server::Server,
};
use crate::random::Random;

impl World {
    /// Waits, and runs one fault from its begin to its end.
    pub(super) async fn fault(self: Arc<Self>, mut random: Random) {
        let fault = Fault::random(&mut random, self.places.len(), &self.nodes);
        sleep(Duration::from_millis(random.within(0..8_000))).await;
        let (from, length) = (self.story.now(), Duration::from_millis(random.within(20..3_000)));
        match fault {
            Fault::Failover { shard, dies, lag } => {
                return self.fail_over(fault, shard, dies, lag, length, &mut random).await;
            }
            Fault::Move => return self.move_slot(length, &mut random).await,
            _ => {}
        }
        self.story.record("fault", || format!("begins: {fault}"));
        let shard = if let Fault::Server { shard, .. } = fault { shard } else { 0 };
        let server = self.nodes.primary(shard).clone();
        self.begin(fault, &server, &mut random);
        if !fault.is_instant() {
            sleep(length).await;
            self.end(fault, &server, from);
            self.story.record("fault", || format!("ends: {fault}"));
        }
        if let Some(cause) = fault.loss() {
            self.lose(from, from + LEASE, cause);
        }
    }

    pub(super) fn kill(&self, process: usize) {
        self.places[process].process().kill();
        self.places[process].client.wire.cut();
    }

    pub(super) fn restart(&self, process: usize) {
        let place = &self.places[process];
        // Another fault may have started the process before, or paused it.
        place.process().kill();
        let new = Process::new(&place.wrappers, self.count(), &self.rules, place.client.clone());
        *lock(&place.process) = Arc::new(new);
    }

    fn lose(&self, from: Duration, to: Duration, cause: Cause) {
        lock(&self.log).losses.push(Loss { from, to, cause });
    }

    fn begin(&self, fault: Fault, server: &Arc<Server>, random: &mut Random) {
        match fault {
            Fault::Server { kind, .. } => trouble(kind, server, random),
            Fault::Clock(micros) => {
                lock(&self.log).back += Duration::from_micros(micros.min(0).unsigned_abs());
                self.nodes.all().iter().for_each(|server| server.step_clock(micros));
            }
            Fault::Partition { process, up, down } => {
                self.places[process].client.wire.change(|path| {
                    path.up &= !up;
                    path.down &= !down;
                });
            }
            Fault::Delay { process, most } => {
                self.places[process].client.wire.change(|path| path.delay = (DELAY.0, most));
            }
            Fault::Repeat { process } => {
                lock(&self.log).repeats = true;
                self.places[process].client.wire.change(|path| path.repeats = true);
            }
            Fault::Silence { process } => {
                lock(&self.log).silenced.push(process);
                let wire = &self.places[process].client.wire;
                wire.change(|path| path.silent_before = Some(Instant::now()));
            }
            Fault::Reset { process } => self.places[process].client.wire.cut(),
            Fault::Pause { process } => {
                *lock(&self.places[process].disturbed) = LONGEST;
                self.places[process].process().pause(true);
            }
            Fault::Restart { process } => {
                *lock(&self.places[process].disturbed) = LONGEST;
                self.kill(process);
            }
            Fault::Failover { .. } | Fault::Move => {}
        }
    }

    fn end(&self, fault: Fault, server: &Arc<Server>, from: Duration) {
        match fault {
            Fault::Server { kind, .. } => heal(kind, server),
            Fault::Partition { process, .. } => {
                self.places[process].client.wire.change(|path| (path.up, path.down) = (true, true));
            }
            Fault::Delay { process, .. } => {
                self.places[process].client.wire.change(|path| path.delay = DELAY);
            }
            Fault::Repeat { process } => {
                self.places[process].client.wire.change(|path| path.repeats = false);
                // Units that a process gives back by itself come back twice.
                self.lose(from, self.story.now() + LEASE, Cause::State);
            }
            Fault::Pause { process } => {
                let (place, now) = (&self.places[process], self.story.now());
                *lock(&place.disturbed) = now;
                place.process().pause(false);
                // The process does not know how old its leases are.
                if place.wrappers.leases.is_some() {
                    self.lose(now, now + LEASE, Cause::State);
                }
            }
            Fault::Restart { process } => {
                self.restart(process);
                let now = self.story.now();
                *lock(&self.places[process].disturbed) = now;
                let loss = Loss { from: now, to: now, cause: Cause::State };
                lock(&self.log).restarts.push((process, loss));
            }
            _ => {}
        }
    }

    /// Promotes the replica of a shard after some time. The writes that it lacks are lost.
    async fn fail_over(
        &self,
        fault: Fault,
        shard: usize,
        dies: bool,
        lag: Duration,
        length: Duration,
        random: &mut Random,
    ) {
        let from = self.story.now();
        if self.nodes.begin_failover(shard, dies).is_none() {
            return;
        }
        self.story.record("fault", || format!("begins: {fault}"));
        sleep(Duration::from_millis(random.within(100..1_500))).await;
        let old = self.nodes.primary(shard).clock();
        let new = self.nodes.promote(shard).clone();
        let promoted = self.story.now();
        self.story.record("fault", || format!("server {} is the primary now", new.index));
        sleep(length).await;
        self.nodes.end_failover(shard, dies, lag);
        self.lose(from, promoted + LEASE, Cause::State);
        if !dies {
            self.lose(promoted, self.story.now(), Cause::Split);
        }
        sleep(STALE).await;
        self.story.record("fault", || format!("ends: {fault}"));
        // The clocks of the servers may differ.
        if new.clock() != old {
            self.lose(from, promoted + LEASE, Cause::Forward);
        }
    }

    /// Moves the keys of a hash slot to another server, one at a time.
    async fn move_slot(&self, length: Duration, random: &mut Random) {
        let Some(moving) = self.nodes.begin_move(random) else { return };
        self.story.record("fault", || {
            let Moving { hash_slot, from, to } = moving;
            format!("begins: hash slot {hash_slot} moves from shard {from} to {to}")
        });
        sleep(length / 3).await;
        self.nodes.move_key(moving);
        sleep(length / 3).await;
        self.nodes.end_move(moving);
        self.story.record("fault", || format!("ends: hash slot {} moved", moving.hash_slot));
    }
}

fn trouble(kind: Trouble, server: &Arc<Server>, random: &mut Random) {
    match kind {
        Trouble::Kill { loses } => server.kill(loses),
        Trouble::Freeze => server.pause(true),
        Trouble::Slow(work) => server.set_work(work),
        Trouble::Full => server.change(|node| node.set_full(true)),
        Trouble::Flush => server.change(|node| node.lose()),
        Trouble::Evict => {
            let keys = server.change(|node| node.keys());
            if !keys.is_empty() {
                server.change(|node| node.evict(random.pick::<Vec<u8>>(&keys)));
            }
        }
        Trouble::ScriptFlush => server.change(|node| node.forget_scripts()),
    }
}

fn heal(kind: Trouble, server: &Arc<Server>) {
    match kind {
        Trouble::Kill { .. } => server.start(),
        Trouble::Freeze => server.pause(false),
        Trouble::Slow(_) => server.set_work(Duration::ZERO),
        Trouble::Full => server.change(|node| node.set_full(false)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::time::timeout;

    use super::*;
    use crate::world::Topic;

    #[tokio::test(start_paused = true)]
    async fn a_restart_ends_the_process_of_a_restart_that_overlaps() {
        let mut random = Random::new(0);
        let world = World::new(&mut random, false, Topic::Requests);
        let server = world.nodes.primary(0).clone();
        let (restart, pause) = (Fault::Restart { process: 0 }, Fault::Pause { process: 0 });
        world.begin(restart, &server, &mut random);
        world.begin(restart, &server, &mut random);
        world.end(restart, &server, Duration::ZERO);
        let replaced = world.places[0].process();
        world.begin(pause, &server, &mut random);
        world.end(restart, &server, Duration::ZERO);
        let call = timeout(Duration::from_secs(1), replaced.run(pending::<()>()));
        assert_eq!(call.await, Ok(None));
        assert_eq!(world.places[0].process().run(async { 1 }).await, Some(1));
    }
}

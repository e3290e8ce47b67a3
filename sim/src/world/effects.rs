//! The effects of a fault on the running system, from its start to its end.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep, sleep_until};

use super::{
    DELAY, LEASE, LONGEST, World,
    faults::Fault,
    lock,
    oracle::{Cause, Loss},
    process::Process,
};
use crate::random::Random;

impl World {
    /// Waits, and runs one fault from its begin to its end.
    pub(super) async fn fault(self: Arc<Self>, mut random: Random) {
        let fault = Fault::random(&mut random, self.places.len());
        sleep(Duration::from_millis(random.within(0..8_000))).await;
        self.story.record("fault", || format!("begins: {fault}"));
        let from = self.story.now();
        self.begin(fault, &mut random);
        if !fault.is_instant() {
            let end = Instant::now() + Duration::from_millis(random.within(20..3_000));
            sleep_until(end).await;
            self.end(fault);
            self.story.record("fault", || format!("ends: {fault}"));
        }
        if let Some(cause) = fault.loss() {
            lock(&self.log).losses.push(Loss { from, to: from + LEASE, cause });
        }
    }

    fn begin(&self, fault: Fault, random: &mut Random) {
        match fault {
            Fault::Kill { loses } => self.server.kill(loses),
            Fault::Freeze => self.server.pause(true),
            Fault::Slow(work) => self.server.set_work(work),
            Fault::Flush => self.server.change(|node| node.lose()),
            Fault::Evict => {
                let keys = self.server.change(|node| node.keys());
                if !keys.is_empty() {
                    self.server.change(|node| node.evict(random.pick::<Vec<u8>>(&keys)));
                }
            }
            Fault::ScriptFlush => self.server.change(|node| node.forget_scripts()),
            Fault::Clock(micros) => self.server.step_clock(micros),
            Fault::Full => self.server.change(|node| node.set_full(true)),
            Fault::Partition { process, up, down } => {
                self.places[process].wire.change(|path| {
                    path.up &= !up;
                    path.down &= !down;
                });
            }
            Fault::Delay { process, most } => {
                self.places[process].wire.change(|path| path.delay = (DELAY.0, most));
            }
            Fault::Reset { process } => self.places[process].wire.cut(),
            Fault::Pause { process } => {
                *lock(&self.places[process].disturbed) = LONGEST;
                self.places[process].process().pause(true);
            }
            Fault::Restart { process } => {
                *lock(&self.places[process].disturbed) = LONGEST;
                self.places[process].process().kill();
                self.places[process].wire.cut();
            }
        }
    }

    fn end(&self, fault: Fault) {
        match fault {
            Fault::Kill { .. } => self.server.start(),
            Fault::Freeze => self.server.pause(false),
            Fault::Slow(_) => self.server.set_work(Duration::ZERO),
            Fault::Full => self.server.change(|node| node.set_full(false)),
            Fault::Partition { process, .. } => {
                self.places[process].wire.change(|path| (path.up, path.down) = (true, true));
            }
            Fault::Delay { process, .. } => {
                self.places[process].wire.change(|path| path.delay = DELAY);
            }
            Fault::Pause { process } => {
                let (place, now) = (&self.places[process], self.story.now());
                *lock(&place.disturbed) = now;
                place.process().pause(false);
                // The process does not know how old its leases are.
                if place.wrappers.leases.is_some() {
                    lock(&self.log).losses.push(Loss {
                        from: now,
                        to: now + LEASE,
                        cause: Cause::State,
                    });
                }
            }
            Fault::Restart { process } => {
                let place = &self.places[process];
                let count = u32::try_from(self.places.len()).expect("few");
                let new =
                    Process::new(&place.wrappers, count, &self.rules, &place.wire, &self.server);
                *lock(&place.process) = Arc::new(new);
                let now = self.story.now();
                *lock(&place.disturbed) = now;
                lock(&self.log)
                    .restarts
                    .push((process, Loss { from: now, to: now, cause: Cause::State }));
            }
            _ => {}
        }
    }
}

//! Records threads that use some accounts at random.

use std::{
    hint, iter,
    sync::atomic::{AtomicU64, Ordering::SeqCst},
    thread,
    time::Duration,
};

use tower_sluice::{
    Decision, Key, LocalStore, Quota, Store, StoreExt, rule::RuleName, store::Charge,
    testing::FakeClock,
};

use super::checker::{Call, Operation, Said, Waits};

/// Half of a set of slots. The other half is for keys that come and go.
pub(crate) const KEYS: usize = 8;
const ROUNDS: usize = 3;
const CALLS: usize = 5;

pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).expect("no more than years")
}

/// The source of the time of a store.
#[derive(Clone, Debug)]
pub(crate) enum Time {
    /// Real time passes; a history is much shorter than an interval.
    Real,
    Still,
    /// This clock advances between rounds of calls.
    Rounds(FakeClock),
    /// This clock also advances during calls, by half an interval at a time.
    Ticking(FakeClock),
}

/// Records the calls of threads to the accounts of `store`.
pub(crate) struct Recorder {
    pub(crate) store: LocalStore,
    pub(crate) quota: Quota,
    pub(crate) time: Time,
    pub(crate) seed: u64,
}

impl Recorder {
    /// Returns the history of each account, with two, three or four threads.
    pub(crate) fn histories(&self) -> Vec<Vec<Operation>> {
        let meeting = SpinBarrier::new(2 + self.seed % 3);
        let work = |thread: u64| {
            let (random, kept) = (Random(self.seed << 8 | thread), Default::default());
            let seen = Default::default();
            Worker { recorder: self, meeting: &meeting, random, kept, seen }.run(thread == 0)
        };
        let mut histories = vec![Vec::new(); KEYS];
        thread::scope(|scope| {
            let work = &work;
            let threads = (0..meeting.threads).map(|n| scope.spawn(move || work(n)));
            for thread in threads.collect::<Vec<_>>() {
                for (history, seen) in iter::zip(&mut histories, thread.join().expect("no panic")) {
                    history.extend(seen);
                }
            }
        });
        histories
    }

    fn step(&self) -> Duration {
        self.quota.interval() / 2
    }

    fn now(&self) -> u64 {
        match &self.time {
            Time::Real | Time::Still => 0,
            Time::Rounds(clock) | Time::Ticking(clock) => nanos(clock.now()),
        }
    }

    fn said(&self, decision: &Decision) -> Said {
        let outcome = &decision.outcomes()[0];
        let retry =
            if decision.is_allowed() { Some(Duration::ZERO) } else { outcome.retry_after() };
        let waits = Waits { full: nanos(outcome.reset_after()), retry: retry.map(nanos) };
        let said = Said {
            allowed: decision.is_allowed(),
            remaining: outcome.remaining().into(),
            waits: None,
        };
        match self.time {
            Time::Real => self.rounded(said, waits),
            Time::Still => said,
            Time::Rounds(_) | Time::Ticking(_) => Said { waits: Some(waits), ..said },
        }
    }

    /// Rounds the result of a thread that read the time and was overtaken. It is some nanoseconds
    /// behind the stored state, and finds that much more debt.
    fn rounded(&self, said: Said, waits: Waits) -> Said {
        let interval = nanos(self.quota.interval());
        let owed = (waits.full + interval / 2) / interval;
        let limit = u64::from(self.quota.limit());
        Said { remaining: limit.saturating_sub(owed), ..said }
    }
}

/// A barrier at which threads wait without sleeping.
struct SpinBarrier {
    threads: u64,
    came: AtomicU64,
    /// Counter that orders the starts and ends of calls.
    moment: AtomicU64,
}

impl SpinBarrier {
    fn new(threads: u64) -> Self {
        Self { threads, came: AtomicU64::new(0), moment: AtomicU64::new(0) }
    }

    fn wait(&self) {
        let came = self.came.fetch_add(1, SeqCst);
        let all = (came / self.threads + 1) * self.threads;
        for tries in 0.. {
            if self.came.load(SeqCst) >= all {
                break;
            }
            if tries % 64 == 63 { thread::yield_now() } else { hint::spin_loop() }
        }
    }
}

/// A charge that can be undone: its units and its receipt.
type Kept = (u32, u64, Decision);

struct Worker<'a> {
    recorder: &'a Recorder,
    meeting: &'a SpinBarrier,
    random: Random,
    kept: [Vec<Kept>; KEYS],
    seen: [Vec<Operation>; KEYS],
}

impl Worker<'_> {
    fn run(mut self, moves_time: bool) -> [Vec<Operation>; KEYS] {
        for _ in 0..ROUNDS {
            for key in 0..KEYS {
                self.meeting.wait();
                for _ in 0..CALLS {
                    self.time_passes();
                    self.call(key);
                }
            }
            self.meeting.wait();
            if let (true, Time::Rounds(clock)) = (moves_time, &self.recorder.time) {
                let steps = u32::try_from(self.random.below(7)).expect("few");
                clock.advance(self.recorder.step() * steps);
            }
        }
        self.seen
    }

    /// Advances time. Other keys have short debts in this set, so that slots are released and
    /// claimed.
    fn time_passes(&mut self) {
        let Recorder { store, time, .. } = self.recorder;
        let Time::Ticking(clock) = time else { return };
        if self.random.below(3) == 0 {
            clock.advance(self.recorder.step());
        }
        let other = Key::from(1_000 + self.random.below(KEYS as u64));
        let short = Quota::new(1, self.recorder.step() / 2).expect("a quota");
        drop(store.take(&[Charge::new(RuleName::default(), &other, short.as_ref())]));
    }

    fn call(&mut self, key: usize) {
        let cost = u32::try_from(self.random.below(3)).expect("few");
        // a reset also voids receipts of other accounts, which is not part of the order of one
        // account
        let resets = self.recorder.seed.is_multiple_of(2);
        match self.random.below(12) {
            0 if resets => self.ask(key, Call::Reset),
            1 => self.ask(key, Call::Adjustment(1)),
            2 => self.ask(key, Call::Adjustment(-2)),
            3 => self.ask(key, Call::Take(9)),
            4 | 5 if !resets => match self.kept[key].pop() {
                Some(kept) => self.undo(key, kept),
                None => self.ask(key, Call::Take(1)),
            },
            _ => self.ask(key, Call::Take(cost)),
        }
    }

    fn undo(&mut self, key: usize, (units, receipt, taken): Kept) {
        let call = Call::Undo { units, receipt };
        let (_, operation) = self.timed(key, call, |store, charge| {
            store.undo(&[charge.with_cost(units)], &taken, None);
            taken
        });
        self.seen[key].push(Operation { said: None, ..operation });
    }

    fn ask(&mut self, key: usize, call: Call) {
        let (decision, mut operation) = self.timed(key, call, |store, charge| match call {
            Call::Take(units) => store.take(&[charge.with_cost(units)]).now(),
            Call::Adjustment(units) => store.adjust(&charge, -units).now(),
            Call::Reset | Call::Undo { .. } => store.reset(&charge).now(),
        });
        if let Call::Take(units @ 1..) = call {
            let last_unit = Said { allowed: true, remaining: units.into(), waits: None };
            if !decision.is_allowed() && operation.said == Some(last_unit) {
                operation.call = Call::Take(0);
            }
            // a charge at an unknown instant has no known receipt
            let known = !matches!(self.recorder.time, Time::Real);
            if let ([now], true, true) =
                (operation.instants.as_slice(), known, decision.is_allowed())
            {
                let receipt = now + nanos(decision.outcomes()[0].reset_after());
                self.kept[key].push((units, receipt, decision));
            }
        }
        self.seen[key].push(operation);
    }

    fn timed(
        &self,
        key: usize,
        call: Call,
        act: impl FnOnce(&LocalStore, Charge<'_>) -> Decision,
    ) -> (Decision, Operation) {
        let Self { recorder, meeting, .. } = self;
        let key = Key::from(key as u64);
        let charge = Charge::new(RuleName::default(), &key, recorder.quota.as_ref());
        let start = meeting.moment.fetch_add(1, SeqCst);
        let first = recorder.now();
        let decision = act(&recorder.store, charge);
        let last = recorder.now();
        let end = meeting.moment.fetch_add(1, SeqCst);
        let step = usize::try_from(nanos(recorder.step())).expect("64 bits");
        let instants = (first..=last).step_by(step).collect();
        let said = Some(recorder.said(&decision));
        (decision, Operation { start, end, instants, call, said })
    }
}

/// Random numbers with a fixed seed.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        let Self(state) = self;
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (*state >> 33) % n
    }
}

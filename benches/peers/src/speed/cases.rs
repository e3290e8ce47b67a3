//! The cases: the keys of the requests, and the cost beyond the bare service, in short alternating
//! rounds. On a noisy machine, only numbers of one moment are comparable.

use std::{
    hint::spin_loop,
    iter::repeat_with,
    net::{Ipv4Addr, SocketAddr},
    num::NonZero,
    sync::atomic::{
        AtomicUsize,
        Ordering::{AcqRel, Acquire},
    },
    thread,
};

use axum::{body::Body, extract::ConnectInfo};
use http::Request;
use rand::{Rng, SeedableRng, rngs::SmallRng};
use rand_distr::{Distribution, Zipf};
#[cfg(target_os = "linux")]
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::subject::{Limit, Runner, Served, Setup, Subject};

/// Consecutive requests of a thread before the next subject's turn.
const BATCH: usize = 5_000;
/// Requests that are created, and then measured, together.
const PART: usize = 100;
const MANY: u32 = 100_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keys {
    One,
    Uniform,
    Zipf,
    /// Keys that no request had before.
    New,
    /// One key per thread.
    OneEach,
}

#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub title: &'static str,
    pub keys: Keys,
    pub setup: Setup,
    subjects: &'static [Subject],
}

impl Case {
    const fn new(title: &'static str, keys: Keys, setup: Setup) -> Self {
        Self { title, keys, setup, subjects: &Subject::ALL }
    }

    /// Measures these subjects only. The tables of all would not fit into a cache together.
    const fn among(self, subjects: &'static [Subject]) -> Self {
        Self { subjects, ..self }
    }
}

const ADMITTED: Setup = Setup::new(Limit::Ample);

pub const CASES: [Case; 12] = [
    Case::new("one hot key, admitted", Keys::One, ADMITTED),
    Case::new("one hot key, a clone of the service per request", Keys::One, ADMITTED.cloned()),
    Case::new("one hot key, five fields in the response", Keys::One, ADMITTED.with_fields()),
    Case::new("one hot key, denied", Keys::One, Setup::new(Limit::One)),
    Case::new("100 000 keys, uniform", Keys::Uniform, ADMITTED).among(&Subject::FAST),
    Case::new("100 000 keys, zipf", Keys::Zipf, ADMITTED).among(&Subject::FAST),
    Case::new("a new key each time", Keys::New, ADMITTED).among(&Subject::FAST),
    Case::new("2 threads, one key", Keys::One, ADMITTED.threads(2)),
    Case::new("2 threads, a key each", Keys::OneEach, ADMITTED.threads(2)),
    Case::new("8 threads, one key", Keys::One, ADMITTED.threads(8)).among(&Subject::OWN),
    Case::new("8 threads, a key each", Keys::OneEach, ADMITTED.threads(8)).among(&Subject::OWN),
    Case::new("100 000 keys, two limits", Keys::Uniform, ADMITTED).among(&Subject::OWN),
];

/// Returns the nanoseconds that a request costs beyond the bare service: per subject, the
/// difference in each round.
pub fn measure(case: &Case, rounds: usize) -> Vec<(Subject, Vec<f64>)> {
    let mut dice = SmallRng::seed_from_u64(1);
    let Setup { limit, threads, .. } = case.setup;
    let mut subjects: Vec<_> = case
        .subjects
        .iter()
        .map(|&subject| {
            let mut runners = subject.runners(case.setup);
            // Creates every account, and exhausts it if required.
            let all = if case.keys == Keys::Uniform || case.keys == Keys::Zipf { MANY } else { 2 };
            serve(&mut runners[0], &(0..all).collect::<Vec<_>>(), || ());
            (subject, runners, Vec::new())
        })
        .collect();
    for round in 0..rounds {
        let mut bare = 0.0;
        for (subject, runners, costs) in &mut subjects {
            let batches = (0..threads).map(|thread| batch(case, thread, round, &mut dice));
            let batches: Vec<_> = batches.collect();
            let all: usize = batches.iter().map(Vec::len).sum();
            let Served { nanos: cost, admitted } = together(runners, &batches);
            let due = if limit == Limit::Ample || *subject == Subject::Bare { all } else { 0 };
            assert_eq!(admitted, due, "{}: {}", case.title, subject.title());
            match subject {
                Subject::Bare => bare = cost,
                _ => costs.push(cost - bare),
            }
        }
    }
    subjects.into_iter().skip(1).map(|(subject, _, costs)| (subject, costs)).collect()
}

/// Serves a batch on each thread. A part of one thread starts with those of the others.
///
/// Returns the median over the parts, which a pause of a thread does not affect. Threads that share
/// a core are paused by each other, so the mean is the cost then.
fn together(runners: &mut [Runner], batches: &[Vec<u32>]) -> Served {
    let (count, started) = (runners.len(), &AtomicUsize::new(0));
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    let all: Vec<Served> = if let [alone] = runners {
        serve(alone, &batches[0], || ())
    } else {
        thread::scope(|scope| {
            let mut threads = Vec::new();
            for (thread, (runner, batch)) in runners.iter_mut().zip(batches).enumerate() {
                threads.push(scope.spawn(move || {
                    pin_to(thread % cores);
                    let mut due = 0;
                    serve(runner, batch, || {
                        due += count;
                        started.fetch_add(1, AcqRel);
                        while started.load(Acquire) < due {
                            if count > cores { thread::yield_now() } else { spin_loop() }
                        }
                    })
                }));
            }
            threads.into_iter().flat_map(|thread| thread.join().expect("it ran")).collect()
        })
    };
    let admitted = all.iter().map(|part| part.admitted).sum();
    let mut nanos: Vec<_> = all.iter().map(|part| part.nanos).collect();
    nanos.sort_by(f64::total_cmp);
    let (median, mean) = (nanos[nanos.len() / 2], nanos.iter().sum::<f64>() / nanos.len() as f64);
    Served { nanos: if count > cores { mean } else { median }, admitted }
}

/// Keeps this thread on a core. Otherwise, short threads may take turns on one.
#[cfg(target_os = "linux")]
fn pin_to(core: usize) {
    let mut cores = CpuSet::new();
    cores.set(core);
    sched_setaffinity(None, &cores).expect("a core");
}

#[cfg(not(target_os = "linux"))]
fn pin_to(_: usize) {}

/// Serves requests with these keys in parts. Calls `gate` before each part.
///
/// The thread that serves the requests creates them, because freeing memory of another thread has a
/// cost of its own.
fn serve(runner: &mut Runner, keys: &[u32], mut gate: impl FnMut()) -> Vec<Served> {
    let mut part = |keys: &[u32]| {
        let requests = keys.iter().map(|key| request(*key)).collect();
        gate();
        runner(requests)
    };
    keys.chunks(PART).map(|keys| part(keys)).collect()
}

/// Returns the keys of a batch.
fn batch(case: &Case, thread: usize, round: usize, dice: &mut SmallRng) -> Vec<u32> {
    let zipf = Zipf::new(f64::from(MANY), 1.0).expect("a distribution");
    let mut new = MANY + u32::try_from(round * BATCH).expect("few rounds");
    let key = || match case.keys {
        Keys::One => 0,
        Keys::New => {
            new += 1;
            new
        }
        Keys::OneEach => u32::try_from(thread).expect("few"),
        Keys::Uniform => dice.random_range(0..MANY),
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "1 to MANY")]
        Keys::Zipf => zipf.sample(dice) as u32 - 1,
    };
    repeat_with(key).take(BATCH).collect()
}

/// Returns a request as axum passes it to a layer.
pub fn request(key: u32) -> Request<Body> {
    let address = Ipv4Addr::from_bits(0x0b00_0000 + key);
    let mut request = Request::new(Body::empty());
    request.extensions_mut().insert(ConnectInfo(SocketAddr::from((address, 4711))));
    request
}

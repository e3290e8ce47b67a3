//! The cases: the keys of the requests, and the cost beyond the bare service, in short alternating
//! rounds. On a noisy machine, only numbers of one moment are comparable.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::Barrier,
    thread,
};

use axum::{body::Body, extract::ConnectInfo};
use http::{HeaderValue, Request};
use rand::{Rng, SeedableRng, rngs::SmallRng};
use rand_distr::{Distribution, Zipf};

use crate::subject::{Limit, Runner, Served, Setup, Subject};

/// Consecutive requests before the next subject's turn.
const BATCH: usize = 1_000;
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
            for batch in (0..all).collect::<Vec<_>>().chunks(BATCH) {
                runners[0](batch.iter().map(|key| request(*key)).collect());
            }
            (subject, runners, Vec::new())
        })
        .collect();
    for round in 0..rounds {
        let mut bare = 0.0;
        for (subject, runners, costs) in &mut subjects {
            let batches = (0..threads).map(|thread| batch(case, thread, round, &mut dice));
            let batches: Vec<_> = batches.collect();
            let all: usize = batches.iter().map(Vec::len).sum();
            let Served { nanos: cost, admitted } = together(runners, batches);
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

/// Returns the mean over the threads, which start together.
fn together(runners: &mut [Runner], mut batches: Vec<Vec<Request<Body>>>) -> Served {
    if let [alone] = runners {
        return alone(batches.remove(0));
    }
    let (count, gate) = (runners.len(), &Barrier::new(runners.len()));
    let all: Vec<Served> = thread::scope(|scope| {
        let mut threads = Vec::new();
        for (runner, batch) in runners.iter_mut().zip(batches) {
            threads.push(scope.spawn(move || {
                gate.wait();
                runner(batch)
            }));
        }
        threads.into_iter().map(|thread| thread.join().expect("it ran")).collect()
    });
    let nanos: f64 = all.iter().map(|served| served.nanos).sum();
    let admitted = all.iter().map(|served| served.admitted).sum();
    Served { nanos: nanos / count as f64, admitted }
}

fn batch(case: &Case, thread: usize, round: usize, dice: &mut SmallRng) -> Vec<Request<Body>> {
    let zipf = Zipf::new(f64::from(MANY), 1.0).expect("a distribution");
    let mut new = MANY + u32::try_from(round * BATCH).expect("few rounds");
    let mut key = || match case.keys {
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
    // Threads need time to overlap.
    let length = if case.setup.threads == 1 { BATCH } else { 10 * BATCH };
    (0..length).map(|_| request(key())).collect()
}

/// Returns a request as axum passes it to a layer. The key is also a header field, for subjects
/// that see no address.
pub fn request(key: u32) -> Request<Body> {
    let address = Ipv4Addr::from_bits(0x0b00_0000 + key);
    let mut request = Request::new(Body::empty());
    let text = HeaderValue::try_from(address.to_string()).expect("a value");
    request.headers_mut().insert("x-api-key", text);
    request.extensions_mut().insert(ConnectInfo(SocketAddr::from((address, 4711))));
    request
}

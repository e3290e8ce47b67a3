//! Client CPU per decision: the store's work before a command is sent and after the answer arrives,
//! without a server and without a connection.

use std::{
    hint::black_box,
    pin::pin,
    task::{Context, Poll, Waker},
    time::Instant,
};

use tower_sluice::{LocalStore, RedisStore, Store, StoreExt};

use crate::{
    case::{Case, take},
    forms,
    record::Canned,
    server::Server,
    stats::Series,
};

const KEYS: u32 = 1_000;
/// Consecutive decisions before the next subject's turn.
const BATCH: u32 = 1_000;

pub(crate) fn run(server: &mut Server, rounds: usize) {
    let cases = forms::whole();
    let local = LocalStore::new();
    let stores = cases.iter().map(|case| RedisStore::with_connection(answer(server, case)));
    let stores: Vec<_> = stores.map(|store| store.lazy().expect("a store")).collect();
    let mut times = vec![[Series::default(), Series::default()]; cases.len()];
    // Turns are short, so there are more of them.
    for _ in 0..rounds * 10 {
        for ((case, store), times) in cases.iter().zip(&stores).zip(&mut times) {
            times[0].0.push(turn(store, case));
            times[1].0.push(turn(&local, case));
        }
    }
    println!("client CPU, encoding and decoding: ns per decision, ratio to the embedded store");
    for (case, [redis, local]) in cases.iter().zip(&times) {
        println!("  {:<36}{:>8.0}{:>8.2}", case.name, redis.median(), redis.over(local));
    }
    println!();
}

/// Creates a connection that returns the server's real answer to a request.
fn answer(server: &mut Server, case: &Case) -> Canned {
    let command = &case.commands(server, 1, take)[0];
    Canned(server.ask(command).bytes().into())
}

/// Returns the nanoseconds per decision.
fn turn<S: Store>(store: &S, case: &Case) -> f64 {
    let mut cx = Context::from_waker(Waker::noop());
    let start = Instant::now();
    for key in 0..BATCH {
        let answer = case.charges(key % KEYS, |charges| store.take(charges));
        let answer = black_box(pin!(answer.into_future()).poll(&mut cx));
        assert!(matches!(answer, Poll::Ready(Ok(_))), "it is a decision, and there at once");
    }
    start.elapsed().as_nanos() as f64 / f64::from(BATCH)
}

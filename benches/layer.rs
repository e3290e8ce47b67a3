//! The whole service, `call` and poll, beside the bare one.
//!
//! The numbers hold for one run on one machine. For ratios on a noisy machine see `ratios`.
#![allow(missing_docs, reason = "criterion's macros make public items")]

#[path = "support/hello.rs"]
mod hello;

use std::{
    convert::Infallible,
    hint::black_box,
    net::{Ipv4Addr, SocketAddr},
    pin::pin,
    task::{Context, Waker},
    thread,
    time::{Duration, Instant},
};

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use hello::{Body, Hello};
use http::{Request, Response};
use tower::{Layer, Service};
use tower_sluice::{Headers, LocalStore, PeerIp, Quota, RateLimitLayer};

/// A quota that is never exhausted: one unit comes back per nanosecond.
const AMPLE: Quota = Quota::per_second(1_000_000_000);

fn request(key: u32) -> Request<Body> {
    let mut request = Request::new(Body::default());
    let peer = Ipv4Addr::from_bits(0x0a00_0000 + key);
    request.extensions_mut().insert(SocketAddr::from((peer, 4000)));
    request
}

fn serve<S>(service: &mut S, request: Request<Body>)
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
{
    let mut cx = Context::from_waker(Waker::noop());
    assert!(service.poll_ready(&mut cx).is_ready());
    assert!(pin!(service.call(request)).poll(&mut cx).is_ready());
}

fn limited(
    quota: Quota,
    headers: Headers,
) -> impl Service<Request<Body>, Response = Response<Body>, Error = Infallible> + Clone + Send + Sync
{
    let layer = RateLimitLayer::new(PeerIp::new(), quota, LocalStore::new());
    layer.headers(headers).layer(Hello)
}

fn one_thread(c: &mut Criterion) {
    for keys in [1, 100_000] {
        let mut group = c.benchmark_group(format!("layer, {keys} keys"));
        let mut key = 0;
        let mut next = move || {
            key = (key + 7_919) % keys;
            request(black_box(key))
        };
        let mut bench = |name, mut service: Box<dyn FnMut(Request<Body>)>| {
            (0..keys).for_each(|key| service(request(key)));
            group.bench_function(name, |b| {
                b.iter_batched(&mut next, &mut service, BatchSize::SmallInput);
            });
        };
        bench("bare", Box::new(|request| serve(&mut Hello, request)));
        for (name, quota, headers) in [
            ("admitted", AMPLE, Headers::None),
            ("admitted, with headers", AMPLE, Headers::RateLimit),
            ("denied", Quota::per_hour(1), Headers::None),
            ("denied, with headers", Quota::per_hour(1), Headers::RateLimit),
        ] {
            let mut service = limited(quota, headers);
            bench(name, Box::new(move |request| serve(&mut service, request)));
        }
    }
}

fn two_threads(c: &mut Criterion) {
    let mut group = c.benchmark_group("layer, two threads");
    for (name, apart) in [("same key", 0), ("a key each", 1)] {
        let service = limited(AMPLE, Headers::RateLimit);
        let run = |rounds: u64, thread: u32| {
            let mut service = service.clone();
            let start = Instant::now();
            (0..rounds).for_each(|_| serve(&mut service, request(thread * apart)));
            start.elapsed()
        };
        group.bench_function(name, |b| {
            b.iter_custom(|rounds| -> Duration {
                thread::scope(|scope| {
                    let other = scope.spawn(|| run(rounds, 1));
                    run(rounds, 0).max(other.join().expect("no panic"))
                })
            });
        });
    }
}

criterion_group!(benches, one_thread, two_threads);
criterion_main!(benches);

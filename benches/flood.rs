//! Five million keys, each used once: their memory, the latency of a known key during the flood,
//! and the state of exhausted keys. Beside it runs a bare keyed governor limiter.
//!
//! Run `cargo bench -p dev --bench flood`. One thread floods while another repeatedly calls with
//! the known key. Resident memory is available on Linux only.
#![expect(clippy::print_stdout, reason = "prints a table")]

use std::{
    convert::Infallible,
    fs,
    future::{Ready, ready},
    num::NonZeroU32,
    pin::pin,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    task::{Context, Poll, Waker},
    thread,
    time::Instant,
};

use governor::{DefaultKeyedRateLimiter, RateLimiter};
use http::{HeaderValue, Request, Response};
use tower::{Layer, Service};
use tower_sluice::{Cost, LocalStore, Quota, RateLimitLayer, Rule, key::HeaderKey};

const FLOOD: u64 = 5_000_000;
/// The number of keys that are exhausted before the flood.
const EXHAUSTED: u64 = 1_000;
const LIMIT: u32 = 10;
const KNOWN: &str = "known";

/// Returns `true` if a key's request is allowed. Clones share the limit.
type Ask = Box<dyn FnMut(&str) -> bool + Send>;

/// A limiter: its name, a call, and its own statistics.
struct Limited {
    name: &'static str,
    ask: Box<dyn Fn() -> Ask>,
    says: Box<dyn Fn() -> String>,
}

fn main() {
    println!("a flood of {FLOOD} keys, {LIMIT} an hour for each, {EXHAUSTED} of them exhausted\n");
    let mut times = Times::new();
    run(sluice, &mut times);
    run(governor, &mut times);
}

fn run(limited: fn() -> Limited, times: &mut Times) {
    let before = resident();
    let Limited { name, ask, says } = limited();
    let built = resident();
    let mut asking = ask();
    for n in 0..EXHAUSTED {
        let key = key(n);
        assert_eq!((0..=LIMIT).filter(|_| asking(&key)).count(), LIMIT as usize);
    }
    let quiet = known(&mut asking, times, |asked| asked < 200_000);
    let (flooded, mut flooding, start) = (AtomicBool::new(false), ask(), Instant::now());
    let (admitted, during_flood) = thread::scope(|scope| {
        let flood = scope.spawn(|| {
            let admitted = (EXHAUSTED..FLOOD).filter(|n| flooding(&key(*n))).count();
            flooded.store(true, Relaxed);
            admitted
        });
        let during_flood = known(&mut asking, times, |_| !flooded.load(Relaxed));
        (flood.join().expect("no panic"), during_flood)
    });
    let (seconds, after) = (start.elapsed().as_secs_f64(), resident());
    let denied = (0..EXHAUSTED).filter(|n| !asking(&key(*n))).count();
    let kib = |bytes: u64| bytes / 1_024;
    println!("{name}");
    println!("  resident: {} KiB before, {} built, {} after", kib(before), kib(built), kib(after));
    println!("  the flood: {seconds:.1} s, {admitted} of {} new keys admitted", FLOOD - EXHAUSTED);
    println!("  exhausted keys: {denied} of {EXHAUSTED} are denied still");
    println!("  the known key before: {quiet}");
    println!("  the known key meanwhile: {during_flood}");
    println!("  {}\n", says());
}

/// Calls with the known key while `more` returns `true` for the number of calls.
fn known(asking: &mut Ask, times: &mut Times, more: impl Fn(u64) -> bool) -> String {
    let (mut asked, mut passed) = (0, 0_u64);
    times.clear();
    while more(asked) {
        asked += 1;
        passed += u64::from(times.measure(|| asking(KNOWN)));
    }
    format!("{passed} of {asked} admitted, {times}")
}

/// Builds a layer. All keys have one quota, and the flood takes a tenth of it at a time. The known
/// key takes little and often, so it is always in debt and keeps its slot.
fn sluice() -> Limited {
    let quota = Quota::per_hour(100_000_000 * LIMIT);
    let is_known = |key: &HeaderValue| key == KNOWN;
    let cost = Cost::from_fn(move |head| {
        let known = head.headers.get("x-api-key").is_some_and(is_known);
        if known { 10 } else { 100_000_000 }
    });
    let store = LocalStore::new();
    let rule = Rule::new("key", HeaderKey::new("x-api-key"), quota).cost(cost);
    let layer = RateLimitLayer::rules(rule, store.clone());
    let ask = move || -> Ask {
        let mut service = layer.layer(Hello);
        Box::new(move |key| {
            let request = Request::get("/").header("x-api-key", key).body(()).expect("a request");
            let mut context = Context::from_waker(Waker::noop());
            assert!(service.poll_ready(&mut context).is_ready());
            match pin!(service.call(request)).poll(&mut context) {
                Poll::Ready(Ok(response)) => response.status().is_success(),
                Poll::Pending => unreachable!("an embedded store answers at once"),
            }
        })
    };
    Limited {
        name: "tower-sluice: the whole layer, a store for 131072 keys",
        ask: Box::new(ask),
        says: Box::new(move || format!("{:?}", store.stats())),
    }
}

fn governor() -> Limited {
    let limit = NonZeroU32::new(LIMIT).expect("above 0");
    let quota = governor::Quota::per_hour(limit);
    let limiter: &'static DefaultKeyedRateLimiter<String> =
        Box::leak(Box::new(RateLimiter::keyed(quota)));
    Limited {
        name: "governor: a keyed limiter, no HTTP",
        ask: Box::new(|| Box::new(|key| limiter.check_key(&key.to_owned()).is_ok())),
        says: Box::new(|| format!("keys kept: {}", limiter.len())),
    }
}

/// Returns thirty-two digits that do not predict the next key's.
fn key(n: u64) -> String {
    let mixed = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    format!("{mixed:016x}{n:016x}")
}

/// Returns the resident memory of this process in bytes.
fn resident() -> u64 {
    let pages = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    4_096 * pages.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0)
}

/// A histogram of durations up to a millisecond, in steps of ten nanoseconds.
struct Times(Vec<u32>);

impl Times {
    fn new() -> Self {
        Self(vec![0; 100_000])
    }

    fn clear(&mut self) {
        self.0.fill(0);
    }

    fn measure<T>(&mut self, run: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let said = run();
        let step = usize::try_from(start.elapsed().as_nanos() / 10).unwrap_or(usize::MAX);
        let last = self.0.len() - 1;
        self.0[step.min(last)] += 1;
        said
    }

    /// Returns the nanoseconds that a fraction of the durations, per mille, stay below.
    fn quantile(&self, per_mille: u64) -> usize {
        let total: u64 = self.0.iter().copied().map(u64::from).sum();
        let mut seen = 0;
        let steps = self.0.iter().take_while(|n| {
            seen += u64::from(**n);
            seen * 1_000 < total * per_mille
        });
        (steps.count() + 1) * 10
    }
}

impl std::fmt::Display for Times {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let at = |per_mille| self.quantile(per_mille);
        write!(f, "p50 {} ns, p99 {} ns, p99.9 {} ns", at(500), at(990), at(999))
    }
}

/// An inner service that answers immediately.
#[derive(Clone)]
struct Hello;

impl Service<Request<()>> for Hello {
    type Response = Response<String>;
    type Error = Infallible;
    type Future = Ready<Result<Response<String>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Ok(()).into()
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        ready(Ok(Response::new("hello".into())))
    }
}

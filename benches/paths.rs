//! Instructions of the main paths, counted by callgrind. Other load on the machine does not affect
//! them, so any path that becomes longer is visible.
//!
//! `cargo bench -p dev --bench paths` prints them, and fails if a path has grown by more than a
//! fiftieth over `benches/paths.txt`. `-- --record` writes that file, and `-- --record-of FILE` reads
//! another one. Requires valgrind.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "prints a table")]

#[path = "support/hello.rs"]
mod hello;

use std::{
    array,
    convert::Infallible,
    fs,
    hint::black_box,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    pin::pin,
    process::{Command, ExitCode},
    task::{Context, Waker},
};

use hello::{Body, Hello};
use http::{
    HeaderValue, Request, Response,
    header::{CACHE_CONTROL, CONTENT_TYPE},
};
use tower::{Layer, Service, util::MapResponse};
use tower_sluice::{
    Headers, Key, LivePlan, LocalStore, PeerIp, Quota, RateLimitLayer, Rule, StoreExt,
    key::Everyone, rule::RuleName, store::Charge,
};

/// The paths, each with the path whose instructions are subtracted.
const PATHS: [(&str, Option<&str>); 23] = [
    ("bare service", None),
    ("bare service, two fields", None),
    ("store, admitted", None),
    ("store, denied", None),
    ("store, new key", None),
    ("store, two accounts, admitted", None),
    ("store, two accounts, denied", None),
    ("store, three accounts, admitted", None),
    ("store, three accounts, denied", None),
    ("store, slot taken and freed", None),
    ("store, slot and rate, taken and freed", None),
    ("layer, admitted, no fields", Some("bare service")),
    ("layer, admitted, two fields", Some("bare service")),
    ("layer, admitted, two new fields", Some("bare service")),
    ("layer, admitted, two new fields beside two", Some("bare service, two fields")),
    ("layer, denied", Some("bare service")),
    ("layer, live plan, no fields", Some("bare service")),
    ("layer, live plan, two fields", Some("bare service")),
    ("layer, live plan, denied", Some("bare service")),
    ("layer, slot and rate, no fields", Some("bare service")),
    ("layer, slot and rate, two fields", Some("bare service")),
    ("layer, fair share, no fields", Some("bare service")),
    ("layer, fair share, two fields", Some("bare service")),
];
/// Calls of the shorter run. The costs of the first calls are part of both runs and cancel out.
const FEW: u64 = 50_000;
const MANY: u64 = 250_000;
/// A quota that is never exhausted: one unit comes back per nanosecond.
const AMPLE: Quota = Quota::per_second(1_000_000_000);
/// A quota whose fields have another number for each request.
const COUNTED: Quota = Quota::per_day(1_000_000_000);
const ONE: Quota = Quota::per_hour(1);
const SLOTS: Quota = Quota::concurrent(100);

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    if let [word, path, calls] = arguments.as_slice()
        && word == "run"
    {
        run(path, calls.parse().expect("a number"));
        return ExitCode::SUCCESS;
    }
    let counts = PATHS.map(|(path, _)| count(path));
    let own = PATHS.iter().zip(&counts).map(|((path, within), count)| {
        let at = within.and_then(|within| PATHS.iter().position(|(path, _)| *path == within));
        (*path, count - at.map_or(0, |at| counts[at]))
    });
    let own: Vec<_> = own.collect();
    if arguments.iter().any(|argument| argument == "--record") {
        let lines: String =
            own.iter().map(|(path, count)| format!("{count:>6}  {path}\n")).collect();
        fs::write(record(), lines).expect("the file can be written");
    }
    let other = arguments.iter().skip_while(|argument| *argument != "--record-of").nth(1);
    compare(&own, &other.map_or_else(record, PathBuf::from))
}

fn record() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../benches/paths.txt")
}

/// Prints the counts beside the recorded ones. Fails if a path has grown. Other revisions may lack a
/// path, but not `benches/paths.txt`.
fn compare(counts: &[(&str, u64)], file: &Path) -> ExitCode {
    let known = fs::read_to_string(file).expect("a record");
    let mut code = ExitCode::SUCCESS;
    println!("instructions of a call, and of it as recorded");
    for (path, count) in counts {
        let line = known.lines().find_map(|line| line.trim_start().strip_suffix(path));
        let Some(line) = line else {
            println!("  {path:<37} {count:>6}    new");
            if file == record() {
                eprintln!("{path}: not in benches/paths.txt; `-- --record` writes it");
                code = ExitCode::FAILURE;
            }
            continue;
        };
        let before: u64 = line.trim().parse().expect("a number");
        println!("  {path:<37} {count:>6} {before:>6}");
        if *count > before + before / 50 {
            eprintln!("{path}: {count} instructions, where {before} are recorded");
            code = ExitCode::FAILURE;
        }
    }
    code
}

/// Returns the instructions of one call.
fn count(path: &str) -> u64 {
    (counted(path, MANY) - counted(path, FEW)) / (MANY - FEW)
}

/// Returns callgrind's count for a process that makes `calls` calls.
fn counted(path: &str, calls: u64) -> u64 {
    let itself = std::env::current_exe().expect("this program");
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .args(["--collect-atstart=no", "--toggle-collect=*paths::repeat*"])
        .arg(itself)
        .args(["run", path, &calls.to_string()])
        .output()
        .expect("valgrind is installed");
    let told = String::from_utf8_lossy(&output.stderr);
    let count = told.split("Collected :").nth(1).and_then(|rest| rest.split_whitespace().next());
    count.and_then(|count| count.parse().ok()).unwrap_or_else(|| panic!("{path}: {told}"))
}

/// Runs the child process.
fn run(path: &str, calls: u64) {
    let layer = |quota, headers| RateLimitLayer::per_ip(quota).headers(headers).layer(Hello);
    let live = |quota, headers| {
        let plan = LivePlan::new(quota);
        RateLimitLayer::new(PeerIp::new(), &plan, LocalStore::new()).headers(headers).layer(Hello)
    };
    // The body of this service cannot contain another one, so the function holds the slot until
    // the head.
    let held = |headers| {
        RateLimitLayer::new(PeerIp::new(), [SLOTS, AMPLE], LocalStore::new())
            .headers(headers)
            .hold_with(|body: Body, slot| {
                drop(slot);
                body
            })
            .layer(Hello)
    };
    let fair = |headers| {
        let rule = Rule::new("site", Everyone, AMPLE).fair_by(PeerIp::new());
        RateLimitLayer::rules(rule, LocalStore::new()).headers(headers).layer(Hello)
    };
    match path {
        "bare service" => serve(Hello, calls),
        "bare service, two fields" => serve(MapResponse::new(Hello, told), calls),
        "store, admitted" => decide(&[AMPLE], calls),
        "store, denied" => decide(&[ONE], calls),
        "store, new key" => decide_new(calls),
        "store, two accounts, admitted" => decide_all([AMPLE; 2], calls),
        "store, two accounts, denied" => decide_all([AMPLE, ONE], calls),
        "store, three accounts, admitted" => decide_all([AMPLE; 3], calls),
        "store, three accounts, denied" => decide_all([AMPLE, AMPLE, ONE], calls),
        "store, slot taken and freed" => decide(&[SLOTS], calls),
        "store, slot and rate, taken and freed" => decide(&[SLOTS, AMPLE], calls),
        "layer, admitted, no fields" => serve(layer(AMPLE, Headers::None), calls),
        "layer, admitted, two fields" => serve(layer(AMPLE, Headers::RateLimit), calls),
        "layer, admitted, two new fields" => serve(layer(COUNTED, Headers::RateLimit), calls),
        "layer, admitted, two new fields beside two" => {
            serve(RateLimitLayer::per_ip(COUNTED).layer(MapResponse::new(Hello, told)), calls);
        }
        "layer, denied" => serve(layer(ONE, Headers::RateLimit), calls),
        "layer, live plan, no fields" => serve(live(AMPLE, Headers::None), calls),
        "layer, live plan, two fields" => serve(live(AMPLE, Headers::RateLimit), calls),
        "layer, live plan, denied" => serve(live(ONE, Headers::RateLimit), calls),
        "layer, slot and rate, no fields" => serve(held(Headers::None), calls),
        "layer, slot and rate, two fields" => serve(held(Headers::RateLimit), calls),
        "layer, fair share, no fields" => serve(fair(Headers::None), calls),
        "layer, fair share, two fields" => serve(fair(Headers::RateLimit), calls),
        _ => panic!("no such path: {path}"),
    }
}

/// Adds the fields that most responses have.
fn told(mut response: Response<Body>) -> Response<Body> {
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Makes the calls. Nothing else is counted: the calibration of a clock takes as many instructions as
/// the machine's load lets it.
#[inline(never)]
fn repeat(calls: u64, call: impl FnMut(u64)) {
    (0..calls).for_each(call);
}

fn decide(quotas: &[Quota], calls: u64) {
    let (store, rule) = (LocalStore::new(), RuleName::default());
    repeat(calls, |_| {
        let key = Key::from(black_box(Ipv4Addr::LOCALHOST));
        let decision = store.take(&[Charge::new(rule, &key, quotas)]).now();
        black_box(decision.is_allowed());
    });
}

/// Decides about keys that no call had before.
fn decide_new(calls: u64) {
    let (store, rule) = (LocalStore::new(), RuleName::default());
    repeat(calls, |number| {
        let key = Key::from(black_box(number));
        let decision = store.take(&[Charge::new(rule, &key, &[AMPLE])]).now();
        black_box(decision.is_allowed());
    });
}

/// Decides by one rule per quota, and each rule by its own key.
fn decide_all<const N: usize>(quotas: [Quota; N], calls: u64) {
    let (store, names) = (LocalStore::new(), ["default", "b", "c"]);
    let rules: [_; N] = array::from_fn(|at| RuleName::new(names[at]).expect("a name"));
    repeat(calls, |_| {
        let keys: [_; N] = array::from_fn(|_| Key::from(black_box(Ipv4Addr::LOCALHOST)));
        let charge = |at: usize| Charge::new(rules[at], &keys[at], quotas[at].as_ref());
        let decision = store.take(&array::from_fn::<_, N, _>(charge)).now();
        black_box(decision.is_allowed());
    });
}

fn serve<S>(mut service: S, calls: u64)
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
{
    repeat(calls, |_| {
        let mut request = Request::new(Body::default());
        request.extensions_mut().insert(SocketAddr::from((Ipv4Addr::LOCALHOST, 4000)));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(service.poll_ready(&mut cx).is_ready());
        assert!(pin!(service.call(black_box(request))).poll(&mut cx).is_ready());
    });
}

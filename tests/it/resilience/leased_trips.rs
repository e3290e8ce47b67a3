//! Trips to the shared store, and use of the limit, under several loads.
//!
//! Time advances only by the tests, so the numbers are the same on every machine.

use tower_sluice::{
    Algorithm, Decision, Key, LocalStore, Quota, Store, StoreExt, rule::RuleName, store::Charge,
};

use crate::support::driven::{AtOnce, Counting, Time, millis};

const MINUTELY: Quota = Quota::per_minute(60_000);
const SECONDLY: Quota = Quota::per_second(1_000);
const SLOW: Quota = Quota::per_minute(1_200);
const HOURLY: Quota = Quota::per_hour(2_000);

/// Loads of four processes: 70, 20, 8 and 2 percent.
const FOUR: [Load; 4] =
    [Load::Steady(3_500), Load::Steady(1_000), Load::Steady(400), Load::Steady(100)];
const FOUR_AT_LIMIT: [Load; 4] =
    [Load::Steady(735), Load::Steady(210), Load::Steady(84), Load::Steady(21)];
const FOUR_OVERLOAD: [Load; 4] =
    [Load::Steady(7_000), Load::Steady(2_000), Load::Steady(800), Load::Steady(200)];
const FOUR_SLOW: [Load; 4] =
    [Load::Steady(560), Load::Steady(160), Load::Steady(64), Load::Steady(16)];

/// The requests of one process.
#[derive(Clone, Copy, Debug)]
enum Load {
    /// This number per second, evenly.
    Steady(u32),
    /// This number per second on average, at random.
    Random(u32),
    /// This number at once, each half second.
    Bursts(u32),
    /// This number per second for a second, then nothing for a second.
    Pulses(u32),
}

impl Load {
    /// Returns the requests of one millisecond.
    fn requests(self, at: u32, random: &mut u64) -> u32 {
        let steady = |rate: u32| {
            let due = |at: u32| u64::from(rate) * u64::from(at) / 1_000;
            u32::try_from(due(at + 1) - due(at)).expect("few")
        };
        match self {
            Self::Steady(rate) => steady(rate),
            Self::Random(rate) => {
                // Xorshift, so that each run is the same.
                *random ^= *random << 13;
                *random ^= *random >> 7;
                *random ^= *random << 17;
                u32::from(*random % 1_000 < u64::from(rate))
            }
            Self::Bursts(size) if at.is_multiple_of(500) => size,
            Self::Pulses(rate) if at % 2_000 < 1_000 => steady(rate),
            Self::Bursts(_) | Self::Pulses(_) => 0,
        }
    }
}

struct Case {
    name: &'static str,
    quota: Quota,
    percent: u32,
    /// The load of each process.
    loads: &'static [Load],
    seconds: u32,
    /// The most trips that the test accepts.
    trips: usize,
    /// The least part of the limit that is used.
    least: f64,
}

#[derive(Debug)]
struct Measured {
    asked: u32,
    admitted: u32,
    /// The requests that the limit permits, or all of them.
    wanted: u32,
    /// Requests to the shared store, and units returned to it.
    trips: usize,
}

impl Measured {
    fn of_limit(&self) -> f64 {
        f64::from(self.admitted) / f64::from(self.wanted)
    }

    fn asked_per_trip(&self) -> f64 {
        f64::from(self.asked) / self.trips as f64
    }
}

fn take<S>(store: &S, quota: Quota) -> Decision
where
    S: Store,
    tower_sluice::store::Answer<S::Future>: AtOnce,
{
    let (key, quotas) = (Key::from("hot"), [quota]);
    store.take(&[Charge::new(RuleName::default(), &key, &quotas)]).now()
}

/// Runs the processes. None of their decisions exceeds the limit.
async fn measure<P: Fn() -> bool>(
    case: &Case,
    process: impl Fn(Counting<LocalStore>) -> P,
) -> Measured {
    let (time, quota) = (Time::default(), case.quota);
    let (inner, alone, exact) = (Counting::new(time.0.store(64)), time.store(), time.store());
    let processes: Vec<_> = case.loads.iter().map(|_| process(inner.clone())).collect();
    let (mut random, mut asked, mut admitted, mut wanted) = (0x9E37_79B9, 0, 0, 0);
    for at in 0..case.seconds * 1_000 {
        for (process, load) in processes.iter().zip(case.loads) {
            for _ in 0..load.requests(at, &mut random) {
                asked += 1;
                if process() {
                    admitted += 1;
                    let exact = take(&exact, quota);
                    assert!(exact.is_allowed(), "{}: beyond the limit after {at} ms", case.name);
                }
                wanted += u32::from(take(&alone, quota).is_allowed());
            }
        }
        time.pass(millis(1)).await;
        tokio::task::yield_now().await;
    }
    Measured { asked, admitted, wanted, trips: inner.takes() + inner.given_back() }
}

#[tokio::test(start_paused = true)]
async fn trips_and_use_of_the_limit_by_load() {
    use Load::{Bursts, Pulses, Random, Steady};
    let case = |name, quota, percent, loads, seconds, trips| {
        let loads: &'static [Load] = loads;
        Case { name, quota, percent, loads, seconds, trips, least: 0.98 }
    };
    let window = SECONDLY.with_algorithm(Algorithm::fixed_window());
    let cases = [
        case("one process, 3 per second", MINUTELY, 5, &[Random(3)], 60, 180),
        case("one process, 10 per second", MINUTELY, 5, &[Random(10)], 60, 430),
        case("one process, 30 per second", MINUTELY, 5, &[Random(30)], 60, 350),
        case("one process, 100 per second", MINUTELY, 5, &[Random(100)], 20, 125),
        case("one process, 800 per second", MINUTELY, 5, &[Steady(800)], 20, 115),
        case("two processes, half the limit", MINUTELY, 5, &[Steady(250); 2], 20, 240),
        case("two processes, at the limit", SECONDLY, 10, &[Steady(500); 2], 20, 245),
        case("two processes, 1.5 times the limit", SECONDLY, 10, &[Steady(750); 2], 20, 470),
        case("two processes, ten times the limit", SECONDLY, 10, &[Steady(5_000); 2], 10, 370),
        case(
            "two processes, nine to one, ten times the limit",
            SECONDLY,
            12,
            &[Steady(9_000), Steady(1_000)],
            10,
            390,
        ),
        case("two processes, ten times a slow limit", SLOW, 10, &[Steady(100); 2], 120, 3_900),
        case("four processes, below the limit", MINUTELY, 5, &FOUR_SLOW, 10, 360),
        case("four processes, five times the limit", SECONDLY, 10, &FOUR, 10, 580),
        case("bursts of 20", MINUTELY, 5, &[Bursts(20)], 20, 270),
        case("two processes, bursts of 300", SECONDLY, 10, &[Bursts(300); 2], 20, 950),
        case("two processes, pulses", SECONDLY, 10, &[Pulses(900); 2], 20, 400),
        case("two processes, uneven", SECONDLY, 10, &[Steady(900), Steady(50)], 20, 320),
        case("an hourly limit, to the end", HOURLY, 5, &[Steady(700), Steady(100)], 6, 70),
        case("a window, half the limit", window, 10, &[Steady(250); 2], 20, 240),
        case("a window, 1.5 times the limit", window, 10, &[Steady(750); 2], 20, 330),
        case("a window, ten times the limit", window, 10, &[Steady(5_000); 2], 10, 180),
    ];
    // Leases that are small beside the rate use less, and still have twenty requests per trip.
    let small = |name, quota, percent, loads, seconds, trips| Case {
        least: 0.95,
        ..case(name, quota, percent, loads, seconds, trips)
    };
    let small_leases = [
        small("four processes, at the limit", SECONDLY, 6, &FOUR_AT_LIMIT, 20, 1_050),
        small("four processes, ten times the limit", SECONDLY, 6, &FOUR_OVERLOAD, 4, 2_000),
        small("four processes, a minutely limit", MINUTELY, 5, &FOUR_AT_LIMIT, 20, 1_050),
        small("the same, ten times the limit", MINUTELY, 5, &FOUR_OVERLOAD, 4, 2_000),
        small("four processes, a window", window, 5, &FOUR_AT_LIMIT, 20, 1_050),
    ];
    println!("| load | asked | admitted | of the limit | trips | asked/trip | trips/admitted |");
    for case in cases.iter().chain(&small_leases) {
        let process = |inner: Counting<LocalStore>| {
            let store = inner.deny_cache().leases(case.percent);
            move || take(&store, case.quota).is_allowed()
        };
        let measured = measure(case, process).await;
        println!(
            "| {} | {} | {} | {:.1} % | {} | {:.1} | {:.3} |",
            case.name,
            measured.asked,
            measured.admitted,
            measured.of_limit() * 100.0,
            measured.trips,
            measured.asked_per_trip(),
            measured.trips as f64 / f64::from(measured.admitted)
        );
        assert!(measured.of_limit() >= case.least, "{}: {measured:?}", case.name);
        assert!(measured.trips <= case.trips, "{}: {measured:?}", case.name);
    }
}

//! Many concurrent callers: coalesced decisions beside separate calls.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures::future::{BoxFuture, join_all};
use redis::{
    AsyncConnectionConfig, Cmd,
    aio::{ConnectionLike, MultiplexedConnection},
};
use tokio::{
    runtime::{Builder, Runtime},
    time::sleep,
};
use tower_sluice::{Quota, RedisStore, StoreExt};

use crate::{
    case::Case,
    forms,
    server::{Server, client},
    stats::{AtLeast, AtMost, Series},
};

const KEYS: u32 = 16_384;
/// Numbers of concurrent callers, and of decisions of all callers in one turn.
const CALLERS: [(u32, u32); 6] =
    [(1, 1_000), (16, 8_000), (32, 12_800), (64, 16_000), (256, 20_480), (1_024, 20_480)];
const SLOT_CALLERS: [(u32, u32); 3] = [CALLERS[0], CALLERS[4], CALLERS[5]];
const SUBJECTS: [&str; 5] = ["PING", "redis-rs, same script", "each alone", "coalesced", "a rate"];
const PING: usize = 0;
const PLAIN: usize = 1;
const ALONE: usize = 2;
const TOGETHER: usize = 3;
/// Only beside slots.
const RATE: usize = 4;
/// The time in which the last slots of a turn are freed.
const FREEING: Duration = Duration::from_millis(10);

/// A call for the key with this number.
type Subject = Arc<dyn Fn(u32) -> BoxFuture<'static, ()> + Send + Sync>;

/// The callers of one case.
struct Row {
    case: Arc<Case>,
    keys: u32,
    callers: &'static [(u32, u32)],
    /// The maximum microseconds of server CPU per decision with 1 024 callers. For slots, the maximum
    /// ratio to a rate.
    most: f64,
    /// A rate on the same number of keys, beside slots.
    rate: Option<Arc<Case>>,
}

impl Row {
    fn new(case: Case, keys: u32, callers: &'static [(u32, u32)], most: f64) -> Self {
        Self { case: Arc::new(case), keys, callers, most, rate: None }
    }

    /// Takes slots, and frees each immediately.
    fn slots(name: &'static str, quotas: &[Quota], keys: u32, most: f64) -> Self {
        let [_, minute, _] = forms::quotas();
        let rate = Some(Arc::new(Case::one("a rate", minute)));
        Self { rate, ..Self::new(Case::new(name, &[quotas]), keys, &SLOT_CALLERS, most) }
    }
}

fn rows() -> [Row; 9] {
    let [second, minute, hour] = forms::quotas();
    let three: [&[Quota]; 3] = [&[second], &[minute], &[hour]];
    let many = &CALLERS[4..];
    let [few, slots] = [100, 2_000].map(Quota::concurrent);
    [
        Row::new(Case::one("a key each", minute), KEYS, &CALLERS, 4.0),
        Row::new(
            Case::one("one key, nearly all denied", Quota::per_second(100)),
            1,
            &CALLERS,
            f64::INFINITY,
        ),
        Row::new(Case::one("one key, all allowed", minute), 1, &CALLERS, f64::INFINITY),
        Row::new(Case::new("one key, three rules", &three), 1, &CALLERS, 1.0),
        Row::slots("one key, few slots", &[few], 1, 1.3),
        Row::slots("one key, slots", &[slots], 1, 1.3),
        Row::slots("one key, slots and a rate", &[slots, minute], 1, 1.3),
        Row::slots("a key each, slots", &[few], KEYS, 2.0),
        Row::new(Case::new("user, site and address", &three).sharing(1), KEYS, many, 7.0),
    ]
}

/// Returns the names of the rows with slots.
pub(crate) fn slot_names() -> Vec<&'static str> {
    let slots = rows().into_iter().filter(|row| row.rate.is_some());
    slots.map(|row| row.case.name).collect()
}

/// Makes decisions of the row with this name, on one thread.
pub(crate) fn decide(url: &str, name: &str, callers: u32, decisions: u32) {
    let row = rows().into_iter().find(|row| row.case.name == name).expect("a row");
    let runtime = current();
    let store =
        runtime.block_on(RedisStore::connect(url).into_future()).expect("the server answers");
    turn(&runtime, &takes(store, row.case, row.keys), callers, decisions);
}

/// Runs the rows with slots, or all.
pub(crate) fn run(server: &mut Server, rounds: usize, only_slots: bool) {
    let mut rows = Vec::from(rows());
    rows.retain(|row| row.rate.is_some() || !only_slots);
    for (workers, runtime) in [("one thread", current()), ("two workers", threads())] {
        for row in &rows {
            let subjects = runtime.block_on(subjects(server, row));
            for &(callers, decisions) in row.callers {
                println!("{callers} callers, {}, {workers}", row.case.name);
                let mut seen: Vec<_> = subjects.iter().map(|_| Seen::default()).collect();
                for round in 0..rounds {
                    for at in (0..subjects.len()).map(|at| (at + round) % subjects.len()) {
                        server.log_long_calls();
                        let before = Used::now(server);
                        let turn = turn(&runtime, &subjects[at], callers, decisions);
                        if row.rate.is_some() {
                            runtime.block_on(sleep(FREEING));
                        }
                        seen[at].note(&turn, &before, &Used::now(server));
                        seen[at].longest.0.push(server.longest_call());
                    }
                }
                print(&seen, row, callers);
            }
        }
    }
}

fn current() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}

fn threads() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

async fn subjects(server: &mut Server, row: &Row) -> Vec<Subject> {
    let (case, keys) = (&row.case, row.keys);
    let connection = connect(&server.url()).await;
    // A repeated call for slots would take the same slots again.
    let repeated = row.rate.as_ref().unwrap_or(case);
    let calls: Vec<_> = (0..keys).map(|key| repeated.call(key)).collect();
    let sha = server.load(&calls[0].script);
    let commands = calls.into_iter().map(|call| {
        let mut command = redis::cmd("EVALSHA");
        call.args.iter().fold(command.arg(&sha), Cmd::arg);
        command
    });
    let store = RedisStore::connect(server.url()).await.expect("the server answers");
    let mut subjects = vec![
        commands_of(connection.clone(), vec![redis::cmd("PING")]),
        commands_of(connection, commands.collect()),
        takes(store.reopen().coalesce(false).lazy().expect("a store"), case.clone(), keys),
        takes(store.clone(), case.clone(), keys),
    ];
    subjects.extend(row.rate.iter().map(|rate| takes(store.clone(), rate.clone(), keys)));
    subjects
}

async fn connect(url: &str) -> MultiplexedConnection {
    // A busy machine may need more than half a second.
    let config = AsyncConnectionConfig::new().set_response_timeout(Some(Duration::from_secs(5)));
    let connection = client(url).get_multiplexed_async_connection_with_config(&config).await;
    connection.expect("the server answers")
}

fn commands_of(connection: MultiplexedConnection, commands: Vec<Cmd>) -> Subject {
    let commands = Arc::new(commands);
    Arc::new(move |key| {
        let (mut connection, commands) = (connection.clone(), commands.clone());
        Box::pin(async move {
            let command = &commands[key as usize % commands.len()];
            connection.req_packed_command(command).await.expect("an answer");
        })
    })
}

fn takes(store: RedisStore, case: Arc<Case>, keys: u32) -> Subject {
    Arc::new(move |key| {
        let answer = case.charges(key % keys, |charges| store.take(charges));
        Box::pin(async move { drop(answer.await.expect("a decision")) })
    })
}

/// Returns the microseconds of all calls, and the total duration.
fn turn(runtime: &Runtime, call: &Subject, callers: u32, decisions: u32) -> (Series, Duration) {
    let start = Instant::now();
    let tasks = (0..callers).map(|caller| {
        let call = call.clone();
        runtime.spawn(async move {
            let mut times = Vec::new();
            for at in 0..decisions / callers {
                let start = Instant::now();
                call(caller + at * callers).await;
                times.push(start.elapsed().as_secs_f64() * 1e6);
            }
            times
        })
    });
    let times = runtime.block_on(join_all(tasks.collect::<Vec<_>>()));
    let took = start.elapsed();
    (Series(times.into_iter().flat_map(|times| times.expect("no panic")).collect()), took)
}

/// Seconds of CPU that the server and this process have used, and script calls.
struct Used([f64; 3]);

impl Used {
    fn now(server: &mut Server) -> Self {
        let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let fields = text.rsplit(") ").next().unwrap_or_default().split(' ').skip(11).take(2);
        // In hundredths of a second.
        let own = fields.filter_map(|field| field.parse::<f64>().ok()).sum::<f64>() / 100.0;
        Self([server.cpu(), own, server.script_calls()])
    }
}

/// Results of one subject, per turn.
#[derive(Default)]
struct Seen {
    /// The p50 in microseconds, and decisions per second.
    middles: Series,
    rates: Series,
    /// Per decision: microseconds of CPU of the server and of this process, and script calls.
    used: [Series; 3],
    /// The microseconds of the longest script call, or 0 if none took 100.
    longest: Series,
}

impl Seen {
    fn note(&mut self, (times, took): &(Series, Duration), before: &Used, after: &Used) {
        let decisions = times.0.len() as f64;
        self.middles.0.push(times.median());
        self.rates.0.push(decisions / took.as_secs_f64());
        for (at, scale) in [1e6, 1e6, 1.0].into_iter().enumerate() {
            self.used[at].0.push((after.0[at] - before.0[at]) * scale / decisions);
        }
    }
}

fn print(seen: &[Seen], row: &Row, callers: u32) {
    let heads = [
        "p50 us",
        "a second",
        "ratio",
        "server us",
        "client us",
        "calls",
        "longest us",
        "at worst",
    ];
    println!("  {:<24}{}", "", heads.map(|head| format!("{head:>11}")).concat());
    let plain = &seen[PLAIN];
    for (name, of) in SUBJECTS.iter().zip(seen) {
        let (middle, rate, ratio) =
            (of.middles.median(), of.rates.median(), of.rates.over(&plain.rates));
        let [server, own, calls] = of.used.each_ref().map(Series::median);
        print!("  {name:<24}{middle:>11.1}{rate:>11.0}{ratio:>11.2}{server:>11.2}{own:>11.2}");
        println!("{calls:>11.3}{:>11.0}{:>11.0}", of.longest.median(), of.longest.quantile(1.0));
    }
    let (together, over_plain) = (&seen[TOGETHER], seen[TOGETHER].rates.over(&plain.rates));
    let target = match (callers, row.keys > 1) {
        _ if row.rate.is_some() => {
            let ratio = together.used[0].over(&seen[RATE].used[0]);
            let rate = AtLeast(50_000.0, together.rates.median());
            let rate =
                if callers > 1 { format!("; decisions a second: {rate}") } else { String::new() };
            format!("server us over those of a rate: {}{rate}", AtMost(row.most, ratio))
        }
        (1, _) => {
            let added = together.middles.beyond(&seen[PING].middles);
            format!("p50 added over PING: {}", AtMost(20.0, added))
        }
        (16, _) => {
            let ratio = together.rates.over(&seen[ALONE].rates);
            format!("coalesced / each alone: {}", AtLeast(0.95, ratio))
        }
        (1_024, _) if row.most.is_finite() => {
            let ratio = together.used[0].over(&plain.used[0]);
            let cpu = AtMost(row.most, together.used[0].median());
            let longest = AtMost(2_500.0, together.longest.median());
            format!("server us: {cpu}; {ratio:.2} of those of redis-rs; longest call: {longest}")
        }
        (256, true) => format!("coalesced / redis-rs: {}", AtLeast(1.4, over_plain)),
        (256 | 1_024, false) => format!("coalesced / redis-rs: {}", AtLeast(5.0, over_plain)),
        _ => String::new(),
    };
    println!("  {target}\n");
}

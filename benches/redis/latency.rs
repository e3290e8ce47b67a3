//! Latency through the whole store, on a runtime with one thread.

use std::{cell::RefCell, time::Instant};

use futures::future::{LocalBoxFuture, join_all};
use redis::aio::MultiplexedConnection;
use tower_sluice::{RedisStore, Store, StoreExt};

use crate::{
    case::Case,
    forms::{self, LEAN},
    server::Server,
    stats::{AtMost, Series},
};

const KEYS: u32 = 1_000;
/// Numbers of concurrent callers, and of calls of each in one turn.
const CALLERS: [(usize, usize); 2] = [(1, 200), (64, 20)];

/// A call for the key with this number.
type Subject<'a> = (String, Box<dyn Fn(u32) -> LocalBoxFuture<'a, ()> + 'a>);

pub(crate) fn run(server: &Server, rounds: usize) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(compare(server, rounds));
}

async fn compare(server: &Server, rounds: usize) {
    let url = server.url();
    let linked = RedisStore::connect(&url).await.expect("the server answers");
    let connection = connect(server).await;
    let store = RedisStore::with_connection(connection.clone()).lazy().expect("a store");
    let cases = forms::whole();
    let mut subjects: Vec<Subject<'_>> = vec![("PING".into(), ping(connection))];
    subjects.extend(cases.iter().map(|case| (case.name.to_owned(), takes(&store, case))));
    subjects.push((format!("{LEAN}, by RedisStore::connect"), takes(&linked, &cases[0])));
    for (callers, calls) in CALLERS {
        println!(
            "latency, {callers} at once: us at p50 and p99, p50 added over PING, calls a second"
        );
        let mut seen = vec![Seen::default(); subjects.len()];
        for round in 0..rounds {
            for at in (0..subjects.len()).map(|at| (at + round) % subjects.len()) {
                seen[at].turn(&subjects[at], callers, calls).await;
            }
        }
        for ((name, _), of) in subjects.iter().zip(&seen) {
            of.print(name, &seen[0], callers == 1 && name == LEAN);
        }
        println!();
    }
}

/// Connects with the settings of the store.
async fn connect(server: &Server) -> MultiplexedConnection {
    use redis::{Client, IntoConnectionInfo, io::tcp::TcpSettings};
    let info = server.url().as_str().into_connection_info().expect("an address");
    let info = info.set_tcp_settings(TcpSettings::default().set_nodelay(true));
    let client = Client::open(info).expect("an address");
    client.get_multiplexed_async_connection().await.expect("the server answers")
}

fn ping<'a>(connection: MultiplexedConnection) -> Box<dyn Fn(u32) -> LocalBoxFuture<'a, ()>> {
    Box::new(move |_| {
        let mut connection = connection.clone();
        Box::pin(async move {
            let answer: String =
                redis::cmd("PING").query_async(&mut connection).await.expect("an answer");
            assert_eq!(answer, "PONG");
        })
    })
}

fn takes<'a, S>(store: &'a S, case: &'a Case) -> Box<dyn Fn(u32) -> LocalBoxFuture<'a, ()> + 'a>
where
    S: Store<Error = tower_sluice::store::RedisError>,
{
    Box::new(move |key| {
        Box::pin(async move {
            let answer = case.charges(key, |charges| store.take(charges));
            assert!(answer.await.expect("a decision").is_allowed());
        })
    })
}

/// Results of one subject.
#[derive(Clone, Default)]
struct Seen {
    /// The microseconds of each call.
    calls: Series,
    /// The p50 of each turn, and its calls per second.
    middles: Series,
    rates: Series,
}

impl Seen {
    async fn turn(&mut self, (_, call): &Subject<'_>, callers: usize, calls: usize) {
        let times = RefCell::new(Series::default());
        let mut key = 0;
        let start = Instant::now();
        join_all((0..callers).map(|_| {
            key += 1;
            let (first, times) = (key * 15, &times);
            async move {
                for at in 0..u32::try_from(calls).expect("few calls") {
                    let start = Instant::now();
                    call((first + at) % KEYS).await;
                    times.borrow_mut().0.push(start.elapsed().as_secs_f64() * 1e6);
                }
            }
        }))
        .await;
        self.rates.0.push((callers * calls) as f64 / start.elapsed().as_secs_f64());
        let times = times.into_inner();
        self.middles.0.push(times.median());
        self.calls.0.extend(times.0);
    }

    fn print(&self, name: &str, base: &Self, targeted: bool) {
        let (p50, p99) = (self.calls.median(), self.calls.quantile(0.99));
        let added = self.middles.beyond(&base.middles);
        let rate = self.rates.median();
        let added =
            if targeted { AtMost(25.0, added).to_string() } else { format!("{added:>7.2}") };
        println!("  {name:<36}{p50:>8.1}{p99:>9.1}{rate:>9.0} {added}");
    }
}

//! Puts real load on fair shares: `cargo run -p dev --release --example fair_load -- 20`
//!
//! An axum server on the loopback interface shares 100 requests per second. The clients are HTTP
//! connections, for as many seconds as the argument says, twice:
//!
//! 1. Twenty clients send 10 requests per second in every other second, beside one that sends ten
//!    times the pool. Jain's index of the twenty is 1 if they got the same.
//! 2. Three clients with the weights 1, 2 and 4 each ask for the whole pool.
//!
//! In 20 s on two busy cores, the twenty got 64 to 83 requests each (an index of 0.994), and the three
//! 255, 495 and 1,040. `tests/servers/fair_load.rs` has the same load for 6 s, with Redis.
#![allow(clippy::print_stdout)]

use std::{convert::Infallible, io, net::SocketAddr, time::Duration};

use axum::{Router, routing::get};
use futures::future::join_all;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    time::{Instant, interval_at},
};
use tower_sluice::{
    Cost, LocalStore, Quota, RateLimitLayer, Rule, Store,
    key::{Everyone, HeaderKey},
};

const RATE: u32 = 100;
const BURST: u32 = 40;
/// The time before the first counted request, in which the pool's burst is spent.
const WARM: Duration = Duration::from_secs(2);

#[derive(Clone, Copy)]
pub(crate) struct Client {
    weight: u32,
    /// The requests per second of each connection, and the connections.
    rate: u32,
    connections: usize,
    /// The client sends in even (0) or odd (1) seconds only.
    phase: Option<u64>,
}

/// Twenty clients that pause, and one that does not.
pub(crate) fn pausing() -> Vec<Client> {
    let client = |at| Client { weight: 1, rate: 10, connections: 1, phase: Some(at % 2) };
    let flood = Client { weight: 1, rate: RATE, connections: 10, phase: None };
    (0_u64..20).map(client).chain([flood]).collect()
}

/// Three clients with weights.
pub(crate) fn weighted() -> Vec<Client> {
    let client = |weight| Client { weight, rate: RATE, connections: 1, phase: None };
    [1, 2, 4].map(client).into()
}

/// The requests that were admitted, and the time of the load.
pub(crate) struct Load {
    /// Requests of each client, without the first two seconds.
    pub(crate) counted: Vec<u32>,
    /// Requests of all clients, from the start.
    pub(crate) admitted: u32,
    pub(crate) time: Duration,
}

impl Load {
    /// Returns Jain's index of the first clients.
    pub(crate) fn jain(&self, clients: usize) -> f64 {
        let of = || self.counted.iter().take(clients).map(|it| f64::from(*it));
        let (sum, squares) = (of().sum::<f64>(), of().map(|it| it * it).sum::<f64>());
        sum * sum / (squares * of().map(|_| 1.0).sum::<f64>())
    }

    /// Returns the most requests that the pool admits in the time of the load.
    pub(crate) fn bound(&self) -> f64 {
        f64::from(BURST) + f64::from(RATE) * self.time.as_secs_f64()
    }
}

/// Starts a server with a pool, and sends the requests of all clients.
pub(crate) async fn load<S>(store: S, clients: &[Client], time: Duration) -> io::Result<Load>
where
    S: Store<Error = Infallible> + Send + Sync + 'static,
    S::Future: Send + 'static,
{
    let weight = Cost::from_fn(|head| {
        let weight = head.headers.get("x-weight").and_then(|it| it.to_str().ok());
        weight.and_then(|it| it.parse().ok()).unwrap_or(1)
    });
    let site = Rule::new("site", Everyone, Quota::per_second(RATE).with_burst(BURST));
    let site = site.fair_by(HeaderKey::new("x-api-key")).weight(weight);
    let app = Router::new().route("/", get(async || "hello\n"));
    let app = app.layer(RateLimitLayer::rules(site, store));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let server = tokio::spawn(async move { axum::serve(listener, app).await });
    let start = Instant::now();
    let sent = clients.iter().enumerate().map(async |(key, client)| {
        let connections = (0..client.connections).map(|_| send(address, key, *client, start, time));
        let sent: Result<Vec<_>, _> = join_all(connections).await.into_iter().collect();
        sent.map(|sent| sent.into_iter().fold((0, 0), |all, it| (all.0 + it.0, all.1 + it.1)))
    });
    let sent: Vec<(u32, u32)> = join_all(sent).await.into_iter().collect::<Result<_, _>>()?;
    let time = start.elapsed();
    server.abort();
    let counted = sent.iter().map(|(counted, _)| *counted).collect();
    Ok(Load { counted, admitted: sent.iter().map(|(_, admitted)| admitted).sum(), time })
}

/// Sends the requests of a connection. Returns the admitted ones: after two seconds, and all.
async fn send(
    address: SocketAddr,
    key: usize,
    client: Client,
    start: Instant,
    time: Duration,
) -> io::Result<(u32, u32)> {
    let mut stream = BufReader::new(TcpStream::connect(address).await?);
    let weight = client.weight;
    let request =
        format!("GET / HTTP/1.1\r\nhost: a\r\nx-api-key: c{key}\r\nx-weight: {weight}\r\n\r\n");
    let gap = Duration::from_secs(1) / client.rate;
    let (mut counted, mut admitted) = (0, 0);
    let mut ticks = interval_at(start + gap / 21 * u32::try_from(key % 21).unwrap_or(0), gap);
    loop {
        let at = ticks.tick().await - start;
        if at >= time {
            return Ok((counted, admitted));
        }
        if client.phase.is_some_and(|phase| at.as_secs() % 2 != phase) {
            continue;
        }
        stream.write_all(request.as_bytes()).await?;
        if status(&mut stream).await? == 200 {
            admitted += 1;
            counted += u32::from(at >= WARM);
        }
    }
}

/// Reads a response, and returns its status.
async fn status(stream: &mut BufReader<TcpStream>) -> io::Result<u16> {
    let (mut status, mut length) = (None, 0);
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await?;
        match line.trim().split_once(' ') {
            Some(("HTTP/1.1", rest)) => status = rest.get(..3).and_then(|it| it.parse().ok()),
            Some(("content-length:", value)) => length = value.parse().unwrap_or(0),
            Some(_) => {}
            None => break,
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    status.ok_or_else(|| io::Error::other("a response without a status"))
}

#[tokio::main]
async fn main() -> io::Result<()> {
    let seconds = std::env::args().nth(1).and_then(|it| it.parse().ok()).unwrap_or(20);
    let time = Duration::from_secs(seconds);
    let pausing = load(LocalStore::new(), &pausing(), time).await?;
    let (admitted, bound, jain) = (pausing.admitted, pausing.bound(), pausing.jain(20));
    println!(
        "each of 20 that pause, and one that asks for ten times the pool: {:?}",
        pausing.counted
    );
    println!("Jain's index of the 20: {jain:.3}; {admitted} admitted, at most {bound:.0}");
    let weighted = load(LocalStore::new(), &weighted(), time).await?;
    let (admitted, bound) = (weighted.admitted, weighted.bound());
    println!("weights 1, 2 and 4: {:?}; {admitted} admitted, at most {bound:.0}", weighted.counted);
    Ok(())
}

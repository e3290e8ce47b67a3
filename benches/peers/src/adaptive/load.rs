//! Clients that send at a rate of their own, also while the server does not answer.

use std::{
    fmt,
    net::SocketAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinSet,
    time::{Instant, sleep, sleep_until, timeout},
};

/// The time after which a client gives up.
const PATIENCE: Duration = Duration::from_secs(1);
/// The most requests at a time, because a process has about 1,000 descriptors. More of them fail.
const MOST: usize = 400;

/// The load of a phase.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// The rate of requests, in parts of the capacity.
    pub rate: f64,
    /// The clients that read a large response slowly.
    pub slow: usize,
    /// The share of the requests that the handler answers with 503 after its work.
    pub broken: f64,
}

impl Load {
    pub const fn of(rate: f64) -> Self {
        Self { rate, slow: 0, broken: 0.0 }
    }
}

/// The result of a phase, of the requests that arrived after it had settled.
#[derive(Debug, Default)]
pub struct Figures {
    /// The seconds until each good response, ascending.
    pub latencies: Vec<f64>,
    shed: usize,
    failed: usize,
    seconds: f64,
}

impl Figures {
    /// Returns the good responses per second.
    pub fn goodput(&self) -> f64 {
        self.latencies.len() as f64 / self.seconds
    }

    /// Returns the share of the requests without a good response.
    pub fn lost(&self) -> f64 {
        let lost = (self.shed + self.failed) as f64;
        lost / (lost + self.latencies.len() as f64)
    }

    pub fn percentile(&self, share: f64) -> f64 {
        let at = (self.latencies.len() as f64 * share) as usize;
        self.latencies.get(at.min(self.latencies.len().saturating_sub(1))).copied().unwrap_or(0.0)
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (p50, p99) = (self.percentile(0.5) * 1e3, self.percentile(0.99) * 1e3);
        let Self { shed, failed, .. } = self;
        write!(f, "{:.0}/s, p50 {p50:.1} ms, p99 {p99:.1} ms, ", self.goodput())?;
        write!(f, "{shed} shed, {failed} failed")
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Good,
    Shed,
    Failed,
}

/// Connections without a request.
#[derive(Clone)]
struct Pool {
    address: SocketAddr,
    idle: Arc<Mutex<Vec<TcpStream>>>,
    busy: Arc<AtomicUsize>,
}

impl Pool {
    fn new(address: SocketAddr) -> Self {
        Self { address, idle: Arc::default(), busy: Arc::default() }
    }

    async fn ask(&self, path: &str) -> Answer {
        if self.busy.fetch_add(1, Relaxed) >= MOST {
            self.busy.fetch_sub(1, Relaxed);
            return Answer::Failed;
        }
        let asked = timeout(PATIENCE, self.exchange(path)).await;
        self.busy.fetch_sub(1, Relaxed);
        match asked {
            Ok(Ok(200)) => Answer::Good,
            Ok(Ok(_)) => Answer::Shed,
            Ok(Err(_)) | Err(_) => Answer::Failed,
        }
    }

    /// Sends one request, and returns the status. A connection that fails is dropped.
    async fn exchange(&self, path: &str) -> std::io::Result<u16> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut stream = match idle {
            Some(stream) => stream,
            None => connect(self.address).await?,
        };
        let request = format!("GET {path} HTTP/1.1\r\nhost: bench\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let status = read_response(&mut stream).await?;
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(stream);
        Ok(status)
    }
}

async fn connect(address: SocketAddr) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Reads a response with a `content-length`.
async fn read_response(stream: &mut TcpStream) -> std::io::Result<u16> {
    let broken = || std::io::Error::other("no HTTP response");
    let (mut bytes, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        let read = stream.read(&mut buffer).await?;
        if read == 0 {
            return Err(broken());
        }
        bytes.extend_from_slice(&buffer[..read]);
        let Some(end) = bytes.windows(4).position(|it| it == b"\r\n\r\n") else { continue };
        let head = std::str::from_utf8(&bytes[..end]).map_err(|_| broken())?;
        let status = head.get(9..12).and_then(|it| it.parse().ok()).ok_or_else(broken)?;
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let length: usize = length.and_then(|it| it.parse().ok()).ok_or_else(broken)?;
        if bytes.len() >= end + 4 + length {
            return Ok(status);
        }
    }
}

/// Returns the requests per second of eight clients that send without a pause.
pub async fn capacity(address: SocketAddr, time: Duration) -> f64 {
    let (pool, end) = (Pool::new(address), Instant::now() + time);
    let mut clients = JoinSet::new();
    for _ in 0..8 {
        let pool = pool.clone();
        clients.spawn(async move {
            let mut answers = 0;
            while Instant::now() < end {
                assert_eq!(pool.ask("/").await, Answer::Good, "the server has no limit");
                answers += 1;
            }
            answers
        });
    }
    let answers: u32 = clients.join_all().await.into_iter().sum();
    f64::from(answers) / time.as_secs_f64()
}

/// Reads 1 KiB of a large response every 100 ms.
async fn read_slowly(address: SocketAddr) -> std::io::Result<()> {
    loop {
        let mut stream = connect(address).await?;
        stream
            .write_all(b"GET /large HTTP/1.1\r\nhost: bench\r\nconnection: close\r\n\r\n")
            .await?;
        let mut buffer = [0; 1024];
        while stream.read(&mut buffer).await? > 0 {
            sleep(Duration::from_millis(100)).await;
        }
    }
}

/// Sends requests at random instants, and measures those of the last `time`.
pub async fn run(
    address: SocketAddr,
    load: Load,
    capacity: f64,
    settling: Duration,
    time: Duration,
) -> Figures {
    let (pool, start) = (Pool::new(address), Instant::now());
    let (measured, end) = (start + settling, start + settling + time);
    let mut slow = JoinSet::new();
    for _ in 0..load.slow {
        slow.spawn(read_slowly(address));
    }
    let (mut random, mut next, mut running) =
        (Random(0x9e37_79b9_7f4a_7c15), start, JoinSet::new());
    while next < end {
        sleep_until(next).await;
        let is_broken = random.unit() < load.broken;
        let (pool, at) = (pool.clone(), next);
        running.spawn(async move {
            let answer = pool.ask(if is_broken { "/broken" } else { "/" }).await;
            (at, is_broken, answer, at.elapsed().as_secs_f64())
        });
        let pause = -(1.0 - random.unit()).ln() / (capacity * load.rate);
        next += Duration::from_secs_f64(pause);
    }
    let mut figures = Figures { seconds: time.as_secs_f64(), ..Figures::default() };
    for (at, is_broken, answer, latency) in running.join_all().await {
        if at < measured || is_broken {
            continue;
        }
        match answer {
            Answer::Good => figures.latencies.push(latency),
            Answer::Shed => figures.shed += 1,
            Answer::Failed => figures.failed += 1,
        }
    }
    figures.latencies.sort_by(f64::total_cmp);
    figures
}

/// Pseudo-random numbers, equal in each run (xorshift).
struct Random(u64);

impl Random {
    fn unit(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1_u64 << 53) as f64
    }
}

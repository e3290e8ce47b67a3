//! Requests sent as clients send them: over HTTP to this server, with a connection each. A page
//! cannot do that, because a browser opens six connections per server and queues other requests.

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use axum::{
    Router,
    body::Body,
    extract::{Query, State},
    http::{Request, StatusCode, header},
    response::IntoResponse,
    routing::get,
};
use futures::{
    Stream, StreamExt,
    future::ready,
    stream::{self, BoxStream},
};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{
    sync::Semaphore,
    time::{MissedTickBehavior, interval, sleep},
};

use crate::visit::{ErrorResponse, Visitor, Visits, unix_time};

/// The maximum number of concurrent requests of one `/fire`, per lane.
const MOST: u64 = 200;
/// The maximum of all together. Each takes two of this process's descriptors, often limited to
/// 1,024.
const MOST_OF_ALL: usize = 400;
const FIX: &str = "give n from 1 to 200, each_side from 1 to 100, or every_ms from 20 to 60000";
/// The longest period with bursts around its end.
const LONGEST: Duration = Duration::from_secs(60);

/// The query: `?n=20` for concurrent requests, `?each_side=10` for two bursts around the end of a
/// window, or `?every_ms=100` for one after another until the client disconnects.
#[derive(Deserialize)]
struct Course {
    n: Option<u64>,
    each_side: Option<u64>,
    every_ms: Option<u64>,
}

#[derive(Clone)]
struct Clients {
    visits: Visits,
    here: SocketAddr,
    client: Client<HttpConnector, Body>,
    slots: Arc<Semaphore>,
}

/// Two bursts, one before and one after the end of a window that is aligned to the clock. Times are
/// since 1970.
#[derive(Clone)]
struct Boundary {
    at: Duration,
    /// The time between the first burst and the end, and the most between the end and the second.
    side: Duration,
    each_side: u64,
    is_missed: Arc<AtomicBool>,
}

pub(crate) fn router(here: SocketAddr, visits: Visits) -> Router {
    // Connections are not reused.
    let client = Client::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build_http();
    let slots = Arc::new(Semaphore::new(MOST_OF_ALL));
    Router::new().route("/fire", get(fire)).with_state(Clients { visits, here, client, slots })
}

/// Sends each request to both lanes. Writes a line of JSON when a request is sent, and one when it
/// is answered. A disconnect cancels the running requests.
async fn fire(
    State(clients): State<Clients>,
    Visitor(visitor): Visitor,
    Query(course): Query<Course>,
) -> Result<impl IntoResponse, ErrorResponse> {
    let lanes = clients.visits.of(&visitor)?;
    let wrong = |why: &str| (StatusCode::UNPROCESSABLE_ENTITY, why.to_owned());
    let start = Instant::now();
    let mut boundary = None;
    let ids = match (course.n, course.each_side, course.every_ms) {
        (Some(n @ 1..=MOST), None, None) => stream::iter(0..n).boxed(),
        (None, Some(each_side @ 1..=100), None) => {
            let period = lanes[0].period();
            if period.is_zero() {
                return Err(wrong("slots have no window; choose another first algorithm"));
            }
            if period > LONGEST {
                return Err(wrong("the period is longer than 60 s; shorten it for two bursts"));
            }
            let next = Boundary::next(period, each_side);
            boundary = Some(next.clone());
            next.ids()
        }
        (None, None, Some(every @ 20..=60_000)) => ticks(Duration::from_millis(every)).boxed(),
        _ => return Err(wrong(FIX)),
    };
    let first = boundary.as_ref().map(|it| json!({ "boundary_ms": millis_until(it.at, start) }));
    let last = boundary.clone();
    let requests = ids.flat_map(|id| stream::iter([(id, 0), (id, 1)])).map(move |(id, lane)| {
        let sent = json!({ "id": id, "lane": lane, "at_ms": millis(start) });
        let request = clients.clone().request(visitor.clone(), lane);
        let boundary = boundary.clone();
        let answered = async move {
            let mut line = request.await;
            if let Some(boundary) = boundary {
                boundary.check(id, &line);
            }
            line["id"] = json!(id);
            line["lane"] = json!(lane);
            line["at_ms"] = json!(millis(start));
            line
        };
        stream::once(ready(sent)).chain(stream::once(answered)).boxed()
    });
    let requests = requests.flatten_unordered(MOST_OF_ALL);
    let end = stream::iter(last).map(|it| json!({ "too_slow": it.is_missed.load(Relaxed) }));
    let lines = stream::iter(first).chain(requests).chain(end);
    let lines = lines.map(|line| Ok::<_, Infallible>(format!("{line}\n")));
    Ok(([(header::CONTENT_TYPE, "application/x-ndjson")], Body::from_stream(lines)))
}

fn ticks(every: Duration) -> impl Stream<Item = u64> {
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    stream::unfold((0, ticks), async |(id, mut ticks)| {
        ticks.tick().await;
        Some((id, (id + 1, ticks)))
    })
}

impl Boundary {
    /// Finds the next end of a window that leaves time for the first burst.
    fn next(period: Duration, each_side: u64) -> Self {
        let (now, side) = (unix_time(), period / 4);
        let period = period.as_nanos().max(1);
        let windows = (now + side).as_nanos() / period + 1;
        let at = u64::try_from(windows * period).map(Duration::from_nanos).unwrap_or(now);
        Self { at, side, each_side, is_missed: Arc::default() }
    }

    fn ids(self) -> BoxStream<'static, u64> {
        let n = self.each_side;
        let burst = |at: Duration, ids: std::ops::Range<u64>| {
            let wait = async move { sleep(at.saturating_sub(unix_time())).await };
            stream::once(wait).flat_map(move |()| stream::iter(ids.clone()))
        };
        // A clock may be read in milliseconds, and the timer is as coarse.
        let after = self.at + self.side / 5;
        burst(self.at - self.side, 0..n).chain(burst(after, n..2 * n)).boxed()
    }

    /// Checks that a request arrived on its side of the boundary, and near it.
    fn check(&self, id: u64, answer: &Value) {
        let arrived = answer["arrived_ms"].as_u64().map(Duration::from_millis);
        let in_time = arrived.is_some_and(|arrived| match id < self.each_side {
            true => arrived < self.at,
            false => (self.at..self.at + self.side).contains(&arrived),
        });
        if !in_time {
            self.is_missed.store(true, Relaxed);
        }
    }
}

impl Clients {
    /// Returns the response as the client saw it: the status line, and the fields in the server's
    /// spelling.
    async fn request(self, visitor: String, lane: u8) -> Value {
        let url = format!("http://{}/try/{lane}", self.here);
        let request = Request::get(url).header("x-visitor", visitor);
        let request = request.body(Body::empty()).expect("a valid request");
        let _slot = self.slots.acquire().await;
        let answer = match self.client.request(request).await {
            Ok(answer) => answer,
            Err(error) => return json!({ "failed": error.to_string() }),
        };
        let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
        let fields = answer.headers().iter();
        let fields: Vec<_> =
            fields.map(|(name, value)| (name.as_str(), text(value.as_bytes()))).collect();
        let arrived = answer.headers().get("x-arrived-ms").and_then(|it| it.to_str().ok());
        json!({
            "head": format!("{:?} {}", answer.version(), answer.status()),
            "allowed": answer.status().is_success(),
            "arrived_ms": arrived.and_then(|it| it.parse::<u64>().ok()),
            "fields": fields,
        })
    }
}

fn millis(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e3
}

/// Returns the time from `start` to an instant since 1970.
fn millis_until(at: Duration, start: Instant) -> f64 {
    at.saturating_sub(unix_time()).as_secs_f64() * 1e3 + millis(start)
}

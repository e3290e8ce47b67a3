//! Requests sent as clients send them: over HTTP to this server, with a connection each. A page
//! cannot do that, because a browser opens six connections per server and queues other requests.

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::Arc,
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
use futures::{Stream, StreamExt, future::ready, stream};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{
    sync::Semaphore,
    time::{MissedTickBehavior, interval},
};

use crate::visit::{ErrorResponse, Visitor, Visits};

/// The maximum number of concurrent requests of one `/fire`.
const MOST: usize = 200;
/// The maximum of all together. Each takes two of this process's descriptors, often limited to
/// 1,024.
const MOST_OF_ALL: usize = 300;
const ASKED: &str = "give n from 1 to 200, or every_ms from 20 to 60000";

/// The query: `?n=20` for concurrent requests, or `?every_ms=100` for one after another until the
/// client disconnects.
#[derive(Deserialize)]
struct Asked {
    n: Option<usize>,
    every_ms: Option<u64>,
}

#[derive(Clone)]
struct Clients {
    visits: Visits,
    here: SocketAddr,
    client: Client<HttpConnector, Body>,
    slots: Arc<Semaphore>,
}

pub(crate) fn router(here: SocketAddr, visits: Visits) -> Router {
    // Connections are not reused.
    let client = Client::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build_http();
    let slots = Arc::new(Semaphore::new(MOST_OF_ALL));
    Router::new().route("/fire", get(fire)).with_state(Clients { visits, here, client, slots })
}

/// Writes a line of JSON when a request is sent, and one when it is answered. A disconnect cancels
/// the running requests.
async fn fire(
    State(clients): State<Clients>,
    Visitor(visitor): Visitor,
    Query(asked): Query<Asked>,
) -> Result<impl IntoResponse, ErrorResponse> {
    clients.visits.of(&visitor)?;
    let (n, every) = match (asked.n, asked.every_ms) {
        (Some(n @ 1..=MOST), None) => (n, None),
        (None, Some(every @ 20..=60_000)) => (usize::MAX, Some(Duration::from_millis(every))),
        _ => return Err((StatusCode::UNPROCESSABLE_ENTITY, ASKED.to_owned())),
    };
    let start = Instant::now();
    let requests = ids(every).take(n).map(move |id| {
        let sent = json!({ "id": id, "at_ms": millis(start) });
        let request = clients.clone().request(visitor.clone());
        let answered = async move {
            let mut line = request.await;
            line["id"] = json!(id);
            line["at_ms"] = json!(millis(start));
            line
        };
        stream::once(ready(sent)).chain(stream::once(answered)).boxed()
    });
    let lines =
        requests.flatten_unordered(MOST).map(|line| Ok::<_, Infallible>(format!("{line}\n")));
    Ok(([(header::CONTENT_TYPE, "application/x-ndjson")], Body::from_stream(lines)))
}

fn ids(every: Option<Duration>) -> impl Stream<Item = u64> {
    let mut ticks = every.map(interval);
    if let Some(ticks) = &mut ticks {
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    }
    stream::unfold((0, ticks), async |(id, mut ticks)| {
        if let Some(ticks) = &mut ticks {
            ticks.tick().await;
        }
        Some((id, (id + 1, ticks)))
    })
}

impl Clients {
    /// Returns the response as the client saw it: the status line, and the fields in the server's
    /// spelling.
    async fn request(self, visitor: String) -> Value {
        let request =
            Request::get(format!("http://{}/try", self.here)).header("x-visitor", visitor);
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
        json!({
            "head": format!("{:?} {}", answer.version(), answer.status()),
            "admitted": answer.status().is_success(),
            "fields": fields,
        })
    }
}

fn millis(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e3
}

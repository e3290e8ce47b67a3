//! A layer for HTTP clients that obeys the limits of hosts.

use std::{
    collections::HashMap,
    fmt::{self, Display, Formatter},
    hash::{BuildHasher, RandomState},
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
    time::{Duration, SystemTime},
};

use http::{HeaderMap, Request, Response, StatusCode, header::RETRY_AFTER};
use sfv::{BareItem, Item, List, ListEntry, Parser};
use tokio::time::{Instant, sleep_until};
use tower::{BoxError, Layer, Service, ServiceExt, layer::layer_fn};

use super::throttle::Throttle;

/// Obeys `Retry-After` and `RateLimit` of each host, and sheds calls to a host that rejects most.
///
/// A rejected call is repeated at the time that the host gave, unless that is later than `patience`
/// after its start. Clones of the layer share what is known of the hosts.
pub(crate) fn obey<S>(patience: Duration) -> impl Layer<S, Service = Obey<S>> + Clone {
    let hosts = Arc::<Mutex<HashMap<String, Arc<Mutex<Host>>>>>::default();
    layer_fn(move |client| Obey { patience, hosts: hosts.clone(), client })
}

#[derive(Clone)]
pub(crate) struct Obey<S> {
    patience: Duration,
    hosts: Arc<Mutex<HashMap<String, Arc<Mutex<Host>>>>>,
    client: S,
}

/// The error of a call that was not sent.
#[derive(Debug, PartialEq)]
pub(crate) enum NotSent {
    /// The host rejects most calls.
    Shed,
    /// The host takes no call for this time, which is longer than the patience.
    TooEarly(Duration),
}

impl Display for NotSent {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shed => f.write_str("not sent: the host rejects most calls"),
            Self::TooEarly(wait) => write!(f, "not sent: the host takes no call for {wait:?}"),
        }
    }
}

impl std::error::Error for NotSent {}

impl<S, B: Clone + Send + 'static, R: Send + 'static> Service<Request<B>> for Obey<S>
where
    S: Service<Request<B>, Response = Response<R>, Error: Into<BoxError> + Send, Future: Send>,
    S: Clone + Send + 'static,
{
    type Response = Response<R>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Response<R>, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(())) // Each attempt waits for a clone of the client.
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let name = request.uri().host().unwrap_or_default().to_owned();
        let host = lock(&self.hosts).entry(name).or_default().clone();
        let client = self.client.clone();
        let now = Instant::now();
        let deadline = now + self.patience;
        Box::pin(async move {
            if random() < lock(&host).throttle.probability(now) {
                lock(&host).throttle.record(now, false);
                return Err(NotSent::Shed.into());
            }
            let turn = lock(&host).turn(now, deadline)?;
            let result = attempts(client, request, &host, turn, deadline).await;
            let is_accepted = result.as_ref().is_ok_and(|response| !is_rejection(response));
            lock(&host).throttle.record(Instant::now(), is_accepted);
            result.map_err(Into::into)
        })
    }
}

/// Calls the host at its turns until it accepts, gives no time, or gives one after the deadline.
async fn attempts<S, B: Clone, R>(
    client: S,
    request: Request<B>,
    host: &Mutex<Host>,
    mut turn: Instant,
    deadline: Instant,
) -> Result<Response<R>, S::Error>
where
    S: Service<Request<B>, Response = Response<R>> + Clone,
{
    let mut longest_jitter = Duration::ZERO;
    loop {
        sleep_until(turn).await;
        let response = client.clone().oneshot(request.clone()).await?;
        let now = Instant::now();
        lock(host).read(response.headers(), now);
        let wait = retry_after(response.headers()).filter(|_| is_rejection(&response));
        let Some(wait) = wait else {
            return Ok(response);
        };
        let earliest = now + wait + longest_jitter.mul_f64(random());
        let Ok(next) = lock(host).turn(earliest, deadline) else {
            return Ok(response);
        };
        turn = next;
        // A host that rejects a call at its time has more clients than it distinguishes.
        longest_jitter = longest_jitter * 2 + wait;
    }
}

/// The state of a host, as far as it is known.
#[derive(Default)]
struct Host {
    throttle: Throttle,
    /// The next free turn, if one was taken. It may be past.
    next: Option<Instant>,
    /// The time between turns.
    spacing: Duration,
}

impl Host {
    /// Takes the first free turn from `earliest` on, unless it is after the deadline.
    fn turn(&mut self, earliest: Instant, deadline: Instant) -> Result<Instant, NotSent> {
        let turn = self.next.map_or(earliest, |next| next.max(earliest));
        if turn > deadline {
            return Err(NotSent::TooEarly(turn - earliest));
        }
        self.next = Some(turn + self.spacing);
        Ok(turn)
    }

    /// Reads `RateLimit`. If a limit is used up, nobody calls before its next unit, and then no more
    /// often than its units come back.
    fn read(&mut self, headers: &HeaderMap, now: Instant) {
        self.spacing = Duration::ZERO;
        let policies = items(headers, "ratelimit-policy");
        for limit in items(headers, "ratelimit") {
            let Some(seconds) = number(&limit, "t") else {
                continue;
            };
            if number(&limit, "r") != Some(0) {
                continue;
            }
            self.next = self.next.max(Some(now + Duration::from_secs(seconds.into())));
            let policy = policies.iter().find(|policy| policy.bare_item == limit.bare_item);
            self.spacing = self.spacing.max(policy.and_then(interval).unwrap_or_default());
        }
    }
}

/// Returns the time in which a unit of a policy comes back.
fn interval(policy: &Item) -> Option<Duration> {
    let window = Duration::from_secs(number(policy, "w")?.into());
    window.checked_div(number(policy, "q")?)
}

fn number(item: &Item, parameter: &str) -> Option<u32> {
    let value = item.params.get(parameter).and_then(BareItem::as_integer)?;
    u32::try_from(i64::from(value)).ok()
}

/// Returns the members of a field, or none if it cannot be read.
fn items(headers: &HeaderMap, name: &str) -> Vec<Item> {
    let text = headers.get(name).map_or(&b""[..], |value| value.as_bytes());
    let mut items = Vec::new();
    for member in Parser::new(text).parse::<List>().unwrap_or_default() {
        if let ListEntry::Item(item) = member {
            items.push(item);
        }
    }
    items
}

/// Returns the wait of `Retry-After`, in seconds or until a date.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?;
    if let Ok(seconds) = text.parse::<u32>() {
        return Some(Duration::from_secs(seconds.into()));
    }
    let date = httpdate::parse_http_date(text).ok()?;
    Some(date.duration_since(SystemTime::now()).unwrap_or_default())
}

fn is_rejection<R>(response: &Response<R>) -> bool {
    matches!(response.status(), StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE)
}

/// Returns a random number from 0 to 1.
fn random() -> f64 {
    let bits = u32::try_from(RandomState::new().hash_one(0) >> 32).unwrap_or(u32::MAX);
    f64::from(bits) / f64::from(u32::MAX)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

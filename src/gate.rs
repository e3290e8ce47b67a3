//! What a layer does with a request before the service sees it: ask, then admit or refuse.

use std::{
    hash::{BuildHasher, RandomState},
    sync::Arc,
    time::Duration,
};

use http::{Method, Response, header::ACCESS_CONTROL_REQUEST_METHOD, request::Parts};

use crate::{
    decision::Decision,
    headers::{Lines, Plan, write_retry_after},
    key::KeyError,
    reject::{Reject, Rejection},
    rule::Rules,
    store::{Answer, CannotFail, Store},
};

/// Everything the services of one layer share.
#[derive(Debug)]
pub(crate) struct Gate<K, S, R> {
    pub(crate) rules: Arc<K>,
    pub(crate) store: Arc<S>,
    pub(crate) reject: Arc<R>,
    pub(crate) plan: Arc<Plan>,
    pub(crate) settings: Settings,
}

/// The layer's knobs that are plain values.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Settings {
    pub(crate) only_denied: bool,
    pub(crate) expose: bool,
    pub(crate) preflights: bool,
    /// Percent of the wait that may be added to it.
    pub(crate) jitter: u8,
}

/// What an admitted request carries to its response.
#[derive(Debug, Default)]
pub(crate) struct Pass {
    lines: Option<Lines>,
    exposed: Option<Box<Decision>>,
}

impl Pass {
    pub(crate) fn stamp<B>(self, response: &mut Response<B>) {
        if let Some(lines) = self.lines {
            lines.write(response.headers_mut());
        }
        if let Some(decision) = self.exposed {
            response.extensions_mut().insert(*decision);
        }
    }
}

impl<K, S, R> Gate<K, S, R>
where
    K: Rules,
    S: Store<Error: CannotFail>,
{
    /// Asks the store. `None`: nothing limits this request.
    #[inline]
    pub(crate) fn ask(&self, parts: &Parts) -> Result<Option<Answer<S::Future>>, KeyError> {
        if !self.settings.preflights && is_preflight(parts) {
            return Ok(None);
        }
        let mut answer = None;
        self.rules.charge(parts, &[], &mut |charges| {
            if !charges.is_empty() {
                answer = Some(self.store.take(charges));
            }
        })?;
        Ok(answer)
    }
}

impl<K, S, R> Gate<K, S, R> {
    /// Lets the request pass, or says what to answer instead.
    #[inline]
    pub(crate) fn conclude<E: CannotFail, B>(
        &self,
        decision: Result<Decision, E>,
        parts: &mut Parts,
    ) -> Result<Pass, Response<B>>
    where
        R: Reject<B>,
    {
        let decision = decision.unwrap_or_else(CannotFail::absurd);
        if !decision.is_allowed() {
            return Err(self.refuse(&decision, parts));
        }
        let lines = if self.settings.only_denied { None } else { self.plan.read(&decision) };
        let exposed = self.settings.expose.then(|| {
            parts.extensions.insert(decision.clone());
            Box::new(decision)
        });
        Ok(Pass { lines, exposed })
    }

    fn refuse<B>(&self, decision: &Decision, parts: &Parts) -> Response<B>
    where
        R: Reject<B>,
    {
        let retry_after = decision.retry_after().map(|wait| self.jittered(wait));
        let why = Rejection::denied(decision, retry_after, &self.plan);
        let mut response = self.reject.reject(&why, parts);
        if let Some(wait) = retry_after {
            write_retry_after(response.headers_mut(), wait);
        }
        if let Some(lines) = self.plan.read(decision) {
            lines.write(response.headers_mut());
        }
        if self.settings.expose {
            response.extensions_mut().insert(decision.clone());
        }
        response
    }

    pub(crate) fn refuse_unkeyed<B>(&self, error: &KeyError, parts: &Parts) -> Response<B>
    where
        R: Reject<B>,
    {
        if error.is_no_peer() {
            log_no_peer(error);
        }
        self.reject.reject(&Rejection::unkeyed(error, &self.plan), parts)
    }

    /// The refused of one moment would all come back in one moment; later is never too early.
    fn jittered(&self, wait: Duration) -> Duration {
        if self.settings.jitter == 0 {
            return wait;
        }
        let share = RandomState::new().hash_one(0) % (u64::from(self.settings.jitter) + 1);
        wait.saturating_add(wait.mul_f64(share as f64 / 100.0))
    }
}

/// A browser shows a refused preflight as an opaque failure of CORS.
fn is_preflight(parts: &Parts) -> bool {
    parts.method == Method::OPTIONS && parts.headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
}

/// Once a minute: a line per request would amplify a flood.
#[cfg(feature = "tracing")]
fn log_no_peer(error: &KeyError) {
    use std::{sync::Mutex, time::Instant};

    static LAST: Mutex<Option<Instant>> = Mutex::new(None);
    let Ok(mut last) = LAST.try_lock() else { return };
    if last.is_none_or(|last| last.elapsed() >= Duration::from_secs(60)) {
        *last = Some(Instant::now());
        tracing::error!("every request is refused with 500: {error}");
    }
}

#[cfg(not(feature = "tracing"))]
fn log_no_peer(_: &KeyError) {}

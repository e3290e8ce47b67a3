//! Decides if a request runs, waits or is rejected. The module `waiting` has the decisions on requests that
//! wait.

#[cfg(feature = "axum")]
use std::any::TypeId;
use std::{
    any::type_name,
    mem,
    pin::Pin,
    slice,
    sync::Mutex,
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use http::Response;
use pin_project_lite::pin_project;
use smallvec::SmallVec;

use super::{
    RateLimitLayer,
    config::{Override, PenaltySet, ResponseContext},
    overcommit::InFlight,
    queue::QueuedRequest,
};
use crate::{
    decision::{Decision, Source},
    head::RequestHead,
    headers::{Lines, RETRY_AFTER_MS, Template},
    key::KeyError,
    log::error,
    observe::{Charged, DecisionEvent},
    quota::Quota,
    reject::{Reject, Rejection},
    rule::{self, Attempts, Bypass, Candidates, OwnedCandidates, Rules},
    store::{self, Answer, CannotFail, Charge, Op, Store, StoreExt, millis},
};

/// The next step of a request. `P` is the type of responses.
///
/// No variant holds a [`Decision`] or a [`QueuedRequest`], because moving them is slow.
pub(super) enum Admission<P, S: Store> {
    /// The request runs. The response gets these header fields, if any.
    Admitted(Option<Lines>),
    /// The request runs. The handler and the response get more than header fields.
    Extended(Box<ResponseContext>),
    /// The request waits: for its turn, or for a slot.
    Waiting(Box<QueuedRequest<S>>),
    /// The request is rejected with this response.
    Rejected(P),
    /// The answer of the store is pending.
    Deciding(Pin<Box<PendingCharge<S>>>),
}

/// The next step of a request whose response has a body of the type `B`.
pub(super) type Next<B, S> = Admission<Response<B>, S>;

pin_project! {
    /// A pending store call, and its charges.
    pub(super) struct PendingCharge<S>
    where
        S: Store,
    {
        #[pin]
        decision: S::Future,
        charges: OwnedCandidates,
        attempts: Attempts,
        asked: Asked,
        queued: Option<Box<QueuedRequest<S>>>,
    }
}

/// The first call of the store about a request.
#[derive(Clone, Copy)]
pub(super) struct Asked {
    /// The instant before the call, for metrics.
    at: Option<Instant>,
    /// The penalties under which a denial is a strike.
    striking: PenaltySet,
}

impl Asked {
    #[inline]
    pub(super) fn now(striking: PenaltySet) -> Self {
        Self {
            at: cfg!(feature = "metrics").then(Instant::now),
            striking,
        }
    }
}

/// Decisions. `B` is the type of response bodies.
impl<K, S, R> RateLimitLayer<K, S, R>
where
    K: Rules,
    S: Store<Error: CannotFail>,
{
    /// Decides on a request, or starts a store call that completes later.
    #[inline(always)]
    pub(super) fn admit<B: 'static>(&self, head: &RequestHead<'_>) -> Next<B, S>
    where
        R: Reject<B>,
    {
        if let Err(bypass) = self.settings.check_bypass(head) {
            return self.bypass(head, bypass);
        }
        let one = |charge: &Charge<'_>| self.decide(head, slice::from_ref(charge));
        let several = |all: Candidates<'_, '_>| match all.choices {
            [] => self.decide(head, all.charges),
            _ => self.choose(head, all),
        };
        self.rules
            .with_charges(head, one, several, |bypass| self.bypass(head, bypass))
    }

    /// Calls `then` with the charges of a request. If no store call is needed, calls `bypassed`.
    pub(super) fn charges<T>(
        &self,
        head: &RequestHead<'_>,
        then: impl FnOnce(Candidates<'_, '_>) -> T,
        bypassed: impl FnOnce(Bypass) -> T,
    ) -> T {
        match self.settings.check_bypass(head) {
            Ok(()) => rule::with_charges(&*self.rules, head, then, bypassed),
            Err(bypass) => bypassed(bypass),
        }
    }

    /// Decides on a request that has a choice between charges.
    #[inline(never)]
    fn choose<B: 'static>(&self, head: &RequestHead<'_>, all: Candidates<'_, '_>) -> Next<B, S>
    where
        R: Reject<B>,
    {
        if self.settings.may_queue && all.charges.iter().any(Charge::queues) {
            return self.decide_queueing(head, all, None);
        }
        self.attempt(
            head,
            all,
            Attempts::default(),
            Asked::now(PenaltySet::ALL),
            None,
        )
    }

    /// Asks the store for one attempt after another, until one is allowed or all are denied.
    #[inline(never)]
    pub(super) fn attempt<B: 'static>(
        &self,
        head: &RequestHead<'_>,
        all: Candidates<'_, '_>,
        mut attempts: Attempts,
        asked: Asked,
        queued: Option<Box<QueuedRequest<S>>>,
    ) -> Next<B, S>
    where
        R: Reject<B>,
    {
        if self.cannot_hold::<B>(all.charges) {
            return self.deny_unheld(head, all.charges);
        }
        let store: &S = &self.store;
        loop {
            let mut made = SmallVec::new();
            let waiter = queued.as_ref().and_then(|queued| queued.waiter.as_ref());
            let context = store::Context::default().with_waiter(waiter);
            let take = Op::Take(attempts.charges(all, &mut made));
            match store.call(take, &context) {
                Answer::Now(ref mut decision) => {
                    let taken = decision.as_mut().unwrap_or_else(|error| error.never());
                    if !attempts.advance(all, taken) {
                        return self
                            .conclude_attempts(head, decision, all, &attempts, asked, queued);
                    }
                }
                Answer::Later(decision) => {
                    let charges = all.into();
                    let pending = PendingCharge {
                        decision,
                        charges,
                        attempts,
                        asked,
                        queued,
                    };
                    return Admission::Deciding(Box::pin(pending));
                }
            }
        }
    }

    /// Returns `true` if the slots of these charges would be free before the response body ends.
    #[inline(always)]
    fn cannot_hold<B: 'static>(&self, charges: &[Charge<'_>]) -> bool {
        self.settings.may_hold && needs_slot(charges) && !self.settings.hold.can_hold::<B>()
    }

    #[cold]
    fn deny_unheld<B: 'static>(&self, head: &RequestHead<'_>, charges: &[Charge<'_>]) -> Next<B, S>
    where
        R: Reject<B>,
    {
        let mut denied = Decision::deny().with_source(Source::FailedClosed);
        self.deny_request(head, &mut denied, charges, PenaltySet::NONE)
    }

    /// Continues after the last attempt.
    fn conclude_attempts<B: 'static>(
        &self,
        head: &RequestHead<'_>,
        decision: &mut Result<Decision, S::Error>,
        all: Candidates<'_, '_>,
        attempts: &Attempts,
        asked: Asked,
        queued: Option<Box<QueuedRequest<S>>>,
    ) -> Next<B, S>
    where
        R: Reject<B>,
    {
        if !all.choices.is_empty() {
            self.settings
                .metrics
                .attempted(attempts.repeats.saturating_add(1));
        }
        let taken = decision.as_ref().unwrap_or_else(|error| error.never());
        let mut made = SmallVec::new();
        let charges = attempts.described(all, taken, &mut made);
        self.conclude(head, decision, charges, asked, queued)
    }

    #[inline(always)]
    fn decide<B: 'static>(&self, head: &RequestHead<'_>, charges: &[Charge<'_>]) -> Next<B, S>
    where
        R: Reject<B>,
    {
        if self.settings.may_queue && charges.iter().any(Charge::queues) {
            return self.decide_queueing(head, charges.into(), None);
        }
        if self.cannot_hold::<B>(charges) {
            return self.deny_unheld(head, charges);
        }
        let store: &S = &self.store;
        let asked = Asked::now(PenaltySet::ALL);
        match store.take(charges) {
            Answer::Now(ref mut decision) => self.conclude(head, decision, charges, asked, None),
            Answer::Later(decision) => Admission::Deciding(Box::pin(PendingCharge {
                decision,
                charges: Candidates::from(charges).into(),
                attempts: Attempts::default(),
                asked,
                queued: None,
            })),
        }
    }

    /// Continues a request after a store call.
    pub(super) fn resume<B: 'static>(
        &self,
        head: &RequestHead<'_>,
        pending: Pin<&mut PendingCharge<S>>,
        cx: &mut Context<'_>,
    ) -> Poll<Next<B, S>>
    where
        R: Reject<B>,
    {
        let pending = pending.project();
        let mut decision = ready!(pending.decision.poll(cx));
        let queued = pending.queued.take();
        let mut attempts = mem::take(pending.attempts);
        Poll::Ready(pending.charges.with(|all| {
            let taken = decision.as_mut().unwrap_or_else(|error| error.never());
            if attempts.advance(all, taken) {
                return self.attempt(head, all, attempts, *pending.asked, queued);
            }
            self.conclude_attempts(head, &mut decision, all, &attempts, *pending.asked, queued)
        }))
    }

    #[inline(always)]
    fn conclude<B: 'static>(
        &self,
        head: &RequestHead<'_>,
        decision: &mut Result<Decision, S::Error>,
        charges: &[Charge<'_>],
        asked: Asked,
        queued: Option<Box<QueuedRequest<S>>>,
    ) -> Next<B, S>
    where
        R: Reject<B>,
    {
        let decision = decision.as_mut().unwrap_or_else(|error| error.never());
        if let Some(started) = asked.at {
            self.settings.metrics.answered(decision, started);
        }
        if !decision.is_allowed() {
            self.settings.mark_overload(decision, charges);
            let had_place = queued.is_some();
            match queued.and_then(|queued| self.wait_for_slot(queued, decision, charges)) {
                Some(queued) => Admission::Waiting(queued),
                // That the layer ends all waits is no fault of the client.
                None if had_place && self.settings.queue.is_closed() => {
                    self.deny_request(head, decision, charges, PenaltySet::NONE)
                }
                None => self.deny_request(head, decision, charges, asked.striking),
            }
        } else if decision.wait > 0 {
            self.wait_for_turn(head, decision, charges, queued)
        } else {
            let has_waited = queued.is_some_and(|queued| queued.has_waited);
            self.respond(head, decision, charges, None, has_waited)
        }
    }

    /// Admits or rejects a request without a store call.
    #[cold]
    #[inline(never)]
    pub(super) fn bypass<B: 'static>(&self, head: &RequestHead<'_>, bypass: Bypass) -> Next<B, S>
    where
        R: Reject<B>,
    {
        let settings = &self.settings;
        let is_exempt = matches!(bypass, Bypass::Exempt(_));
        // Charged requests are recorded only while the layer is early, so a later one that is not charged
        // proves nothing.
        if is_exempt && settings.enabled.is_on() && settings.nesting.is_early() {
            settings.miss_charge();
        }
        if let Bypass::Rejected(error) = bypass {
            let is_admitted = settings.report_only.is_on();
            self.notify(head, Err(&error), is_admitted, false, &[]);
            if !is_admitted {
                if error.is_no_peer() {
                    log_no_peer::<B>(&error);
                }
                let why = self.rejection(Err(&error), None, &settings.template);
                return Admission::Rejected(why.response(&*self.reject, head, &[], false));
            }
        }
        match ResponseContext::uncharged(settings) {
            Some(context) => Admission::Extended(context),
            None => Admission::Admitted(None),
        }
    }

    /// Rejects a request, which is a strike under the penalties of `striking`, unless it runs despite
    /// the denial.
    pub(super) fn deny_request<B: 'static>(
        &self,
        head: &RequestHead<'_>,
        decision: &mut Decision,
        charges: &[Charge<'_>],
        striking: PenaltySet,
    ) -> Next<B, S>
    where
        R: Reject<B>,
    {
        let settings = &self.settings;
        if let Some(reason) = settings.override_denial(Some(decision)) {
            let mut in_flight = None;
            if let Override::Overcommit(counted) = reason {
                (decision.allowed, decision.overage) = (true, true);
                in_flight = Some(counted);
            }
            return self.respond(head, decision, charges, in_flight, false);
        }
        settings.charging.record_hit();
        if settings.is_observed() {
            self.notify(head, Ok(decision), false, false, charges);
        }
        settings
            .penalties(striking)
            .for_each(|penalty| penalty.count_denial(decision, charges));
        let retry_after = settings
            .retries
            .wait(settings.queue_bounds, head, decision, charges);
        let fitting = settings.template.fit(charges);
        let template = fitting.as_deref().unwrap_or(&settings.template);
        let why = self.rejection(Ok(decision), retry_after, template);
        let mut response = why.response(&*self.reject, head, charges, settings.exposes_decision);
        if let Some(wait) = retry_after.filter(|_| settings.retries.in_milliseconds) {
            response
                .headers_mut()
                .entry(RETRY_AFTER_MS)
                .or_insert_with(|| millis(wait).into());
        }
        Admission::Rejected(response)
    }

    /// Admits a request.
    #[inline(always)]
    pub(super) fn respond<P>(
        &self,
        head: &RequestHead<'_>,
        decision: &mut Decision,
        charges: &[Charge<'_>],
        in_flight: Option<InFlight>,
        has_waited: bool,
    ) -> Admission<P, S> {
        let settings = &self.settings;
        if settings.is_observed() {
            self.notify(head, Ok(decision), true, has_waited, charges);
        }
        let lines = settings.template.lines(charges, decision);
        if settings.has_context || decision.slot.is_some() || settings.nesting.is_early() {
            let context = ResponseContext::new(lines, settings, decision, charges, in_flight);
            return Admission::Extended(context);
        }
        Admission::Admitted(lines)
    }

    fn rejection<'a>(
        &'a self,
        cause: Result<&'a Decision, &'a KeyError>,
        retry_after: Option<Duration>,
        template: &'a Template,
    ) -> Rejection<'a> {
        let secret = self.settings.secret.as_ref();
        Rejection::new(cause, retry_after, template, Some(&*self.rules), secret)
    }

    /// Calls the hooks.
    #[inline(never)]
    fn notify(
        &self,
        head: &RequestHead<'_>,
        decision: Result<&Decision, &KeyError>,
        is_admitted: bool,
        is_delayed: bool,
        charges: &[Charge<'_>],
    ) {
        let charged = &|rule| {
            let charge = Charge::find(charges, rule)?;
            Some(Charged {
                key: charge.key,
                quotas: charge.quotas,
                cost: charge.cost,
            })
        };
        let secret = self.settings.secret.as_ref();
        let event = DecisionEvent {
            head,
            decision,
            is_admitted,
            is_delayed,
            charged,
            secret,
        };
        self.settings.notify(&event);
    }
}

/// Returns `true` if a charge takes slots that limit its request.
#[inline(never)]
fn needs_slot(charges: &[Charge<'_>]) -> bool {
    charges
        .iter()
        .any(|charge| charge.may_deny() && charge.quotas.iter().any(Quota::is_concurrent))
}

/// Logs that the server provides no peer address, at most once per minute.
///
/// `B` is the type of the response body.
fn log_no_peer<B: 'static>(error: &KeyError) {
    static LAST: Mutex<Option<Instant>> = Mutex::new(None);
    let Ok(mut last) = LAST.try_lock() else {
        return;
    };
    if last.is_none_or(|last| last.elapsed() >= Duration::from_secs(60)) {
        *last = Some(Instant::now());
        let hint = if is_of_another_axum::<B>() {
            "; this server is of another version of axum, whose ConnectInfo cannot be read: use \
             axum 0.8, or insert the SocketAddr into the extensions of each request"
        } else {
            ""
        };
        error!("every request is rejected with 500: {error}{hint}");
    }
}

/// Returns `true` for the body type of another version of axum.
///
/// Extensions of a request cannot be listed, so the response is the only sign of the version.
fn is_of_another_axum<B: 'static>() -> bool {
    #[cfg(feature = "axum")]
    if TypeId::of::<B>() == TypeId::of::<axum::body::Body>() {
        return false;
    }
    cfg!(feature = "axum") && type_name::<B>().ends_with("axum_core::body::Body")
}

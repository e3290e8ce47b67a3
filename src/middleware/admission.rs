//! Decides if a request runs, waits or is rejected.
//!
//! The service calls [`Gate::admit`], and carries out the next step, an [`Admission`]:
//!
//! ```text
//! admit ─┬─ bypass ─▶ Admitted, or Rejected          no rule charges it, or its key is unusable
//!        └─ attempt ─▶ store ┬─ Deciding ─▶ resume   the answer comes later
//!                            ├─ attempt              the next one of several
//!                            └─ conclude ┬─ run_request  ─▶ Admitted, or Extended
//!                                        ├─ deny_request ─▶ Rejected, or run_request if the layer only reports
//!                                        └─ Waiting ─▶ end_wait ─▶ attempt, run_request or deny_request
//! ```
//!
//! The common request with charges that must all fit skips the loop of attempts: `decide`. The module
//! `waiting` has the steps of requests that wait in a `queue`, and `context` what `Extended` adds.

#[cfg(feature = "axum")]
use std::any::TypeId;
use std::{
    any::type_name,
    marker::PhantomData,
    mem,
    pin::Pin,
    slice,
    sync::LazyLock,
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use http::Response;
use parking_lot::Mutex;
use pin_project_lite::pin_project;
use smallvec::SmallVec;

use super::{
    RateLimitLayer,
    config::{Override, PenaltySet},
    context::ResponseContext,
    overcommit::InFlight,
    queue::QueuedRequest,
    retry_after::LayerQueue,
};
use crate::{
    decision::{Decision, Outcome, Source},
    head::RequestHead,
    headers::{Lines, RETRY_AFTER_MS, Template},
    key::KeyError,
    log::{LogCount, error},
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
        // The place of the request in the queue, if it has one.
        queued: Option<Box<QueuedRequest<S>>>,
    }
}

impl<S: Store> PendingCharge<S> {
    fn step<P>(
        decision: S::Future,
        all: Candidates<'_, '_>,
        attempts: Attempts,
        asked: Asked,
        queued: Option<Box<QueuedRequest<S>>>,
    ) -> Admission<P, S> {
        Admission::Deciding(Box::pin(Self {
            decision,
            charges: all.into(),
            attempts,
            asked,
            queued,
        }))
    }
}

/// The circumstances in which the store is asked about a request.
#[derive(Clone, Copy)]
pub(super) struct Asked {
    /// The instant before the first call, for metrics.
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

/// The way of a request past the layer, for hooks.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Passage {
    /// It is rejected.
    Rejected,
    /// It runs without a wait in the layer.
    AtOnce,
    /// It runs after a wait in the layer.
    AfterWait,
}

/// Returns the way of a request that runs now. It is `queued` if it may have waited.
#[inline(always)]
pub(super) fn passage_of<S: Store>(queued: Option<&QueuedRequest<S>>) -> Passage {
    match queued {
        Some(queued) if queued.has_waited => Passage::AfterWait,
        _ => Passage::AtOnce,
    }
}

impl<K, S, R> RateLimitLayer<K, S, R>
where
    K: Rules,
{
    /// Calls `then` with the charges of a request. If no store call is needed, calls `bypassed`.
    pub(super) fn with_charges<T>(
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
}

/// A layer, and the head of a request that it decides on. `B` is the type of response bodies.
pub(super) struct Gate<'a, K, S, R, B> {
    pub(super) layer: &'a RateLimitLayer<K, S, R>,
    pub(super) head: &'a RequestHead<'a>,
    body: PhantomData<fn() -> B>,
}

impl<K, S, R, B> Clone for Gate<'_, K, S, R, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K, S, R, B> Copy for Gate<'_, K, S, R, B> {}

impl<'a, K, S, R, B> Gate<'a, K, S, R, B>
where
    K: Rules,
    S: Store<Error: CannotFail>,
    R: Reject<B>,
    B: 'static,
{
    #[inline]
    pub(super) fn new(layer: &'a RateLimitLayer<K, S, R>, head: &'a RequestHead<'a>) -> Self {
        Self {
            layer,
            head,
            body: PhantomData,
        }
    }

    /// Decides on a request, or starts a store call that completes later.
    #[inline(always)]
    pub(super) fn admit(self) -> Next<B, S> {
        if let Err(bypass) = self.layer.settings.check_bypass(self.head) {
            return self.bypass(bypass);
        }
        let one = move |charge: &Charge<'_>| self.decide(slice::from_ref(charge));
        let several = move |all: Candidates<'_, '_>| match all.choices {
            [] => self.decide(all.charges),
            _ => self.choose(all),
        };
        let bypassed = move |bypass| self.bypass(bypass);
        self.layer
            .rules
            .with_charges(self.head, one, several, bypassed)
    }

    /// Decides on a request that has a choice between charges.
    #[inline(never)]
    fn choose(self, all: Candidates<'_, '_>) -> Next<B, S> {
        if self.layer.settings.may_queue && all.charges.iter().any(Charge::queues) {
            return self.decide_queueing(all, None);
        }
        let asked = Asked::now(PenaltySet::ALL);
        self.attempt(all, Attempts::default(), asked, None)
    }

    /// Asks the store for one attempt after another, until one is allowed or all are denied.
    #[inline(never)]
    pub(super) fn attempt(
        self,
        all: Candidates<'_, '_>,
        mut attempts: Attempts,
        asked: Asked,
        queued: Option<Box<QueuedRequest<S>>>,
    ) -> Next<B, S> {
        let store: &S = &self.layer.store;
        loop {
            let mut made = SmallVec::new();
            let charges = attempts.charges(all, &mut made);
            if self.cannot_hold(charges) {
                return self.deny_unheld(charges);
            }
            let waiter = queued.as_ref().and_then(|queued| queued.waiter.as_ref());
            let context = store::Context::default().with_waiter(waiter);
            match store.call(Op::Take(charges), &context) {
                Answer::Now(ref mut decision) => {
                    let decision = decision.as_mut().unwrap_or_else(|error| error.never());
                    if !attempts.advance(all, decision) {
                        return self.conclude_attempts(decision, all, &attempts, asked, queued);
                    }
                }
                Answer::Later(decision) => {
                    return PendingCharge::step(decision, all, attempts, asked, queued);
                }
            }
        }
    }

    /// Returns `true` if the charges need a slot that cannot be held for as long as the layer is set to.
    /// The log then warns once per process.
    #[inline(always)]
    fn cannot_hold(self, charges: &[Charge<'_>]) -> bool {
        self.layer.settings.may_hold
            && needs_slot(charges)
            && !self.layer.settings.hold.can_hold::<B>()
    }

    /// Denies a request whose slots cannot be held, without a call. The rule that needs them is the one that
    /// denies.
    #[cold]
    fn deny_unheld(self, charges: &[Charge<'_>]) -> Next<B, S> {
        let mut denied = Decision::deny().with_source(Source::FailedClosed);
        if let Some(charge) = charges.iter().find(|charge| takes_slots(charge)) {
            let outcome = Outcome::unknown(charge.rule, 0, None);
            denied.outcomes.push(outcome);
        }
        self.deny_request(&mut denied, charges, PenaltySet::NONE, Passage::AtOnce)
    }

    /// Continues after the last attempt.
    fn conclude_attempts(
        self,
        decision: &mut Decision,
        all: Candidates<'_, '_>,
        attempts: &Attempts,
        asked: Asked,
        queued: Option<Box<QueuedRequest<S>>>,
    ) -> Next<B, S> {
        if !all.choices.is_empty() {
            let calls = attempts.repeats.saturating_add(1);
            self.layer.settings.metrics.attempted(calls);
        }
        let mut made = SmallVec::new();
        let charges = attempts.described(all, decision, &mut made);
        self.conclude(decision, charges, asked, queued)
    }

    /// Decides on a request whose charges must all fit.
    #[inline(always)]
    fn decide(self, charges: &[Charge<'_>]) -> Next<B, S> {
        if self.layer.settings.may_queue && charges.iter().any(Charge::queues) {
            return self.decide_queueing(charges.into(), None);
        }
        if self.cannot_hold(charges) {
            return self.deny_unheld(charges);
        }
        let store: &S = &self.layer.store;
        let asked = Asked::now(PenaltySet::ALL);
        match store.take(charges) {
            Answer::Now(ref mut decision) => {
                let decision = decision.as_mut().unwrap_or_else(|error| error.never());
                self.conclude(decision, charges, asked, None)
            }
            Answer::Later(decision) => {
                PendingCharge::step(decision, charges.into(), Attempts::default(), asked, None)
            }
        }
    }

    /// Continues a request after a store call.
    pub(super) fn resume(
        self,
        pending: Pin<&mut PendingCharge<S>>,
        cx: &mut Context<'_>,
    ) -> Poll<Next<B, S>> {
        let pending = pending.project();
        let mut answer = ready!(pending.decision.poll(cx));
        let decision = answer.as_mut().unwrap_or_else(|error| error.never());
        let mut attempts = mem::take(pending.attempts);
        let asked = *pending.asked;
        let queued = pending.queued.take();
        Poll::Ready(pending.charges.with(|all| {
            if attempts.advance(all, decision) {
                return self.attempt(all, attempts, asked, queued);
            }
            self.conclude_attempts(decision, all, &attempts, asked, queued)
        }))
    }

    /// Continues after the decision that is final.
    #[inline(always)]
    fn conclude(
        self,
        decision: &mut Decision,
        charges: &[Charge<'_>],
        asked: Asked,
        queued: Option<Box<QueuedRequest<S>>>,
    ) -> Next<B, S> {
        if let Some(started) = asked.at {
            self.layer.settings.metrics.answered(decision, started);
        }
        if !decision.is_allowed() {
            return self.conclude_denial(decision, charges, asked, queued);
        }
        if decision.wait > 0 {
            return self.wait_for_turn(decision, charges, queued);
        }
        self.run_request(decision, charges, None, passage_of(queued.as_deref()))
    }

    /// Denies a request, unless it may wait for a slot.
    #[inline(always)]
    fn conclude_denial(
        self,
        decision: &mut Decision,
        charges: &[Charge<'_>],
        asked: Asked,
        queued: Option<Box<QueuedRequest<S>>>,
    ) -> Next<B, S> {
        self.layer.settings.mark_overload(decision, charges);
        let passage = passage_of(queued.as_deref());
        let Some(queued) = queued else {
            return self.deny_request(decision, charges, asked.striking, passage);
        };
        if let Some(queued) = self.wait_for_slot(queued, decision, charges) {
            return Admission::Waiting(queued);
        }
        let striking = self.layer.settings.penalties_after_wait();
        self.deny_request(decision, charges, striking, passage)
    }

    /// Admits or rejects a request without a store call.
    #[cold]
    #[inline(never)]
    pub(super) fn bypass(self, bypass: Bypass) -> Next<B, S> {
        match bypass {
            Bypass::Exempt(_) => self.layer.settings.record_exempt(),
            Bypass::Rejected(error) if self.layer.settings.report_only.is_on() => {
                self.notify(Err(&error), Passage::AtOnce, &[]);
            }
            Bypass::Rejected(error) => return self.reject_unkeyed(&error),
        }
        match ResponseContext::uncharged(&self.layer.settings) {
            Some(context) => Admission::Extended(context),
            None => Admission::Admitted(None),
        }
    }

    /// Rejects a request without a usable key, or on a deny list.
    fn reject_unkeyed(self, error: &KeyError) -> Next<B, S> {
        self.notify(Err(error), Passage::Rejected, &[]);
        if error.is_no_peer() {
            log_no_peer::<B>(error);
        }
        let why = self.rejection(Err(error), None, &self.layer.settings.template);
        Admission::Rejected(why.response(&*self.layer.reject, self.head, &[]))
    }

    /// Rejects a denied request, which is a strike under the penalties of `striking`. If there is a reason to
    /// run it all the same, it runs, and `passage` is its way for hooks.
    pub(super) fn deny_request(
        self,
        decision: &mut Decision,
        charges: &[Charge<'_>],
        striking: PenaltySet,
        passage: Passage,
    ) -> Next<B, S> {
        let settings = &self.layer.settings;
        if let Some(reason) = settings.override_denial(Some(decision)) {
            return self.run_despite_denial(decision, charges, reason, passage);
        }
        settings.charging.record_hit();
        if settings.is_observed() {
            self.notify(Ok(decision), Passage::Rejected, charges);
        }
        for penalty in settings.penalties(striking) {
            penalty.count_denial(decision, charges);
        }
        self.reject(decision, charges)
    }

    fn run_despite_denial(
        self,
        decision: &mut Decision,
        charges: &[Charge<'_>],
        reason: Override,
        passage: Passage,
    ) -> Next<B, S> {
        let in_flight = match reason {
            Override::ReportOnly => None,
            Override::Overcommit(in_flight) => {
                decision.allowed = true;
                decision.overage = true;
                Some(in_flight)
            }
        };
        self.run_request(decision, charges, in_flight, passage)
    }

    /// Rejects a denied request.
    #[inline(always)]
    fn reject(self, decision: &Decision, charges: &[Charge<'_>]) -> Next<B, S> {
        let settings = &self.layer.settings;
        let queue = LayerQueue {
            queue: &settings.queue,
            bounds: settings.queue_bounds,
        };
        let retries = &settings.retries;
        let retry_after = retries.reported_wait(queue, self.head, decision, charges);
        let fitting = settings.template.fit(charges);
        let template = fitting.as_deref().unwrap_or(&settings.template);
        let why = self.rejection(Ok(decision), retry_after, template);
        let mut response = why.response(&*self.layer.reject, self.head, charges);
        if settings.exposes_decision {
            response.extensions_mut().insert(decision.clone());
        }
        if let Some(wait) = retry_after.filter(|_| settings.retries.in_milliseconds) {
            response
                .headers_mut()
                .entry(RETRY_AFTER_MS)
                .or_insert_with(|| millis(wait).into());
        }
        Admission::Rejected(response)
    }

    /// Lets a request run.
    #[inline(always)]
    pub(super) fn run_request(
        self,
        decision: &mut Decision,
        charges: &[Charge<'_>],
        in_flight: Option<InFlight>,
        passage: Passage,
    ) -> Next<B, S> {
        let settings = &self.layer.settings;
        if settings.is_observed() {
            self.notify(Ok(decision), passage, charges);
        }
        let lines = settings.template.lines(charges, decision);
        if settings.has_context || decision.slot.is_some() || settings.nesting.sample() {
            let context = ResponseContext::new(lines, settings, decision, charges, in_flight);
            return Admission::Extended(context);
        }
        Admission::Admitted(lines)
    }

    fn rejection(
        self,
        cause: Result<&'a Decision, &'a KeyError>,
        retry_after: Option<Duration>,
        template: &'a Template,
    ) -> Rejection<'a> {
        let secret = self.layer.settings.secret.as_ref();
        Rejection::new(
            cause,
            retry_after,
            template,
            Some(&*self.layer.rules),
            secret,
        )
    }

    /// Calls the hooks.
    #[inline(never)]
    fn notify(
        self,
        decision: Result<&Decision, &KeyError>,
        passage: Passage,
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
        self.layer.settings.notify(&DecisionEvent {
            head: self.head,
            decision,
            is_admitted: passage != Passage::Rejected,
            is_delayed: passage == Passage::AfterWait,
            charged,
            secret: self.layer.settings.secret.as_ref(),
        });
    }
}

/// Returns `true` if one of the charges takes slots, and may deny.
#[inline(never)]
fn needs_slot(charges: &[Charge<'_>]) -> bool {
    charges.iter().any(takes_slots)
}

#[inline(always)]
fn takes_slots(charge: &Charge<'_>) -> bool {
    charge.may_deny() && charge.quotas.iter().any(Quota::is_concurrent)
}

/// Logs that the server provides no peer address, at most every ten seconds.
///
/// `B` is the type of the response body.
fn log_no_peer<B: 'static>(error: &KeyError) {
    static LOG: LazyLock<Mutex<LogCount>> = LazyLock::new(Mutex::default);
    if LOG.lock().count().is_none() {
        return;
    }
    let hint = if is_of_another_axum::<B>() {
        "; this server is of another version of axum, whose ConnectInfo cannot be read: use axum 0.8, \
         or insert the SocketAddr into the extensions of each request"
    } else {
        ""
    };
    error!("every request is rejected with 500: {error}{hint}");
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

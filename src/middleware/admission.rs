//! Decides if a request runs, waits or is rejected.

#[cfg(feature = "axum")]
use std::any::TypeId;
use std::{
    any::type_name,
    marker::PhantomData,
    mem,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use http::Response;
use pin_project_lite::pin_project;
use smallvec::SmallVec;

use super::{
    RateLimitLayer,
    config::{LayerConfig, Override, ResponseContext},
    overcommit::InFlight,
    queue::{QueuedCharge, Waiter},
};
use crate::{
    decision::{Decision, Source},
    head::RequestHead,
    headers::Template,
    key::KeyError,
    log::error,
    observe::DecisionEvent,
    reject::{Reject, Rejection},
    rule::{Bypass, Rules, deadline},
    store::{Answer, CannotFail, Charge, OwnedCharges, Store, StoreExt},
};

/// The state that all services of a layer share.
pub(super) struct Shared<K, S, R> {
    pub(super) layer: RateLimitLayer<K, S, R>,
    pub(super) template: Arc<Template>,
}

/// The next step of a request. `P` is the type of responses.
///
/// No variant holds a [`Decision`] or a [`Waiter`], because moving them is slow.
pub(super) enum Admission<P, S: Store> {
    /// The request runs. The context, if any, is applied to the response.
    Admitted(Option<ResponseContext>),
    /// The request runs after a wait in the queue.
    Queued(QueuedCharge<S>),
    /// The request waits for a slot, and then asks again.
    Waiting(Box<Waiter>),
    /// The request is rejected with this response.
    Rejected(P),
    /// The answer of the store is pending.
    Deciding(Pin<Box<PendingCharge<S>>>),
}

/// The next step of a request whose response has a body of the type `B`.
type Next<B, S> = Admission<Response<B>, S>;

pin_project! {
    /// A pending store call, and its charges.
    #[project = PendingChargeProj]
    pub(super) struct PendingCharge<S>
    where
        S: Store,
    {
        #[pin]
        decision: S::Future,
        charges: OwnedCharges,
        started: Option<Instant>,
        waiter: Option<Box<Waiter>>,
    }
}

/// Calls `then` with the charges of a request. If no store call is needed, calls `bypassed`.
#[inline]
pub(super) fn charges<K: Rules, T>(
    rules: &K,
    settings: &LayerConfig,
    head: &RequestHead<'_>,
    then: impl FnOnce(&[Charge<'_>]) -> T,
    bypassed: impl FnOnce(Bypass) -> T,
) -> T {
    match settings.check_bypass(head) {
        Ok(()) => rules.charges(head, then, bypassed),
        Err(bypass) => bypassed(bypass),
    }
}

/// Decides about one request. `B` is the type of response bodies.
pub(super) struct Decider<'a, K, S, R, B> {
    layer: &'a RateLimitLayer<K, S, R>,
    template: &'a Arc<Template>,
    head: &'a RequestHead<'a>,
    body: PhantomData<fn() -> B>,
}

impl<K, S, R> Shared<K, S, R> {
    #[inline]
    pub(super) fn decider<'a, B>(&'a self, head: &'a RequestHead<'_>) -> Decider<'a, K, S, R, B> {
        Decider { layer: &self.layer, template: &self.template, head, body: PhantomData }
    }
}

impl<K, S, R, B> Decider<'_, K, S, R, B>
where
    K: Rules,
    S: Store<Error: CannotFail>,
    R: Reject<B>,
    B: 'static,
{
    /// Decides on a request, or starts a store call that completes later.
    #[inline]
    pub(super) fn admit(&self) -> Next<B, S> {
        self.charges(|charges| {
            if !charges.iter().any(Charge::queues) {
                return self.decide(charges, None);
            }
            // The request holds a place in the queue from here on, because a charge that finds the
            // queue full afterwards could not always be undone.
            let waiter = self.layer.settings.enter_queue(charges);
            let waited = waiter.is_some().then_some(Duration::ZERO);
            self.decide_queueing(charges, waiter, waited)
        })
    }

    #[inline]
    fn charges(&self, decide: impl FnOnce(&[Charge<'_>]) -> Next<B, S>) -> Next<B, S> {
        let RateLimitLayer { rules, settings, .. } = self.layer;
        charges(&**rules, settings, self.head, decide, |bypass| self.bypass(bypass))
    }

    /// Decides on a request that may queue, and has waited for `waited`. Without this time, the
    /// request does not queue.
    #[inline(never)]
    fn decide_queueing(
        &self,
        charges: &[Charge<'_>],
        waiter: Option<Box<Waiter>>,
        waited: Option<Duration>,
    ) -> Next<B, S> {
        let turn = waiter.as_ref().and_then(|it| it.turn.clone());
        let waited = waited.unwrap_or(Duration::MAX);
        let left = |it: &Charge<'_>| it.max_wait().saturating_sub(waited);
        let charges = charges.iter().map(|it| it.with_max_wait(left(it)).with_turn(turn.as_ref()));
        self.decide(&charges.collect::<SmallVec<[_; 4]>>(), waiter)
    }

    #[inline(always)]
    fn decide(&self, charges: &[Charge<'_>], waiter: Option<Box<Waiter>>) -> Next<B, S> {
        let started = cfg!(feature = "metrics").then(Instant::now);
        let store: &S = &self.layer.store;
        match store.take(charges) {
            Answer::Now(ref mut decision) => self.conclude(decision, charges, started, waiter),
            Answer::Later(decision) => {
                let charges = charges.into();
                Admission::Deciding(Box::pin(PendingCharge { decision, charges, started, waiter }))
            }
        }
    }

    /// Continues a request after a store call.
    pub(super) fn resume(
        &self,
        pending: Pin<&mut PendingCharge<S>>,
        cx: &mut Context<'_>,
    ) -> Poll<Next<B, S>> {
        let PendingChargeProj { decision, charges, started, waiter } = pending.project();
        let mut decision = ready!(decision.poll(cx));
        Poll::Ready(
            charges.with(|charges| self.conclude(&mut decision, charges, *started, waiter.take())),
        )
    }

    /// Asks again for a request that has waited for a slot. The quotas may have changed.
    pub(super) fn ask_again(&self, waiter: Box<Waiter>) -> Next<B, S> {
        let waited = waiter.turn.is_some().then(|| waiter.entered.elapsed());
        self.charges(|charges| self.decide_queueing(charges, Some(waiter), waited))
    }

    /// Continues a request after its wait in the queue.
    pub(super) fn dequeue(&self, mut queued: QueuedCharge<S>) -> Option<ResponseContext> {
        let (mut decision, charges) = *queued.charged.take()?;
        charges.with(|charges| self.respond(&mut decision, charges, None, true))
    }

    #[inline(always)]
    fn conclude(
        &self,
        decision: &mut Result<Decision, S::Error>,
        charges: &[Charge<'_>],
        started: Option<Instant>,
        waiter: Option<Box<Waiter>>,
    ) -> Next<B, S> {
        let decision = decision.as_mut().unwrap_or_else(|error| error.never());
        self.layer.settings.observers.answered(decision, started);
        if !decision.is_allowed() {
            self.layer.settings.mark_overload(decision, charges);
            match waiter.and_then(Waiter::start) {
                Some(mut waiter) => {
                    waiter.observe(&self.layer.settings.observers, decision);
                    Admission::Waiting(waiter)
                }
                None => self.deny(decision, charges),
            }
        } else if decision.slot.is_some() && !self.layer.settings.hold.can_hold::<B>() {
            // The slots would be free before the body ends.
            self.layer.store.undo(charges, decision, None);
            *decision = Decision::deny().with_source(Source::FailedClosed);
            self.deny(decision, charges)
        } else if decision.wait > 0 {
            self.queue(decision, charges, waiter)
        } else {
            let waited = waiter.is_some_and(|it| it.waited);
            // `None` apart, because moving an `Option` of this size is slow even if it is `None`.
            match self.respond(decision, charges, None, waited) {
                None => Admission::Admitted(None),
                Some(context) => Admission::Admitted(Some(context)),
            }
        }
    }

    /// Admits or rejects a request without a store call.
    #[cold]
    #[inline(never)]
    fn bypass(&self, bypass: Bypass) -> Next<B, S> {
        let settings = &self.layer.settings;
        if let Bypass::Rejected(error) = bypass {
            let is_admitted = settings.report_only.is_on();
            self.notify(Err(&error), is_admitted, false, &[]);
            if !is_admitted {
                if error.is_no_peer() {
                    log_no_peer::<B>(&error);
                }
                let why = self.rejection(Err(&error), None, self.template);
                return Admission::Rejected(why.response(&*self.layer.reject, self.head, &[]));
            }
        }
        Admission::Admitted(ResponseContext::uncharged(settings))
    }

    #[cold]
    fn queue(
        &self,
        decision: &mut Decision,
        charges: &[Charge<'_>],
        waiter: Option<Box<Waiter>>,
    ) -> Next<B, S> {
        let in_time = |it: &Waiter| {
            it.entered.elapsed().saturating_add(decision.wait())
                <= deadline(self.head, Duration::MAX)
        };
        // A store may queue a charge that does not ask for it.
        let waiter = waiter.or_else(|| self.layer.settings.enter_queue(charges));
        let waiter = waiter.filter(|it| in_time(it));
        let queued = mem::replace(decision, Decision::deny());
        let Some(mut waiter) = waiter else {
            // The queue is full, or the store call took part of the deadline.
            self.layer.store.undo(charges, &queued, None);
            return self.deny(&mut queued.into_denied(), charges);
        };
        waiter.observe(&self.layer.settings.observers, &queued);
        Admission::Queued(QueuedCharge::new(self.layer.store.clone(), queued, charges, waiter))
    }

    fn deny(&self, decision: &mut Decision, charges: &[Charge<'_>]) -> Next<B, S> {
        let settings = &self.layer.settings;
        if let Some(reason) = settings.override_denial(Some(decision)) {
            let mut in_flight = None;
            if let Override::Overcommit(counted) = reason {
                (decision.allowed, decision.overage) = (true, true);
                in_flight = Some(counted);
            }
            return Admission::Admitted(self.respond(decision, charges, in_flight, false));
        }
        if settings.observers.are_active() {
            self.notify(Ok(decision), false, false, charges);
        }
        let retry_after = settings.retry_after.wait(&settings.promises, decision, charges);
        let template = self.template.fit(charges);
        let why = self.rejection(Ok(decision), retry_after, &template);
        let mut response = why.response(&*self.layer.reject, self.head, charges);
        if settings.expose {
            response.extensions_mut().insert(decision.clone());
        }
        Admission::Rejected(response)
    }

    /// Returns the context for the response, or `None` if the response stays unchanged.
    #[inline(always)]
    fn respond(
        &self,
        decision: &mut Decision,
        charges: &[Charge<'_>],
        in_flight: Option<InFlight>,
        waited: bool,
    ) -> Option<ResponseContext> {
        let settings = &self.layer.settings;
        if settings.observers.are_active() {
            self.notify(Ok(decision), true, waited, charges);
        }
        let lines = self.template.lines(charges, decision);
        ResponseContext::new(lines, settings, decision, charges, in_flight)
    }

    fn rejection<'a>(
        &'a self,
        cause: Result<&'a Decision, &'a KeyError>,
        retry_after: Option<Duration>,
        template: &'a Template,
    ) -> Rejection<'a> {
        let secret = self.layer.settings.secret.as_ref();
        Rejection::new(cause, retry_after, template, Some(&*self.layer.rules), secret)
    }

    /// Calls the hooks.
    #[inline(never)]
    fn notify(
        &self,
        decision: Result<&Decision, &KeyError>,
        is_admitted: bool,
        is_delayed: bool,
        charges: &[Charge<'_>],
    ) {
        let charge_of = |rule| charges.iter().find(|it| it.rule() == rule);
        let charged = &|rule| charge_of(rule).map(|it| (it.key(), it.quotas()));
        let (head, secret) = (self.head, self.layer.settings.secret.as_ref());
        let event = DecisionEvent { head, decision, is_admitted, is_delayed, charged, secret };
        self.layer.settings.observers.notify(&event);
    }
}

/// Logs that the server provides no peer address, at most once per minute.
///
/// `B` is the type of the response body.
fn log_no_peer<B: 'static>(error: &KeyError) {
    static LAST: Mutex<Option<Instant>> = Mutex::new(None);
    let Ok(mut last) = LAST.try_lock() else { return };
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

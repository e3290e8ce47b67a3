//! Decides if a request runs, waits or is rejected.

#[cfg(feature = "axum")]
use std::any::TypeId;
use std::{
    any::type_name,
    mem,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use http::Response;
use smallvec::SmallVec;

use super::{
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
    observe::{DecisionEvent, Started},
    reject::{Reject, Rejection},
    rule::{Bypass, Rules, deadline},
    store::{Answer, CannotFail, Charge, OwnedCharges, Store, StoreExt, without_queueing},
};

/// The state that all services of a layer share.
#[derive(Debug)]
pub(crate) struct Shared<K, S, R> {
    pub(crate) rules: Arc<K>,
    pub(crate) store: Arc<S>,
    pub(crate) reject: Arc<R>,
    pub(crate) template: Arc<Template>,
    pub(crate) settings: LayerConfig,
}

/// The next step of a request.
///
/// No variant holds a [`Decision`], because moving a `Decision` is slow.
pub(crate) enum Admission<B, S: Store> {
    /// The request runs. The context, if any, is applied to the response.
    Admitted(Option<ResponseContext>),
    /// The request runs after a wait in the queue.
    Queued(QueuedCharge<S>),
    /// The request waits for a slot, and then asks again.
    Waiting(Waiter),
    /// The request is rejected with this response.
    Rejected(Response<B>),
    /// The answer of the store is pending.
    Deciding(Box<(S::Future, PendingCharge)>),
}

/// The charges of a request during a pending store call.
pub(crate) struct PendingCharge {
    charges: OwnedCharges,
    started: Started,
    waiter: Option<Waiter>,
}

/// Calls `then` with the charges of a request. If no store call is needed, calls `bypassed`.
#[inline]
pub(crate) fn charges<K: Rules, T>(
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

impl<K, S, R> Shared<K, S, R>
where
    K: Rules,
    S: Store<Error: CannotFail>,
{
    /// Decides on a request, or starts a store call that completes later.
    #[inline]
    pub(crate) fn admit<B: 'static>(&self, head: &RequestHead<'_>) -> Admission<B, S>
    where
        R: Reject<B>,
    {
        let decide = |charges: &[Charge<'_>]| {
            if charges.iter().any(Charge::queues) {
                self.decide_queueing(charges, head)
            } else {
                self.decide(charges, None, head)
            }
        };
        let bypassed = |bypass| self.bypass(bypass, head);
        charges(&*self.rules, &self.settings, head, decide, bypassed)
    }

    /// Decides on a request that may queue.
    ///
    /// The request holds a place in the queue from here on, because a charge that finds the queue
    /// full afterwards could not always be undone.
    #[inline(never)]
    fn decide_queueing<B: 'static>(
        &self,
        charges: &[Charge<'_>],
        head: &RequestHead<'_>,
    ) -> Admission<B, S>
    where
        R: Reject<B>,
    {
        match self.settings.enter_queue(charges) {
            Some(waiter) => self.decide_in_turn(charges, waiter, Duration::ZERO, head),
            None => self.decide(&without_queueing(charges), None, head),
        }
    }

    /// Decides on a request that may queue, and has waited for `waited`.
    fn decide_in_turn<B: 'static>(
        &self,
        charges: &[Charge<'_>],
        waiter: Waiter,
        waited: Duration,
        head: &RequestHead<'_>,
    ) -> Admission<B, S>
    where
        R: Reject<B>,
    {
        let turn = waiter.turn();
        let rest = |it: &Charge<'_>| it.max_wait().saturating_sub(waited);
        let charges = charges.iter().map(|it| it.with_max_wait(rest(it)).with_turn(turn.as_ref()));
        self.decide(&charges.collect::<SmallVec<[_; 4]>>(), Some(waiter), head)
    }

    #[inline]
    fn decide<B: 'static>(
        &self,
        charges: &[Charge<'_>],
        waiter: Option<Waiter>,
        head: &RequestHead<'_>,
    ) -> Admission<B, S>
    where
        R: Reject<B>,
    {
        let started = Started::now();
        match self.store.take(charges) {
            Answer::Now(ref mut decision) => {
                self.conclude(decision, charges, started, waiter, head)
            }
            Answer::Later(future) => {
                let pending = PendingCharge { charges: charges.into(), started, waiter };
                Admission::Deciding(Box::new((future, pending)))
            }
        }
    }

    /// Continues a request after a store call.
    pub(crate) fn resume<B: 'static>(
        &self,
        decision: &mut Result<Decision, S::Error>,
        PendingCharge { charges, started, waiter }: PendingCharge,
        head: &RequestHead<'_>,
    ) -> Admission<B, S>
    where
        R: Reject<B>,
    {
        charges.with(|charges| self.conclude(decision, charges, started, waiter, head))
    }

    /// Asks again for a request that has waited for a slot.
    ///
    /// `called` is `false` at the end of the request's `max_wait`.
    pub(crate) fn ask_again<B: 'static>(
        &self,
        mut waiter: Waiter,
        called: bool,
        head: &RequestHead<'_>,
    ) -> Admission<B, S>
    where
        R: Reject<B>,
    {
        // The quotas may have changed.
        let decide = |charges: &[Charge<'_>]| {
            if called {
                let waited = waiter.elapsed();
                return self.decide_in_turn(charges, waiter, waited, head);
            }
            waiter.leave();
            self.decide(&without_queueing(charges), Some(waiter), head)
        };
        let bypassed = |bypass| self.bypass(bypass, head);
        charges(&*self.rules, &self.settings, head, decide, bypassed)
    }

    /// Continues a request after its wait in the queue.
    pub(crate) fn dequeue(
        &self,
        queued: QueuedCharge<S>,
        head: &RequestHead<'_>,
    ) -> Option<ResponseContext> {
        let (mut decision, charges) = queued.into_charged()?;
        charges.with(|charges| self.respond(&mut decision, charges, None, true, head))
    }

    #[inline]
    fn conclude<B: 'static>(
        &self,
        decision: &mut Result<Decision, S::Error>,
        charges: &[Charge<'_>],
        started: Started,
        waiter: Option<Waiter>,
        head: &RequestHead<'_>,
    ) -> Admission<B, S>
    where
        R: Reject<B>,
    {
        let decision = match decision {
            Ok(decision) => decision,
            Err(error) => error.never(),
        };
        self.settings.observers.answered(decision, started);
        if !decision.is_allowed() {
            self.settings.mark_overload(decision, charges);
            match waiter {
                Some(waiter) if waiter.waits() => Admission::Waiting(waiter),
                _ => self.deny(decision, charges, head),
            }
        } else if decision.holds_slots() && !self.settings.hold.can_hold::<B>() {
            // The slots would be free before the body ends.
            self.store.undo(charges, decision, None);
            *decision = Decision::deny().with_source(Source::FailedClosed);
            self.deny(decision, charges, head)
        } else if decision.waits() {
            self.queue(decision, charges, waiter, head)
        } else {
            let waited = waiter.is_some_and(|it| it.has_waited());
            Admission::Admitted(self.respond(decision, charges, None, waited, head))
        }
    }

    /// Admits or rejects a request without a store call.
    #[cold]
    #[inline(never)]
    fn bypass<B: 'static>(&self, bypass: Bypass, head: &RequestHead<'_>) -> Admission<B, S>
    where
        R: Reject<B>,
    {
        let settings = &self.settings;
        match bypass {
            Bypass::Exempt(_) => {}
            Bypass::Rejected(error) if settings.report_only.is_on() => {
                self.notify(Err(&error), true, false, &[], head);
            }
            Bypass::Rejected(error) => {
                self.notify(Err(&error), false, false, &[], head);
                if error.is_no_peer() {
                    log_no_peer::<B>(&error);
                }
                let why = self.rejection(Err(&error), None, &self.template);
                return Admission::Rejected(why.response(&*self.reject, head, &[]));
            }
        }
        Admission::Admitted(ResponseContext::uncharged(settings))
    }

    #[cold]
    fn queue<B: 'static>(
        &self,
        decision: &mut Decision,
        charges: &[Charge<'_>],
        waiter: Option<Waiter>,
        head: &RequestHead<'_>,
    ) -> Admission<B, S>
    where
        R: Reject<B>,
    {
        let in_time = |it: &Waiter| it.is_in_time(decision.wait(), deadline(head, Duration::MAX));
        // A store may queue a charge that does not ask for it.
        let waiter = waiter.or_else(|| self.settings.enter_queue(charges));
        let waiter = waiter.filter(in_time);
        let queued = mem::replace(decision, Decision::deny());
        let Some(waiter) = waiter else {
            // The queue is full, or the store call took part of the deadline.
            self.store.undo(charges, &queued, None);
            return self.deny(&mut queued.into_denied(), charges, head);
        };
        Admission::Queued(QueuedCharge::new(self.store.clone(), queued, charges, waiter))
    }

    fn deny<B: 'static>(
        &self,
        decision: &mut Decision,
        charges: &[Charge<'_>],
        head: &RequestHead<'_>,
    ) -> Admission<B, S>
    where
        R: Reject<B>,
    {
        let settings = &self.settings;
        match settings.override_denial(Some(decision)) {
            None => {}
            Some(Override::ReportOnly) => {
                return Admission::Admitted(self.respond(decision, charges, None, false, head));
            }
            Some(Override::Overcommit(in_flight)) => {
                let mut overage = decision.clone().into_overage();
                let context = self.respond(&mut overage, charges, Some(in_flight), false, head);
                return Admission::Admitted(context);
            }
        }
        self.notify(Ok(decision), false, false, charges, head);
        let retry_after = settings.retry_after.wait(decision, charges);
        let template = self.template.fit(charges);
        let why = self.rejection(Ok(decision), retry_after, &template);
        let mut response = why.response(&*self.reject, head, charges);
        ResponseContext::mark_rejection(settings, decision, &mut response);
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
        head: &RequestHead<'_>,
    ) -> Option<ResponseContext> {
        let settings = &self.settings;
        self.notify(Ok(decision), true, waited, charges, head);
        let silent = settings.headers.only_denied || !decision.is_allowed();
        let lines = if silent { None } else { self.template.lines(charges, decision) };
        ResponseContext::new(lines, settings, decision, charges, in_flight)
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
    #[inline]
    fn notify(
        &self,
        cause: Result<&Decision, &KeyError>,
        is_admitted: bool,
        is_delayed: bool,
        charges: &[Charge<'_>],
        head: &RequestHead<'_>,
    ) {
        let keys = |rule| charges.iter().find(|it| it.rule() == rule).map(Charge::key);
        let (keys, secret) = (&keys, self.settings.secret.as_ref());
        let event = DecisionEvent { head, cause, is_admitted, is_delayed, keys, secret };
        self.settings.observers.notify(&event);
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

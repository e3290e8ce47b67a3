//! Decides if a request runs, waits or is rejected.

use std::{mem, sync::Arc};

use http::Response;

use super::{
    config::{LayerConfig, Override},
    context::ResponseContext,
    overcommit::InFlight,
    queue::QueuedCharge,
    stats::Event,
};
use crate::{
    decision::{Decision, Source},
    fingerprint::Fingerprint,
    head::RequestHead,
    headers::Template,
    key::KeyError,
    log::error,
    observe::{Started, unidentified},
    reject::{ExplainContext, Reject, Rejection},
    rule::{Bypass, RuleName, Rules},
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
    /// The request is rejected with this response.
    Rejected(Response<B>),
    /// The answer of the store is pending.
    Deciding(Box<(S::Future, PendingCharge)>),
}

/// The charges of a request during a pending store call.
pub(crate) struct PendingCharge {
    pub(crate) charges: OwnedCharges,
    started: Started,
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

/// Takes `charges` from the store, without queueing if the queue is full.
#[inline]
pub(crate) fn take<S: Store>(
    store: &S,
    settings: &LayerConfig,
    charges: &[Charge<'_>],
) -> Answer<S::Future> {
    if settings.must_not_queue(charges) { take_now(store, charges) } else { store.take(charges) }
}

#[cold]
fn take_now<S: Store>(store: &S, charges: &[Charge<'_>]) -> Answer<S::Future> {
    store.take(&without_queueing(charges))
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
            let started = Started::now();
            match take(&*self.store, &self.settings, charges) {
                Answer::Now(ref mut decision) => self.conclude(decision, charges, started, head),
                Answer::Later(future) => {
                    let pending = PendingCharge { charges: charges.into(), started };
                    Admission::Deciding(Box::new((future, pending)))
                }
            }
        };
        let bypassed = |bypass| self.bypass(bypass, head);
        charges(&*self.rules, &self.settings, head, decide, bypassed)
    }

    /// Continues a request after a store call.
    pub(crate) fn resume<B: 'static>(
        &self,
        decision: &mut Result<Decision, S::Error>,
        PendingCharge { charges, started }: &PendingCharge,
        head: &RequestHead<'_>,
    ) -> Admission<B, S>
    where
        R: Reject<B>,
    {
        charges.with(|charges| self.conclude(decision, charges, *started, head))
    }

    /// Continues a request after its wait in the queue.
    pub(crate) fn dequeue(&self, queued: QueuedCharge<S>) -> Option<ResponseContext> {
        let (mut decision, charges) = queued.into_charged()?;
        charges.with(|charges| self.respond(&mut decision, charges, None))
    }

    #[inline]
    fn conclude<B: 'static>(
        &self,
        decision: &mut Result<Decision, S::Error>,
        charges: &[Charge<'_>],
        started: Started,
        head: &RequestHead<'_>,
    ) -> Admission<B, S>
    where
        R: Reject<B>,
    {
        let decision = match decision {
            Ok(decision) => decision,
            Err(error) => error.never(),
        };
        self.settings.meter.answered(decision, started);
        if !decision.is_allowed() {
            self.deny(decision, charges, head)
        } else if decision.holds_slots() && !self.settings.hold.can_hold::<B>() {
            // The slots would be free before the body ends.
            self.store.undo(charges, decision, None);
            *decision = Decision::deny().from_source(Source::FailedClosed);
            self.deny(decision, charges, head)
        } else if decision.waits() {
            self.queue(decision, charges, head)
        } else {
            Admission::Admitted(self.respond(decision, charges, None))
        }
    }

    /// Admits or rejects a request without a store call.
    #[cold]
    #[inline(never)]
    fn bypass<B>(&self, bypass: Bypass, head: &RequestHead<'_>) -> Admission<B, S>
    where
        R: Reject<B>,
    {
        match bypass {
            Bypass::Rejected(error) if !self.settings.report_only.is_on() => {
                return Admission::Rejected(self.reject_unkeyed(&error, head));
            }
            Bypass::Rejected(_) => self.settings.count(Event::WouldDeny),
            Bypass::Exempt(_) => {}
        }
        Admission::Admitted(ResponseContext::uncharged(&self.settings))
    }

    #[cold]
    fn queue<B: 'static>(
        &self,
        decision: &mut Decision,
        charges: &[Charge<'_>],
        head: &RequestHead<'_>,
    ) -> Admission<B, S>
    where
        R: Reject<B>,
    {
        let Some(waiter) = self.settings.enter_queue(charges) else {
            // Other requests have filled the queue since the call.
            self.store.undo(charges, decision, None);
            return self.deny(&mut decision.clone().into_denied(), charges, head);
        };
        let queued = mem::replace(decision, Decision::deny());
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
        match self.settings.override_denial(Some(decision)) {
            None => Admission::Rejected(self.reject(decision, charges, head)),
            Some(Override::ReportOnly) => {
                Admission::Admitted(self.respond(decision, charges, None))
            }
            Some(Override::Overcommit(in_flight)) => {
                let mut overage = decision.clone().into_overage();
                Admission::Admitted(self.respond(&mut overage, charges, Some(in_flight)))
            }
        }
    }

    /// Returns the context for the response, or `None` if the response stays unchanged.
    #[inline(always)]
    fn respond(
        &self,
        decision: &mut Decision,
        charges: &[Charge<'_>],
        in_flight: Option<InFlight>,
    ) -> Option<ResponseContext> {
        let settings = &self.settings;
        settings.meter.passed(decision, |rule| self.fingerprint(charges, rule));
        settings.count_passed(decision);
        let silent = settings.headers.only_denied || !decision.is_allowed();
        let lines = if silent { None } else { self.template.lines(charges, decision) };
        ResponseContext::new(lines, settings, decision, charges, in_flight)
    }

    fn reject<B: 'static>(
        &self,
        decision: &Decision,
        charges: &[Charge<'_>],
        head: &RequestHead<'_>,
    ) -> Response<B>
    where
        R: Reject<B>,
    {
        self.settings.count(Event::Denied);
        self.settings.meter.denied(decision, |rule| self.fingerprint(charges, rule));
        let retry_after = decision.expected_wait().map(|wait| self.settings.jittered(wait));
        let chosen = self.template.for_charges(charges);
        let template = chosen.as_ref().unwrap_or(&self.template);
        let rejection = Rejection::denied(decision, retry_after, template, self.explain_context());
        let mut response = self.reject.respond(&rejection, head);
        if self.settings.marks_responses() {
            response = ResponseContext::rejected(&self.settings, decision).apply(response);
        }
        response
    }

    #[cold]
    fn reject_unkeyed<B>(&self, error: &KeyError, head: &RequestHead<'_>) -> Response<B>
    where
        R: Reject<B>,
    {
        self.settings.count(Event::Unkeyed);
        unidentified();
        if error.is_no_peer() {
            log_no_peer(error);
        }
        let context = self.explain_context();
        self.reject.reject(&Rejection::unkeyed(error, &self.template, context), head)
    }

    fn explain_context(&self) -> ExplainContext<'_> {
        ExplainContext { rules: &*self.rules, secret: self.settings.secret.as_ref() }
    }

    fn fingerprint(&self, charges: &[Charge<'_>], rule: RuleName) -> Option<Fingerprint> {
        let charge = charges.iter().find(|charge| charge.rule() == rule)?;
        Some(charge.key().fingerprint(self.settings.secret.as_ref()?))
    }
}

/// Logs that the server provides no peer address, at most once per minute.
fn log_no_peer(error: &KeyError) {
    use std::{
        sync::Mutex,
        time::{Duration, Instant},
    };

    static LAST: Mutex<Option<Instant>> = Mutex::new(None);
    let Ok(mut last) = LAST.try_lock() else { return };
    if last.is_none_or(|last| last.elapsed() >= Duration::from_secs(60)) {
        *last = Some(Instant::now());
        error!("every request is rejected with 500: {error}");
    }
}

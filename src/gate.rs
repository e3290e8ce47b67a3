//! What a layer does with a request before the service sees it: ask, then admit, delay or refuse.

use std::{cell::Cell, sync::Arc, time::Duration};

use http::{Response, header::RETRY_AFTER, request::Parts};

use crate::{
    decision::{Decision, Source},
    fingerprint::Fingerprint,
    headers::{Template, has_list, write_retry_after},
    key::KeyError,
    load::{Elastic, Event},
    name::RuleName,
    observe::{Started, unidentified},
    pass::{Pass, Place, Rest, Ticket, Who},
    reject::{Again, Reject, Rejection},
    rule::{Aside, Rules},
    settings::Settings,
    store::{Answer, CannotFail, Charge, Store, hurried},
};

/// Everything the services of one layer share.
#[derive(Debug)]
pub(crate) struct Gate<K, S, R> {
    pub(crate) rules: Arc<K>,
    pub(crate) store: Arc<S>,
    pub(crate) reject: Arc<R>,
    pub(crate) template: Arc<Template>,
    pub(crate) settings: Settings,
}

/// How far a request has come.
pub(crate) enum Asked<B, S: Store> {
    /// Nothing limits it.
    Unlimited,
    /// It passes, and nothing more is to be done. This and the next two are the common cases, in
    /// which the decision stays where it was made: moving it costs as much as deciding.
    Admitted,
    /// It passes, and its response is told of it.
    Passed(Pass),
    /// It is refused, with this answer.
    Refused(Response<B>),
    /// The answer of the store, and what is needed to conclude.
    Answered(Box<(Answer<S::Future>, Ticket)>),
}

/// What becomes of a request.
pub(crate) enum Verdict<B, S: Store> {
    Pass(Pass),
    Wait(Place<S>),
    Refuse(Response<B>),
}

impl<K, S, R> Gate<K, S, R>
where
    K: Rules,
    S: Store<Error: CannotFail>,
{
    /// Asks the store.
    #[inline]
    pub(crate) fn ask<B>(&self, parts: &Parts) -> Asked<B, S>
    where
        R: Reject<B>,
    {
        let asked = match self.settings.passes(parts) {
            Ok(None) => self.rules.charges(parts, |charges| match charges {
                [] => Asked::Unlimited,
                charges => self.take(charges, parts),
            }),
            Ok(Some(_)) => Err(Aside::Exempt),
            Err(error) => Err(Aside::Refused(error)),
        };
        asked.unwrap_or_else(|aside| self.set_aside(aside, parts))
    }

    /// What becomes of a request that no store is asked about.
    #[cold]
    #[inline(never)]
    fn set_aside<B>(&self, aside: Aside, parts: &Parts) -> Asked<B, S>
    where
        R: Reject<B>,
    {
        match aside {
            Aside::Exempt => Asked::Unlimited,
            Aside::Refused(_) if self.settings.report_only.is_on() => {
                self.settings.count(Event::WouldDeny);
                Asked::Unlimited
            }
            Aside::Refused(error) => Asked::Refused(self.refuse_unkeyed(&error, parts)),
        }
    }

    #[inline]
    fn take<B>(&self, charges: &[Charge<'_>], parts: &Parts) -> Asked<B, S>
    where
        R: Reject<B>,
    {
        let started = Started::now();
        let queues = charges.iter().any(Charge::queues);
        // a layer that only reports delays nobody either
        let hurry =
            queues && (self.settings.report_only.is_on() || self.settings.is_crowded(charges));
        let answer = if hurry { self.hurry(charges) } else { self.store.take(charges) };
        let chosen = self.template.for_charges(charges);
        let template = chosen.as_ref().unwrap_or(&self.template);
        if let Answer::Now(Ok(decision)) = &answer
            && !decision.waits()
            && self.settings.is_plain()
        {
            let secret = self.settings.secret.as_ref();
            let who = |rule| {
                let charge = charges.iter().find(|charge| charge.rule() == rule)?;
                Some(charge.key().fingerprint(secret?))
            };
            if decision.is_allowed() {
                self.settings.meter.answered(decision, started);
                self.settings.meter.passed(decision, who);
                let silent = self.settings.only_denied;
                let lines = if silent { None } else { template.read(decision) };
                return match lines {
                    None => Asked::Admitted,
                    lines => Asked::Passed(Pass { lines, rest: None }),
                };
            } else if !self.settings.report_only.is_on() {
                self.settings.meter.answered(decision, started);
                let wait = decision.retry_after();
                return Asked::Refused(self.refuse(decision, wait, template, who, parts));
            }
        }
        let keep = match &answer {
            _ if self.settings.after.is_some() => true,
            Answer::Now(Ok(decision)) => decision.waits(),
            Answer::Now(Err(_)) => false,
            Answer::Later(_) => queues,
        };
        let ticket = Ticket {
            charges: keep.then(|| Box::new(charges.into())),
            template: chosen,
            spared: None,
            started,
            who: Who::of(charges, self.settings.secret.as_ref()),
        };
        Asked::Answered(Box::new((answer, ticket)))
    }

    /// Takes for a request that is not to queue, though its rules would let it.
    #[cold]
    fn hurry(&self, charges: &[Charge<'_>]) -> Answer<S::Future> {
        self.store.take(&hurried(charges))
    }

    /// What the handler of a request finds that nothing limits.
    #[inline]
    pub(crate) fn excuse(&self, parts: &mut Parts) {
        if let Some(after) = &self.settings.after {
            parts.extensions.insert(after.reserve(None, Decision::allow(), false));
        }
    }
}

impl<K: Rules, S: Store, R> Gate<K, S, R> {
    fn again(&self) -> Again<'_> {
        Again { rules: &*self.rules, secret: self.settings.secret.as_ref() }
    }

    /// Lets the request pass or wait, or says what to answer instead.
    #[inline]
    pub(crate) fn conclude<B>(
        &self,
        decision: Result<Decision, S::Error>,
        ticket: Ticket,
        parts: &mut Parts,
    ) -> Verdict<B, S>
    where
        S: Store<Error: CannotFail>,
        R: Reject<B>,
    {
        let decision = decision.unwrap_or_else(CannotFail::absurd);
        self.settings.meter.answered(&decision, ticket.started);
        if !decision.is_allowed() {
            return self.denied(decision, ticket, parts);
        }
        if decision.waits() {
            return self.delayed(decision, ticket, parts);
        }
        Verdict::Pass(self.pass(decision, ticket, parts))
    }

    /// The place in the queue has come up.
    pub(crate) fn resume(&self, place: Place<S>, parts: &mut Parts) -> Pass {
        match place.reached() {
            Some((decision, ticket)) => self.pass(decision, ticket, parts),
            None => Pass::default(),
        }
    }

    #[inline]
    fn pass(&self, decision: Decision, ticket: Ticket, parts: &mut Parts) -> Pass {
        let settings = &self.settings;
        let silent = settings.only_denied || !decision.is_allowed();
        let template = ticket.template.as_ref().unwrap_or(&self.template);
        let lines = if silent { None } else { template.read(&decision) };
        settings.meter.passed(&decision, |rule| ticket.who.under(rule));
        settings.count_passed(&decision);
        if settings.is_plain() {
            return Pass { lines, rest: None };
        }
        let mut rest = Rest::default();
        if let Some(after) = &settings.after {
            let charged = decision.is_allowed()
                && ticket.spared.is_none()
                && decision.source() != Source::FailedOpen;
            let reservation = after.reserve(ticket.charges, decision.clone(), charged);
            parts.extensions.insert(reservation.clone());
            rest.reserved = Some((reservation, after.classify.clone()));
        }
        if settings.expose {
            parts.extensions.insert(decision.clone());
            rest.exposed = Some(decision);
        }
        rest.in_flight = ticket.spared.or_else(|| settings.elastic.as_ref().map(Elastic::enter));
        Pass { lines, rest: Some(Box::new(rest)) }
    }

    #[cold]
    fn delayed<B>(&self, decision: Decision, ticket: Ticket, parts: &mut Parts) -> Verdict<B, S>
    where
        R: Reject<B>,
    {
        let store = self.store.clone();
        let waiter = match &ticket.charges {
            Some(charges) => charges.with(|charges| self.settings.enter_queue(charges)),
            None => self.settings.enter_queue(&[]),
        };
        match waiter {
            Some(waiter) => Verdict::Wait(Place::new(store, decision, ticket, waiter)),
            // others took the last places since the store was asked
            None => {
                if let Some(charges) = &ticket.charges {
                    charges.with(|charges| store.undo(charges, &decision, None));
                }
                self.denied(decision.turned_away(), ticket, parts)
            }
        }
    }

    #[cold]
    fn denied<B>(&self, decision: Decision, ticket: Ticket, parts: &mut Parts) -> Verdict<B, S>
    where
        R: Reject<B>,
    {
        let retry_after = decision.retry_after();
        let room = || self.settings.elastic.as_ref().and_then(Elastic::try_enter);
        if self.settings.report_only.is_on() {
            return Verdict::Pass(self.pass(decision, ticket, parts));
        }
        if decision.may_pass_beyond()
            && let Some(in_flight) = room()
        {
            let ticket = Ticket { spared: Some(in_flight), ..ticket };
            return Verdict::Pass(self.pass(decision.passed(), ticket, parts));
        }
        let template = ticket.template.as_ref().unwrap_or(&self.template);
        let who = |rule| ticket.who.under(rule);
        Verdict::Refuse(self.refuse(&decision, retry_after, template, who, parts))
    }

    fn refuse<B>(
        &self,
        decision: &Decision,
        retry_after: Option<Duration>,
        template: &Arc<Template>,
        who: impl Fn(RuleName) -> Option<Fingerprint>,
        parts: &Parts,
    ) -> Response<B>
    where
        R: Reject<B>,
    {
        self.settings.count(Event::Denied);
        self.settings.meter.refused(decision, who);
        let retry_after = retry_after.map(|wait| self.settings.jittered(wait));
        let told = Cell::new(false);
        let why = Rejection::denied(decision, retry_after, template, self.again(), &told);
        let mut response = self.reject.reject(&why, parts);
        let headers = response.headers_mut();
        // as a rule they are in what was answered; but who rejects may have thrown some away
        if !told.get() || headers.keys().next() != Some(&RETRY_AFTER) {
            if let Some(wait) = retry_after {
                write_retry_after(headers, wait);
            }
            if !(told.get() && has_list(headers))
                && let Some(lines) = template.read(decision)
            {
                lines.write(headers);
            }
        }
        if self.settings.expose {
            response.extensions_mut().insert(decision.clone());
        }
        response
    }

    #[cold]
    pub(crate) fn refuse_unkeyed<B>(&self, error: &KeyError, parts: &Parts) -> Response<B>
    where
        R: Reject<B>,
    {
        self.settings.count(Event::Unkeyed);
        unidentified();
        if error.is_no_peer() {
            log_no_peer(error);
        }
        let told = Cell::new(false);
        let why = Rejection::unkeyed(error, &self.template, self.again(), &told);
        self.reject.reject(&why, parts)
    }
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

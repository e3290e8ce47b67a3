//! A layer's knobs.

use std::{
    fmt,
    hash::{BuildHasher, RandomState},
    sync::Arc,
    time::Duration,
};

use http::{
    Method,
    header::{
        ACCESS_CONTROL_REQUEST_METHOD, CONTENT_LENGTH, CONTENT_TYPE, ORIGIN, TRANSFER_ENCODING,
    },
    request::Parts,
    response,
};

use crate::{
    access::AccessList,
    decision::Decision,
    fingerprint::Secret,
    key::KeyError,
    load::{Counters, Elastic, Event, Switch},
    name::RuleName,
    observe::Meter,
    settle::{Reservation, Settle, Settler, Unsettled},
    store::{Charge, OwnedCharges},
    waiters::{Bounds, Waiter, Waiters},
};

/// How many requests may wait for their place at a time, unless a layer says otherwise.
pub(crate) const MAX_WAITERS: usize = 1_024;

/// The layer's knobs that are plain values.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) only_denied: bool,
    pub(crate) expose: bool,
    pub(crate) exempt_preflights: bool,
    /// While it is on, nobody is refused.
    pub(crate) report_only: Switch,
    /// Percent of the wait that may be added to it.
    pub(crate) jitter: u8,
    pub(crate) queue: Bounds,
    pub(crate) waiters: Arc<Waiters>,
    /// While it is off, no rule is asked.
    pub(crate) switch: Switch,
    pub(crate) allow: Vec<AccessList>,
    pub(crate) deny: Vec<AccessList>,
    pub(crate) elastic: Option<Elastic>,
    pub(crate) counters: Option<Counters>,
    pub(crate) after: Option<After>,
    pub(crate) meter: Meter,
    /// Tells keys by fingerprints of it.
    pub(crate) secret: Option<Secret>,
}

/// How charges are settled after the response.
#[derive(Clone)]
pub(crate) struct After {
    pub(crate) accounts: Arc<dyn Settler>,
    /// Every rule of the layer.
    pub(crate) rules: Arc<[RuleName]>,
    pub(crate) unsettled: Unsettled,
    pub(crate) classify: Option<Classify>,
}

impl After {
    /// Units that a request without an adjustment is charged in the end, where that is fixed.
    pub(crate) fn adjusted(&self) -> Option<u32> {
        match self.unsettled {
            Unsettled::AtLeast(units) => Some(units),
            Unsettled::Keep | Unsettled::Refund => None,
        }
    }

    /// Uncharged there is nothing to settle, but a handler finds what it asks for, and may block.
    pub(crate) fn reserve(
        &self,
        charges: Option<Box<OwnedCharges>>,
        decision: Decision,
        charged: bool,
    ) -> Reservation {
        let charges = charges.map_or_else(|| OwnedCharges::from(&[][..]), |charges| *charges);
        let settled = (self.unsettled, self.rules.clone());
        Reservation::new(self.accounts.clone(), charges, decision, settled, charged)
    }
}

pub(crate) type Classify = Arc<dyn Fn(&response::Parts) -> Settle + Send + Sync>;

impl fmt::Debug for After {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("After").field("unsettled", &self.unsettled).finish_non_exhaustive()
    }
}

impl Settings {
    pub(crate) fn count(&self, event: Event) {
        if let Some(counters) = &self.counters {
            counters.add(event);
        }
    }

    /// Whether an admitted request carries nothing but header fields to its response.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        let Self { expose, after, elastic, counters, .. } = self;
        !expose && after.is_none() && elastic.is_none() && counters.is_none()
    }

    /// Why a request passes before any rule is asked, where one does.
    #[inline]
    pub(crate) fn passes(&self, parts: &Parts) -> Result<Option<&'static str>, KeyError> {
        if !self.switch.is_on() {
            return Ok(Some("the layer is switched off"));
        }
        if self.allow.iter().any(|list| list.allows(parts)) {
            return Ok(Some("it is on a list of those let in"));
        }
        self.deny.iter().try_for_each(|list| list.deny(parts))?;
        if self.exempt_preflights && is_preflight(parts) {
            return Ok(Some("it is a CORS preflight"));
        }
        Ok(None)
    }

    /// Counts a request that passes.
    pub(crate) fn count_passed(&self, decision: &Decision) {
        if self.counters.is_none() {
            return;
        }
        self.count(if decision.is_allowed() { Event::Allowed } else { Event::WouldDeny });
        if decision.is_allowed() && decision.would_deny() {
            self.count(Event::WouldDeny);
        }
        if decision.is_overage() {
            self.count(Event::Overage);
        }
        if !decision.wait().is_zero() {
            self.count(Event::Delayed);
        }
    }

    /// Returns whether a request with these charges has no place to wait in.
    pub(crate) fn is_crowded(&self, charges: &[Charge<'_>]) -> bool {
        self.waiters.are_full(charges, self.queue)
    }

    /// Counts a request that waits, if there is a place.
    pub(crate) fn enter_queue(&self, charges: &[Charge<'_>]) -> Option<Waiter> {
        self.waiters.enter(charges, self.queue)
    }

    /// The refused of one moment would all come back in one moment; later is never too early.
    pub(crate) fn jittered(&self, wait: Duration) -> Duration {
        if self.jitter == 0 {
            return wait;
        }
        let share = RandomState::new().hash_one(0) % (u64::from(self.jitter) + 1);
        wait.saturating_add(wait.mul_f64(share as f64 / 100.0))
    }
}

impl Settings {
    /// As they are at first, for these rules.
    pub(crate) fn new(rules: impl IntoIterator<Item = RuleName>) -> Self {
        Self {
            only_denied: false,
            expose: false,
            exempt_preflights: false,
            report_only: Switch::off(),
            jitter: 0,
            queue: Bounds { all: MAX_WAITERS, per_key: None },
            waiters: Arc::default(),
            switch: Switch::on(),
            allow: Vec::new(),
            deny: Vec::new(),
            elastic: None,
            counters: None,
            after: None,
            meter: Meter::new(rules),
            secret: None,
        }
    }
}

/// A request that is a CORS preflight (Fetch standard, section 3.2.2) and has no body, as far as its
/// head shows. A browser sends no `content-type` with a preflight; a gRPC call has one.
fn is_preflight(parts: &Parts) -> bool {
    let Parts { method, headers, .. } = parts;
    method == Method::OPTIONS
        && headers.contains_key(ORIGIN)
        && headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
        && !headers.contains_key(CONTENT_TYPE)
        && !headers.contains_key(TRANSFER_ENCODING)
        && headers.get_all(CONTENT_LENGTH).iter().all(|length| length == "0")
}

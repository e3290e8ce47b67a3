//! Settings of a layer.

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
};

use super::{
    access::AccessList,
    adjust::{Adjustment, ChargeHandle, DetachedStore, Unsettled},
    hold::HoldConfig,
    overcommit::{InFlight, Overcommit},
    queue::{Bounds, Waiter, Waiters},
    stats::{Counters, Event},
};
use crate::{
    decision::Decision,
    fingerprint::FingerprintKey,
    head::{RequestHead, ResponseHead},
    headers::HeaderPolicy,
    observe::Meter,
    rule::{Bypass, RuleName},
    store::Charge,
    toggle::Toggle,
};

/// The default number of requests that may queue at once.
pub(crate) const MAX_WAITERS: usize = 1_024;

/// Settings of a layer.
#[derive(Clone, Debug)]
pub(crate) struct LayerConfig {
    pub(crate) headers: HeaderPolicy,
    pub(crate) expose: bool,
    pub(crate) exempt_preflights: bool,
    /// While on, no request is denied.
    pub(crate) report_only: Toggle,
    /// The maximum random increase of `Retry-After`, in percent.
    pub(crate) jitter: u8,
    pub(crate) queue: Bounds,
    pub(crate) waiters: Arc<Waiters>,
    /// While off, all requests pass without a charge.
    pub(crate) enabled: Toggle,
    pub(crate) allow: Vec<AccessList>,
    pub(crate) deny: Vec<AccessList>,
    pub(crate) overcommit: Option<Overcommit>,
    pub(crate) counters: Option<Counters>,
    pub(crate) after: Option<AdjustConfig>,
    pub(crate) hold: HoldConfig,
    pub(crate) meter: Meter,
    /// The secret for fingerprints of keys in logs, spans and explanations.
    pub(crate) secret: Option<FingerprintKey>,
}

/// The reason to run a request that would otherwise be rejected.
pub(crate) enum Override {
    ReportOnly,
    Overcommit(InFlight),
}

/// Settings for the adjustment of charges.
#[derive(Clone)]
pub(crate) struct AdjustConfig {
    pub(crate) accounts: Arc<dyn DetachedStore>,
    /// The names of all rules of the layer.
    pub(crate) rules: Arc<[RuleName]>,
    pub(crate) unsettled: Unsettled,
    pub(crate) classify: Option<Classify>,
}

impl AdjustConfig {
    /// Returns the minimum final charge of a request, if set.
    pub(crate) fn adjusted(&self) -> Option<u32> {
        match self.unsettled {
            Unsettled::AtLeast(units) => Some(units),
            Unsettled::Keep | Unsettled::Refund => None,
        }
    }

    /// Creates the handle for the extensions of a request.
    ///
    /// Uncharged requests get a handle as well, because handlers may extract it.
    pub(crate) fn reserve(
        &self,
        charges: &[Charge<'_>],
        decision: Decision,
        charged: bool,
    ) -> ChargeHandle {
        let charges = charges.into();
        let settled = (self.unsettled, self.rules.clone());
        ChargeHandle::new(self.accounts.clone(), charges, decision, settled, charged)
    }
}

pub(crate) type Classify = Arc<dyn Fn(&ResponseHead<'_>) -> Adjustment + Send + Sync>;

impl fmt::Debug for AdjustConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdjustConfig").field("unsettled", &self.unsettled).finish_non_exhaustive()
    }
}

impl LayerConfig {
    pub(crate) fn count(&self, event: Event) {
        if let Some(counters) = &self.counters {
            counters.add(event);
        }
    }

    /// Returns `true` if the layer adds nothing but header fields to a response.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        // Names every field, so that a new setting does not compile until it is considered here.
        let Self {
            expose,
            after,
            overcommit,
            counters,
            headers: _,
            exempt_preflights: _,
            report_only: _,
            jitter: _,
            queue: _,
            waiters: _,
            enabled: _,
            allow: _,
            deny: _,
            hold: _,
            meter: _,
            secret: _,
        } = self;
        !expose && after.is_none() && overcommit.is_none() && counters.is_none()
    }

    /// Returns `true` if the decision is added to rejections.
    #[inline]
    pub(crate) fn marks_responses(&self) -> bool {
        self.expose
    }

    /// Checks the toggle, the access lists and the exemption of preflights.
    ///
    /// # Errors
    ///
    /// Fails if the request bypasses the rules. The error is the reason.
    #[inline]
    pub(crate) fn check_bypass(&self, head: &RequestHead<'_>) -> Result<(), Bypass> {
        if !self.enabled.is_on() {
            return Err(Bypass::Exempt("the layer is switched off"));
        }
        if self.allow.iter().any(|list| list.allows(head)) {
            return Err(Bypass::Exempt("it is on an allow list"));
        }
        self.deny.iter().try_for_each(|list| list.deny(head))?;
        if self.exempt_preflights && is_preflight(head) {
            return Err(Bypass::Exempt("it is a CORS preflight"));
        }
        Ok(())
    }

    /// Counts a request that runs.
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

    /// Returns `true` if the queue is full or the layer is report-only.
    #[inline]
    pub(crate) fn must_not_queue(&self, charges: &[Charge<'_>]) -> bool {
        charges.iter().any(Charge::queues)
            && (self.report_only.is_on() || self.waiters.are_full(charges, self.queue))
    }

    /// Returns a reason to run a request that would otherwise be rejected, or `None` to reject it.
    #[inline]
    pub(crate) fn override_denial(&self, decision: Option<&Decision>) -> Option<Override> {
        if self.report_only.is_on() {
            return Some(Override::ReportOnly);
        }
        let overcommit =
            self.overcommit.as_ref().filter(|_| decision.is_some_and(Decision::may_pass_beyond))?;
        overcommit.try_enter().map(Override::Overcommit)
    }

    /// Adds a request to the queue. Returns `None` if the queue is full.
    pub(crate) fn enter_queue(&self, charges: &[Charge<'_>]) -> Option<Waiter> {
        self.waiters.enter(charges, self.queue)
    }

    /// Adds jitter to `wait`.
    #[inline]
    pub(crate) fn jittered(&self, wait: Duration) -> Duration {
        if self.jitter == 0 {
            return wait;
        }
        let share = RandomState::new().hash_one(0) % (u64::from(self.jitter) + 1);
        wait.saturating_add(wait.mul_f64(share as f64 / 100.0))
    }
}

impl LayerConfig {
    /// Creates the default settings for these rules.
    pub(crate) fn new(rules: impl IntoIterator<Item = RuleName>) -> Self {
        Self {
            headers: HeaderPolicy::default(),
            expose: false,
            exempt_preflights: false,
            report_only: Toggle::off(),
            jitter: 0,
            queue: Bounds { all: MAX_WAITERS, per_key: None },
            waiters: Arc::default(),
            enabled: Toggle::on(),
            allow: Vec::new(),
            deny: Vec::new(),
            overcommit: None,
            counters: None,
            after: None,
            hold: HoldConfig::default(),
            meter: Meter::new(rules),
            secret: None,
        }
    }
}

/// Returns `true` for a CORS preflight without a body (Fetch standard, section 3.2.2).
///
/// A gRPC call is never a preflight, because it has a `content-type`.
fn is_preflight(head: &RequestHead<'_>) -> bool {
    let RequestHead { method, headers, .. } = head;
    *method == Method::OPTIONS
        && headers.contains_key(ORIGIN)
        && headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
        && !headers.contains_key(CONTENT_TYPE)
        && !headers.contains_key(TRANSFER_ENCODING)
        && headers.get_all(CONTENT_LENGTH).iter().all(|length| length == "0")
}

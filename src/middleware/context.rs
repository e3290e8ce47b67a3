//! The effects of a decision on the handler and the response, beyond header fields.

use std::sync::Arc;

use http::{Extensions, Response, StatusCode, header::ACCESS_CONTROL_ALLOW_ORIGIN};
use smallvec::SmallVec;

use super::{
    adjust::ChargeHandle,
    config::LayerConfig,
    hold::HoldConfig,
    overcommit::{InFlight, Overcommit},
    penalty::PendingStrike,
};
use crate::{
    advice::{NestingCheck, warn_of_inner_cors, warn_of_upgrade},
    decision::{Decision, Slot, Source},
    headers::Lines,
    rule::{Measurement, RuleName},
    store::Charge,
};

/// Everything that a decision adds to the handler and to the response, for layers and rules that
/// need more than header fields.
#[derive(Default)]
pub(crate) struct ResponseContext {
    lines: Option<Lines>,
    /// Boxed, because few layers expose it and moving it is slow.
    decision: Option<Box<Decision>>,
    charge: Option<ChargeHandle>,
    /// For penalties by response.
    strikes: SmallVec<[PendingStrike; 1]>,
    held: Option<HeldSlot>,
    measured: SmallVec<[Measurement; 1]>,
    _in_flight: Option<InFlight>,
    /// Set for one of the first requests.
    sampled: Option<SampledRequest>,
}

/// The slots of a request, and how long to hold them.
struct HeldSlot {
    slot: Slot,
    config: Arc<HoldConfig>,
}

/// One of the first requests, and the rules that charged it.
struct SampledRequest {
    nesting: Arc<NestingCheck>,
    rules: SmallVec<[RuleName; 4]>,
}

impl ResponseContext {
    /// Returns the context of a request that bypassed the store, if the layer has one for each request.
    pub(super) fn uncharged(settings: &LayerConfig) -> Option<Box<Self>> {
        if !settings.has_context {
            return None;
        }
        let bypass = || Decision::allow().with_source(Source::Bypass);
        let exposing = settings
            .adjustment
            .as_ref()
            .filter(|config| config.exposed.is_some());
        Some(Box::new(Self {
            charge: exposing.map(|config| ChargeHandle::new(config, &[], bypass(), false)),
            decision: settings.exposes_decision.then(|| Box::new(bypass())),
            _in_flight: settings.overcommit.as_ref().map(Overcommit::enter),
            ..Self::default()
        }))
    }

    /// Writes header fields and extensions to a response, adjusts the charge, and makes the body
    /// hold the slots.
    pub(super) fn apply<B: 'static>(self: Box<Self>, mut response: Response<B>) -> Response<B> {
        if self.sampled.is_some() && response.headers().contains_key(ACCESS_CONTROL_ALLOW_ORIGIN) {
            warn_of_inner_cors();
        }
        if let Some(lines) = self.lines {
            lines.write(response.headers_mut());
        }
        if let Some(decision) = self.decision {
            response.extensions_mut().insert(*decision);
        }
        if let Some(charge) = &self.charge {
            charge.classify(&response);
        }
        for strike in &self.strikes {
            strike.classify(&response);
        }
        match self.held {
            Some(held) => held.end_head(self.measured, response),
            None => response,
        }
    }

    /// Starts the measurements, and inserts the extensions for the handler, which is called next.
    pub(super) fn begin_handler(&mut self, extensions: &mut Extensions) {
        if let Some(SampledRequest { nesting, rules }) = &self.sampled {
            nesting.record(rules, extensions);
        }
        if let Some(decision) = &self.decision {
            extensions.insert(Decision::clone(decision));
        }
        if let Some(charge) = &self.charge {
            charge.expose(extensions);
        }
        if let Some(HeldSlot { slot, config }) = &self.held {
            self.measured.iter_mut().for_each(Measurement::start);
            if config.exposed {
                extensions.insert(slot.clone());
            }
        }
    }

    #[inline(never)]
    pub(super) fn new(
        lines: Option<Lines>,
        settings: &LayerConfig,
        decision: &mut Decision,
        charges: &[Charge<'_>],
        in_flight: Option<InFlight>,
    ) -> Box<Self> {
        // Filled in place, because moving it is slow.
        let mut context = Box::<Self>::default();
        context.lines = lines;
        // The slots move to the context first, so that the clones of the decision below hold none.
        context.hold_slots(settings, decision, charges);
        if !settings.report_only.is_on() {
            for penalty in &settings.penalties {
                let strike = PendingStrike::new(penalty, decision, charges);
                context.strikes.extend(strike);
            }
        }
        // A request that overcommits is not charged.
        let is_charged = decision.is_allowed() && in_flight.is_none();
        if is_charged && settings.nesting.sample() {
            context.check_sampled(settings, decision, charges);
        }
        context.decision = settings.exposes_decision.then(|| decision.clone().into());
        context.charge = settings.adjustment.as_ref().map(|config| {
            let is_kept = is_charged && !decision.cause().is_undone();
            ChargeHandle::new(config, charges, decision.clone(), is_kept)
        });
        context._in_flight =
            in_flight.or_else(|| settings.overcommit.as_ref().map(Overcommit::enter));
        context
    }

    /// Takes the slots from the decision, and begins to count and to measure them.
    #[inline(always)]
    fn hold_slots(
        &mut self,
        settings: &LayerConfig,
        decision: &mut Decision,
        charges: &[Charge<'_>],
    ) {
        if decision.slot.is_none() {
            return;
        }
        for charge in charges {
            let Charge {
                rule, quotas, cost, ..
            } = *charge;
            settings.metrics.hold(decision, rule, quotas, cost);
        }
        self.held = decision.take_slot().map(|slot| HeldSlot {
            slot,
            config: settings.hold.clone(),
        });
        for adaptive in &settings.adaptive {
            self.measured.extend(adaptive.measure(decision, charges));
        }
    }

    /// Checks one of the first requests for mistakes of the layer.
    fn check_sampled(
        &mut self,
        settings: &LayerConfig,
        decision: &Decision,
        charges: &[Charge<'_>],
    ) {
        let is_free = |charge: &Charge<'_>| charge.cost == 0 || charge.quotas.is_empty();
        // The cost may be known only after the response.
        let may_cost_later = settings.adjustment.is_some();
        if charges.iter().all(is_free) && !may_cost_later {
            settings.miss_charge();
        } else {
            settings.charging.record_hit();
        }
        let counting = charges
            .iter()
            .filter(|charge| charge.cost > 0 && decision.charged(charge.rule));
        self.sampled = Some(SampledRequest {
            nesting: settings.nesting.clone(),
            rules: counting.map(|charge| charge.rule).collect(),
        });
    }
}

impl HeldSlot {
    /// Ends what lasts until the head of the response is ready. The body holds the slots from here on.
    #[inline(always)]
    fn end_head<B: 'static>(
        mut self,
        measured: SmallVec<[Measurement; 1]>,
        response: Response<B>,
    ) -> Response<B> {
        let config = self.config;
        if !measured.is_empty() {
            let is_overloaded = config.is_overloaded(&response);
            for measurement in measured {
                measurement.complete(is_overloaded);
            }
        }
        if response.status() == StatusCode::SWITCHING_PROTOCOLS && !config.exposed {
            warn_of_upgrade();
        }
        self.slot.end_head();
        config.hold(self.slot, response)
    }
}

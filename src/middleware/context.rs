//! The effects of a decision on the handler and the response.

use http::{Extensions, Request, Response};

use super::{
    adjust::ChargeHandle,
    config::{AdjustConfig, Classify, LayerConfig},
    hold::HoldConfig,
    overcommit::{InFlight, Overcommit},
};
use crate::{
    decision::{Decision, Slot, Source},
    head::ResponseHead,
    headers::Lines,
    store::Charge,
};

/// The header fields and extensions that a decision adds.
pub(crate) struct ResponseContext {
    lines: Option<Lines>,
    extras: Option<Box<Extras>>,
}

/// Data that only some layers need.
#[derive(Default)]
struct Extras {
    decision: Option<Decision>,
    charge: Option<ChargeHandle>,
    classify: Option<Classify>,
    slot: Option<(Slot, HoldConfig)>,
    _in_flight: Option<InFlight>,
}

impl ResponseContext {
    /// Creates the context, or returns `None` if the response stays unchanged.
    #[inline(always)]
    pub(super) fn new(
        lines: Option<Lines>,
        settings: &LayerConfig,
        decision: &mut Decision,
        charges: &[Charge<'_>],
        in_flight: Option<InFlight>,
    ) -> Option<Self> {
        if settings.is_plain() && !decision.holds_slots() {
            return lines.map(|lines| Self { lines: Some(lines), extras: None });
        }
        let extras = Box::new(Extras::new(settings, decision, charges, in_flight));
        Some(Self { lines, extras: Some(extras) })
    }

    /// Returns the context of a rejection, which already has its header fields.
    pub(super) fn rejected(settings: &LayerConfig, decision: &Decision) -> Self {
        Self { lines: None, extras: Some(Box::new(Extras::about(settings, decision))) }
    }

    /// Returns the context of a request that bypassed the store.
    pub(super) fn uncharged(settings: &LayerConfig) -> Option<Self> {
        let charge = settings.after.as_ref()?.reserve(&[], Decision::allow(), false);
        let extras = Box::new(Extras { charge: Some(charge), ..Extras::default() });
        Some(Self { lines: None, extras: Some(extras) })
    }

    /// Inserts the extensions for the handler.
    #[inline]
    pub(super) fn attach<B>(&self, request: &mut Request<B>) {
        if let Some(extras) = &self.extras {
            extras.attach(request.extensions_mut());
        }
    }

    /// Writes header fields and extensions to the response, adjusts the charge, and makes the body
    /// hold the slots.
    pub(super) fn apply<B: 'static>(self, mut response: Response<B>) -> Response<B> {
        if let Some(lines) = self.lines {
            lines.write(response.headers_mut());
        }
        let Some(extras) = self.extras else { return response };
        if let Some(decision) = extras.decision {
            response.extensions_mut().insert(decision);
        }
        if let (Some(charge), Some(classify)) = (extras.charge, extras.classify) {
            charge.apply(classify(&ResponseHead::from(&response)));
        }
        match extras.slot {
            Some((slot, config)) => config.hold(slot, response),
            None => response,
        }
    }
}

impl Extras {
    #[inline(never)]
    fn attach(&self, extensions: &mut Extensions) {
        if let Some(decision) = &self.decision {
            extensions.insert(decision.clone());
        }
        if let Some(charge) = &self.charge {
            extensions.insert(charge.clone());
        }
        if let Some((slot, _)) = self.slot.as_ref().filter(|(_, config)| config.exposed) {
            extensions.insert(slot.clone());
        }
    }

    /// Creates extras with the decision, if the layer exposes decisions.
    fn about(settings: &LayerConfig, decision: &Decision) -> Self {
        Self { decision: settings.expose.then(|| decision.clone()), ..Self::default() }
    }

    #[inline(never)]
    fn new(
        settings: &LayerConfig,
        decision: &mut Decision,
        charges: &[Charge<'_>],
        in_flight: Option<InFlight>,
    ) -> Self {
        let charge = |after: &AdjustConfig| {
            let charged = decision.is_allowed()
                && in_flight.is_none()
                && decision.source() != Source::FailedOpen;
            after.reserve(charges, decision.clone(), charged)
        };
        let after = settings.after.as_ref();
        let charge = after.map(charge);
        Self {
            charge,
            slot: decision.take_slot().map(|slot| (slot, settings.hold.clone())),
            classify: after.and_then(|after| after.classify.clone()),
            _in_flight: in_flight.or_else(|| settings.overcommit.as_ref().map(Overcommit::enter)),
            ..Self::about(settings, decision)
        }
    }
}

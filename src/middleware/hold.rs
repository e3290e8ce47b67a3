//! Holds the slots of a request until its response body ends.

use std::{
    any::Any,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use http::{Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use crate::{advice::warn_of_response_body, decision::Slot, head::ResponseHead};

/// End of the time for which a layer holds the [slots](crate::Quota::concurrent) of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum HoldUntil {
    /// The response body ends or is dropped.
    #[default]
    Body,
    /// The head of the response is ready.
    Head,
}

pin_project! {
    /// Body that holds slots until it ends, fails or is dropped.
    ///
    /// The layer wraps the bodies of axum and tonic itself. See
    /// [`hold_with`](crate::RateLimitLayer::hold_with) for other bodies.
    #[derive(Debug)]
    pub struct SlotBody<B> {
        #[pin]
        body: B,
        slot: Option<Slot>,
    }
}

impl<B> SlotBody<B> {
    /// Creates a body that holds `slot` until `body` ends.
    pub fn new(body: B, slot: Slot) -> Self {
        Self {
            body,
            slot: Some(slot),
        }
    }
}

impl<B> Body for SlotBody<B>
where
    B: Body,
{
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let this = self.project();
        let polled = this.body.poll_frame(cx);
        if matches!(polled, Poll::Ready(None | Some(Err(_)))) {
            *this.slot = None;
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The settings by which a layer holds slots.
#[derive(Clone)]
pub(crate) struct HoldConfig {
    pub(super) until: HoldUntil,
    /// `true` if the handler gets the slot.
    pub(super) exposed: bool,
    /// A [`Wrap`] for each known type of bodies, the newest first.
    wraps: Vec<Arc<dyn Any + Send + Sync>>,
    /// Returns `true` for a response that shows an overload.
    pub(super) overloaded: IsOverloaded,
}

pub(super) type IsOverloaded = Arc<dyn Fn(&ResponseHead<'_>) -> bool + Send + Sync>;

/// A function that makes a body hold a slot.
type Wrap<B> = Box<dyn Fn(B, Slot) -> B + Send + Sync>;

fn is_unavailable(response: &ResponseHead<'_>) -> bool {
    matches!(
        response.status,
        StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT
    )
}

impl Default for HoldConfig {
    fn default() -> Self {
        #[cfg_attr(not(any(feature = "axum", feature = "tonic")), expect(unused_mut))]
        let mut config = Self {
            until: HoldUntil::Body,
            exposed: false,
            wraps: Vec::new(),
            overloaded: Arc::new(is_unavailable),
        };
        // The bodies of axum and tonic can contain any body.
        #[cfg(feature = "axum")]
        config.set_wrap(|body, slot| axum::body::Body::new(SlotBody::new(body, slot)));
        #[cfg(feature = "tonic")]
        config.set_wrap(|body, slot| tonic::body::Body::new(SlotBody::new(body, slot)));
        config
    }
}

impl HoldConfig {
    pub(super) fn set_wrap<B: 'static>(
        &mut self,
        wrap: impl Fn(B, Slot) -> B + Send + Sync + 'static,
    ) {
        let wrap: Wrap<B> = Box::new(wrap);
        self.wraps.insert(0, Arc::new(wrap));
    }

    /// Returns `true` if a response shows an overload.
    pub(super) fn is_overloaded<B>(&self, response: &Response<B>) -> bool {
        (self.overloaded)(&ResponseHead::from(response))
    }

    fn wrap<B: 'static>(&self) -> Option<&Wrap<B>> {
        self.wraps.iter().find_map(|wrap| wrap.downcast_ref())
    }

    /// Returns `true` if the layer can hold a slot as long as set. Logs the first type of body that
    /// it cannot hold a slot in.
    pub(super) fn can_hold<B: 'static>(&self) -> bool {
        let holds = self.until == HoldUntil::Head || self.wrap::<B>().is_some();
        if !holds {
            warn_of_response_body::<B>();
        }
        holds
    }

    /// Makes the response hold the slot, or drops the slot after the head.
    pub(super) fn hold<B: 'static>(&self, slot: Slot, mut response: Response<B>) -> Response<B> {
        if self.exposed {
            response.extensions_mut().insert(slot.clone());
        }
        match self.wrap::<B>().filter(|_| self.until == HoldUntil::Body) {
            Some(wrap) => response.map(|body| wrap(body, slot)),
            None => response,
        }
    }
}

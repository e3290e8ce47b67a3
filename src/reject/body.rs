//! Text as a body of any type that can hold it.

use std::any::Any;

use bytes::Bytes;
use http_body_util::Full;

/// A body of `text`, or an empty one where the type is not known here.
///
/// The type is looked at as it runs, so that one spelling of the layer serves axum, hyper and tonic
/// alike: a bound such as `From<Bytes>` would shut out tonic's body.
pub(super) fn of<B: Default + 'static>(text: Bytes) -> B {
    let mut made = B::default();
    let any: &mut dyn Any = &mut made;
    if let Some(body) = any.downcast_mut::<Bytes>() {
        *body = text;
    } else if let Some(body) = any.downcast_mut::<Full<Bytes>>() {
        *body = text.into();
    } else if let Some(body) = any.downcast_mut::<Vec<u8>>() {
        *body = text.into();
    } else if let Some(body) = any.downcast_mut::<String>() {
        *body = String::from_utf8_lossy(&text).into_owned();
    } else {
        // for plain requests to a server of tonic: a refusal of gRPC has no body
        #[cfg(feature = "tonic")]
        if let Some(body) = any.downcast_mut::<tonic::body::Body>() {
            *body = tonic::body::Body::new(Full::new(text));
            return made;
        }
        #[cfg(feature = "axum")]
        if let Some(body) = any.downcast_mut::<axum::body::Body>() {
            *body = text.into();
        }
    }
    made
}

//! Response bodies.

use std::any::Any;

use bytes::Bytes;
use http_body_util::Full;

/// Creates a response body with `text`, or an empty body if the type is unknown.
///
/// A bound `B: From<Bytes>` is not possible, because tonic's body does not implement it. The type
/// is therefore tested at run time.
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
        // Plain requests to a tonic server need this type. A gRPC rejection has no body.
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

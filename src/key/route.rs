//! The route that matched, as its template.

use axum::extract::MatchedPath;
use http::request::Parts;

use super::{Key, KeyError, KeyExtractor, KeyKind};

/// The template of the axum route that matched (`/users/{id}`), never the raw path: a client can
/// spell a path in endless ways, each of which would be a fresh account.
///
/// Requests that match no route share one account. axum sets the template inside the router, so
/// the layer belongs on the `Router`, not around it.
///
/// ```
/// use tower_sluice::{Quota, RateLimitLayer, LocalStore, key::{PeerIp, Route}};
///
/// let per_route_and_address =
///     RateLimitLayer::new((Route, PeerIp::new()), Quota::per_second(10), LocalStore::new());
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Route;

impl KeyExtractor for Route {
    fn extract(&self, parts: &Parts) -> Result<Option<Key>, KeyError> {
        let matched = parts.extensions.get::<MatchedPath>();
        Ok(Some(matched.map_or_else(Key::everyone, |path| path.as_str().into())))
    }

    fn kind(&self) -> KeyKind {
        KeyKind::Text.or(KeyKind::Everyone)
    }
}

//! The matched route as a key.

use axum::extract::MatchedPath;

use super::{Key, KeyError, KeyExtractor, KeyKind, RequestHead};

/// Extractor for the template of the matched axum route, such as `/users/{id}`.
///
/// Do not use the path as a key, because a client can spell one path in many ways.
///
/// Add the layer to the `Router`, because axum matches routes inside the router. Requests without a
/// matched route share one account.
///
/// ```
/// use tower_sluice::{Quota, RateLimitLayer, LocalStore, key::{PeerIp, RouteKey}};
///
/// let per_route_and_address =
///     RateLimitLayer::new((RouteKey, PeerIp::new()), Quota::per_second(10), LocalStore::new());
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct RouteKey;

impl KeyExtractor for RouteKey {
    fn extract(&self, head: &RequestHead<'_>) -> Result<Option<Key>, KeyError> {
        let matched = head.extensions.get::<MatchedPath>();
        Ok(Some(matched.map_or_else(Key::everyone, |path| path.as_str().into())))
    }

    fn kind(&self) -> KeyKind {
        KeyKind::Text.or(KeyKind::Everyone)
    }
}

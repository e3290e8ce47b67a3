//! A request extension as a key.

use std::{fmt, marker::PhantomData};

use super::{Key, KeyError, KeyExtractor, RequestHead, unless_blank};

/// Extractor for an identity of type `T` in the request's extensions.
///
/// A request without the extension, or with a blank text in it, has no identity.
///
/// A middleware must insert the identity before the limiter runs. In axum, add the middleware after
/// the limiter, because the last layer runs first. If the order is wrong, no request has an
/// identity.
///
/// ```
/// use tower_sluice::{Key, key::ExtensionKey};
///
/// #[derive(Clone)]
/// struct User { id: u64 }
///
/// ExtensionKey::by(|user: &User| user.id);   // a field of the extension
/// ExtensionKey::<Key>::new();                // the extension is the key
/// ```
pub struct ExtensionKey<T, F = fn(&T) -> Key> {
    key: F,
    of: PhantomData<fn(&T)>,
}

impl<T: Clone + Into<Key>> ExtensionKey<T> {
    /// Creates an extractor that uses the extension as the key.
    #[must_use]
    pub fn new() -> Self {
        Self { key: |value| value.clone().into(), of: PhantomData }
    }
}

impl<T: Clone + Into<Key>> Default for ExtensionKey<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T, F, K> ExtensionKey<T, F>
where
    F: Fn(&T) -> K,
    K: Into<Key>,
{
    /// Creates an extractor that computes the key from the extension.
    pub fn by(key: F) -> Self {
        Self { key, of: PhantomData }
    }
}

impl<T, F, K> KeyExtractor for ExtensionKey<T, F>
where
    T: Send + Sync + 'static,
    F: Fn(&T) -> K,
    K: Into<Key>,
{
    fn extract(&self, head: &RequestHead<'_>) -> Result<Option<Key>, KeyError> {
        let value = head.extensions.get::<T>().ok_or_else(|| KeyError::missing("identity"))?;
        unless_blank((self.key)(value).into(), "identity")
    }
}

impl<T, F: Clone> Clone for ExtensionKey<T, F> {
    fn clone(&self) -> Self {
        Self { key: self.key.clone(), of: PhantomData }
    }
}

impl<T, F> fmt::Debug for ExtensionKey<T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ExtensionKey({})", std::any::type_name::<T>())
    }
}

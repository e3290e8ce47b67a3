//! An identity that something in front has put into the request's extensions.

use std::{fmt, marker::PhantomData};

use http::request::Parts;

use super::{Key, KeyError, KeyExtractor};

/// The identity of type `T` that the user's own middleware has verified and put into the request's
/// extensions; absent, it is a missing identity.
///
/// ```
/// use tower_sluice::{Key, key::Extension};
///
/// #[derive(Clone)]
/// struct User { id: u64 }
///
/// Extension::by(|user: &User| user.id);   // any part of the extension
/// Extension::<Key>::new();                // the extension is itself a key
/// ```
pub struct Extension<T, F = fn(&T) -> Key> {
    key: F,
    of: PhantomData<fn(&T)>,
}

impl<T: Clone + Into<Key>> Extension<T> {
    /// The extension itself is the key.
    #[must_use]
    pub fn new() -> Self {
        Self { key: |value| value.clone().into(), of: PhantomData }
    }
}

impl<T: Clone + Into<Key>> Default for Extension<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T, F, K> Extension<T, F>
where
    F: Fn(&T) -> K,
    K: Into<Key>,
{
    /// The key is what `key` reads from the extension.
    pub fn by(key: F) -> Self {
        Self { key, of: PhantomData }
    }
}

impl<T, F, K> KeyExtractor for Extension<T, F>
where
    T: Send + Sync + 'static,
    F: Fn(&T) -> K,
    K: Into<Key>,
{
    fn extract(&self, parts: &Parts) -> Result<Option<Key>, KeyError> {
        let found = parts.extensions.get::<T>().map(|value| (self.key)(value).into());
        found.ok_or_else(|| KeyError::missing("identity")).map(Some)
    }
}

impl<T, F: Clone> Clone for Extension<T, F> {
    fn clone(&self) -> Self {
        Self { key: self.key.clone(), of: PhantomData }
    }
}

impl<T, F> fmt::Debug for Extension<T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Extension({})", std::any::type_name::<T>())
    }
}

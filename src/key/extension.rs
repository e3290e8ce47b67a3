//! A request extension as a key.

use std::{
    fmt,
    marker::PhantomData,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
};

use super::{Key, KeyError, KeyExtractor, RequestHead, unless_blank};
use crate::log::warn;

/// Extractor for an identity of type `T` in the request's extensions.
///
/// A request without the extension, or with a blank text in it, has no identity.
///
/// A middleware must insert the identity before the limiter runs. In axum, add the middleware after
/// the limiter, because the last layer runs first. If the order is wrong, no request has an
/// identity. The log reports this after the first 32 requests (`no_identity` in
/// [`lint`](crate::lint)).
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
    absence: AbsenceCheck,
}

/// Marker that an [`IdentifyLayer`](crate::identify::IdentifyLayer) inserts into a request without
/// an identity.
///
/// The marker shows that the `IdentifyLayer` runs before the limiter.
pub(crate) struct Anonymous<T>(PhantomData<fn() -> T>);

impl<T> Anonymous<T> {
    pub(crate) fn new() -> Self {
        Self(PhantomData)
    }
}

impl<T> Clone for Anonymous<T> {
    fn clone(&self) -> Self {
        Self::new()
    }
}

/// The number of requests without an identity after which a warning is logged.
const SAMPLE: u32 = 32;

/// Counts the requests before the first identity. Clones share the count.
#[derive(Clone, Default)]
struct AbsenceCheck(Arc<AtomicU32>);

impl AbsenceCheck {
    /// Stops the count.
    #[inline]
    fn stop(&self) {
        if self.0.load(Relaxed) < SAMPLE {
            self.0.store(SAMPLE, Relaxed);
        }
    }

    #[cold]
    fn count(&self, name: &str) {
        if self.0.load(Relaxed) < SAMPLE && self.0.fetch_add(1, Relaxed) == SAMPLE - 1 {
            warn_absent(name);
        }
    }
}

fn warn_absent(name: &str) {
    warn!(
        target: "tower_sluice::lint",
        lint = "no_identity",
        "none of the first {SAMPLE} requests had a {name} in its extensions: the middleware that \
         inserts it must run before the limiter (in axum, add it after the limiter; in a \
         ServiceBuilder, before it); ignore this warning if no client has signed in yet"
    );
}

impl<T: Clone + Into<Key>> ExtensionKey<T> {
    /// Creates an extractor that uses the extension as the key.
    #[must_use]
    pub fn new() -> Self {
        Self {
            key: |value| value.clone().into(),
            of: PhantomData,
            absence: AbsenceCheck::default(),
        }
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
        Self { key, of: PhantomData, absence: AbsenceCheck::default() }
    }
}

impl<T, F, K> KeyExtractor for ExtensionKey<T, F>
where
    T: Send + Sync + 'static,
    F: Fn(&T) -> K,
    K: Into<Key>,
{
    fn extract(&self, head: &RequestHead<'_>) -> Result<Option<Key>, KeyError> {
        if let Some(value) = head.extensions.get::<T>() {
            self.absence.stop();
            return unless_blank((self.key)(value).into(), "identity");
        }
        match head.extensions.get::<Anonymous<T>>() {
            Some(_) => self.absence.stop(),
            None => self.absence.count(std::any::type_name::<T>()),
        }
        Err(KeyError::missing("identity"))
    }
}

impl<T, F: Clone> Clone for ExtensionKey<T, F> {
    fn clone(&self) -> Self {
        Self { key: self.key.clone(), of: PhantomData, absence: self.absence.clone() }
    }
}

impl<T, F> fmt::Debug for ExtensionKey<T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ExtensionKey({})", std::any::type_name::<T>())
    }
}

//! An identity that something in front has put into the request's extensions.

use std::{
    fmt,
    marker::PhantomData,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
};

use http::request::Parts;

use super::{Key, KeyError, KeyExtractor};

/// The identity of type `T` that the user's own middleware has verified and put into the request's
/// extensions; absent, it is a missing identity.
///
/// That middleware runs before the limiter: in axum it is added after it, since the last layer is
/// the outermost. The other way round no request ever has an identity: the log says so once, after
/// the first 32 requests (`no_identity` in [`lint`](crate::lint)).
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
    absent: Absent,
}

/// A mark left by an [`IdentifyLayer`](crate::IdentifyLayer) that found no `T`: the layer runs
/// before the limiter.
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

/// The number of requests looked at.
const FIRST: u32 = 32;

/// Counts the first requests without an identity, until one has it. Clones count together.
#[derive(Clone, Default)]
struct Absent(Arc<AtomicU32>);

impl Absent {
    /// Stops counting: something runs before the limiter.
    #[inline]
    fn end(&self) {
        if self.0.load(Relaxed) < FIRST {
            self.0.store(FIRST, Relaxed);
        }
    }

    #[cold]
    fn count(&self, name: &str) {
        if self.0.load(Relaxed) < FIRST && self.0.fetch_add(1, Relaxed) == FIRST - 1 {
            warn(name);
        }
    }
}

#[cfg(feature = "tracing")]
fn warn(name: &str) {
    tracing::warn!(
        target: "tower_sluice::lint",
        lint = "no_identity",
        "none of the first {FIRST} requests had a {name} in its extensions: what puts it there has \
         to run before the limiter (in axum, add it after the limiter; in a ServiceBuilder, before \
         it); if nobody has signed in yet, all is well"
    );
}

#[cfg(not(feature = "tracing"))]
fn warn(_: &str) {}

impl<T: Clone + Into<Key>> Extension<T> {
    /// The extension itself is the key.
    #[must_use]
    pub fn new() -> Self {
        Self { key: |value| value.clone().into(), of: PhantomData, absent: Absent::default() }
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
        Self { key, of: PhantomData, absent: Absent::default() }
    }
}

impl<T, F, K> KeyExtractor for Extension<T, F>
where
    T: Send + Sync + 'static,
    F: Fn(&T) -> K,
    K: Into<Key>,
{
    fn extract(&self, parts: &Parts) -> Result<Option<Key>, KeyError> {
        if let Some(value) = parts.extensions.get::<T>() {
            self.absent.end();
            return Ok(Some((self.key)(value).into()));
        }
        match parts.extensions.get::<Anonymous<T>>() {
            Some(_) => self.absent.end(),
            None => self.absent.count(std::any::type_name::<T>()),
        }
        Err(KeyError::missing("identity"))
    }
}

impl<T, F: Clone> Clone for Extension<T, F> {
    fn clone(&self) -> Self {
        Self { key: self.key.clone(), of: PhantomData, absent: self.absent.clone() }
    }
}

impl<T, F> fmt::Debug for Extension<T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Extension({})", std::any::type_name::<T>())
    }
}

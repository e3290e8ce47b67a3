//! The settings of a store, which are chosen before the store contacts a server.

use std::{fmt, time::Duration};

use redis::aio::ConnectionLike;

use super::{Link, RedisConfig, RedisError, RedisErrorKind, RedisStore};
use crate::{fingerprint::FingerprintKey, log::warn, store::BoxFuture};

/// Settings of a [`RedisStore`] that is not open yet.
///
/// Two ends open the store:
///
/// - `.await` contacts the server, [probes](RedisStore::probe) it under these settings, and logs the
///   warnings of the probe. It fails if the server cannot be reached or the probe fails.
/// - [`lazy`](RedisBuilder::lazy) opens the store at once. It contacts the server on the first
///   request.
///
/// ```no_run
/// use tower_sluice::RedisStore;
///
/// # async fn run(secret: [u8; 16]) -> Result<(), tower_sluice::store::RedisError> {
/// let store = RedisStore::connect("redis://127.0.0.1").prefix("shop").secret(secret).await?;
/// let lazy = RedisStore::connect("redis://127.0.0.1").prefix("shop").secret(secret).lazy()?;
/// # Ok(())
/// # }
/// ```
///
/// An invalid address is an error of both ends.
#[derive(Clone)]
#[must_use = "a builder opens no store; add `.await`, or `.lazy()` to start without the server"]
pub struct RedisBuilder<C = Link> {
    store: Result<RedisStore<C>, RedisError>,
    /// The fix in the error for a server that cannot be reached.
    fix: String,
}

impl<C> RedisBuilder<C> {
    pub(super) fn new(store: RedisStore<C>) -> Self {
        Self {
            store: Ok(store),
            fix: "`.lazy()` starts without it".to_owned(),
        }
    }

    /// Returns the builder, or one whose ends return the error.
    pub(super) fn or_error(builder: Result<Self, RedisError>) -> Self {
        builder.unwrap_or_else(|error| Self {
            store: Err(error),
            fix: String::new(),
        })
    }

    /// Names the server in the error for a server that cannot be reached.
    pub(super) fn at(mut self, server: &str) -> Self {
        self.fix = format!("is it at {server}? {}", self.fix);
        self
    }
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> RedisBuilder<C> {
    /// Sets the prefix of all keys. Defaults to `sluice`.
    ///
    /// Stores with different prefixes do not share accounts.
    ///
    /// # Panics
    ///
    /// Panics if the prefix is empty, longer than 64 bytes, or has a byte other than
    /// `[A-Za-z0-9_.:-]`. A brace would put all accounts on one node of a cluster.
    #[track_caller]
    pub fn prefix(self, prefix: &str) -> Self {
        let mut bytes = prefix.bytes();
        assert!(
            (1..=64).contains(&prefix.len())
                && bytes.all(|byte| byte.is_ascii_alphanumeric() || b"_.:-".contains(&byte)),
            "prefix {prefix:?}: give 1 to 64 of [A-Za-z0-9_.:-]"
        );
        self.with(|settings| settings.addresses.prefix = prefix.to_owned())
    }

    /// Hashes keys with a secret, to hide the owners of accounts from other users of the server.
    ///
    /// All processes that share accounts need the same secret: sixteen bytes, or a
    /// [`FingerprintKey`] from a longer text.
    ///
    /// Without a secret, anyone with read access can find the owner of an account by trying IP
    /// addresses or short names.
    pub fn secret(self, secret: impl Into<FingerprintKey>) -> Self {
        self.with(|settings| settings.addresses.secret = secret.into())
    }

    /// Writes the rule and the key in plain text, for debugging.
    ///
    /// All clients with read access to the server can then read the rule and the key. The length of
    /// a key in Redis then depends on user input.
    pub fn readable_keys(self) -> Self {
        self.with(|settings| settings.addresses.readable = true)
    }

    /// Puts all accounts of a key into one hash slot of a cluster, for all rules.
    ///
    /// The hash tag of an account is then the hash of its key, without the rule. If all rules of a
    /// request have the same key, such as the user, the request is one call, and no charge has to
    /// be undone. Rules with different keys still need separate calls.
    ///
    /// All accounts of a key are on one server, so a hot key loads that server with all its rules.
    /// All processes that share accounts need the same setting. A change of the setting starts new
    /// accounts.
    pub fn hash_tag_by_key(self) -> Self {
        self.with(|settings| settings.addresses.tagged = true)
    }

    /// Enables or disables batching. Defaults to `true`.
    ///
    /// With batching, decisions that wait at the same time are sent in one call. The server runs no
    /// other command during a call. Pass `false` if other users of the server cannot wait that
    /// long.
    ///
    /// A batch took 0.2 ms for 64 keys of one rule. The largest batch, with 256 accounts, took 1 ms.
    /// With 64 quotas of other algorithms than GCRA, a batch took 0.8 ms, and 1.3 ms with sliding
    /// logs.
    ///
    /// ```no_run
    /// use tower_sluice::RedisStore;
    ///
    /// # async fn run() -> Result<(), tower_sluice::store::RedisError> {
    /// let store = RedisStore::connect("redis://127.0.0.1").coalesce(false).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn coalesce(self, enabled: bool) -> Self {
        self.with(|settings| settings.coalesces = enabled)
    }

    /// Sets the time to live of [slots](crate::Quota::concurrent). Defaults to 10 s.
    ///
    /// A process renews the slots that it holds every third of this time. The slots of a process
    /// that ends without freeing them, or that cannot reach the server, are free after this time. A
    /// process that was paused for two thirds of this time or longer may have lost its slots, and its
    /// requests run on: at most the limit and the requests of paused processes run.
    ///
    /// All processes that share accounts need the same time.
    ///
    /// # Panics
    ///
    /// Panics if `time` is less than 1 s or more than one day.
    #[track_caller]
    pub fn slot_ttl(mut self, time: Duration) -> Self {
        assert!(
            (Duration::from_secs(1)..=Duration::from_secs(86_400)).contains(&time),
            "redis: slot_ttl is {time:?}; give 1 s to one day, such as 10 s; slots of a lost \
             process are not free before"
        );
        self.store = self.store.map(|store| store.with_slot_ttl(time));
        self
    }

    /// Opens the store without contacting the server. The first request does, and nothing probes
    /// the server: see [`RedisStore::probe`].
    ///
    /// # Errors
    ///
    /// Returns an error if an address is invalid or missing. A store on a
    /// [connection](RedisStore::with_connection), a [connector](RedisStore::from_connector) or a
    /// [stream](RedisStore::from_stream) of your own causes no error.
    pub fn lazy(self) -> Result<RedisStore<C>, RedisError> {
        self.store
    }

    fn with(mut self, change: impl FnOnce(&mut RedisConfig)) -> Self {
        if let Ok(store) = &mut self.store {
            change(store.settings_mut());
        }
        self
    }
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> IntoFuture for RedisBuilder<C> {
    type Output = Result<RedisStore<C>, RedisError>;
    type IntoFuture = BoxFuture<Self::Output>;

    /// Contacts the server, probes it, and logs the warnings of the probe.
    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let store = self.store?;
            let warnings = store.probe().await.map_err(|error| match error.kind() {
                RedisErrorKind::Disconnected => error.with_fix(&self.fix),
                _ => error,
            })?;
            warnings
                .iter()
                .for_each(|warning| warn!("redis: {warning}"));
            Ok(store)
        })
    }
}

impl<C> fmt::Debug for RedisBuilder<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisBuilder")
            .field("store", &self.store)
            .finish_non_exhaustive()
    }
}

//! A store in Redis or Valkey, shared by many processes.

mod addresses;
mod batch;
mod cluster;
mod coalesce;
mod error;
mod fan_out;
mod link;
mod node;
mod open;
mod plan;
mod probe;
mod queue;
mod reply;
mod request;
mod routes;
mod script;
mod slots;
mod watchdog;

#[cfg(feature = "testing")]
use std::sync::atomic::AtomicUsize;
use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use redis::{Cmd, ErrorKind as Raw, ServerErrorKind as Server, Value, aio::ConnectionLike};

use self::{
    addresses::Addresses,
    queue::Queue,
    reply::Reply,
    request::{Request, ScriptOp},
    script::{Script, ScriptKind, Scripts},
};
pub use self::{
    cluster::ClusterLink,
    error::{RedisError, RedisErrorKind},
    link::Link,
    probe::Probe,
};
use super::{
    Answer, BoxFuture, Charge, Health, Op, Store, Unsupported, can_queue, rules::KnownRules,
};
use crate::{
    decision::{Decision, Source},
    fingerprint::FingerprintKey,
    observe::{late_charge_cut, store_failed},
    quota::Quota,
};

/// Store that keeps accounts in Redis or Valkey, shared by many processes.
///
/// A decision is one script call, for any number of rules and quotas. The script uses the server's
/// clock and returns the same results as [`LocalStore`](crate::LocalStore).
///
/// On a cluster, the accounts of a request may be on different servers. These servers are called
/// concurrently. If one server denies, the charges on the other servers are undone. The limit is
/// never exceeded. Until a charge is undone, for one round trip, it may cause the denial of another
/// request.
///
/// Under load, decisions that wait at the same time share one call, called a batch. A batch has up
/// to 64 different requests, which are decided in the order of arrival. A decision waits only while
/// more than sixteen calls are in flight, and never for a timer. Only GCRA quotas that start full
/// are batched. A cluster never batches; see [`coalesce`](RedisStore::coalesce).
///
/// The store can fail. A layer accepts it only together with a policy for failures:
///
/// ```no_run
/// use tower_sluice::{PeerIp, Quota, RateLimitLayer, RedisStore, StoreExt};
///
/// # async fn run() -> Result<(), tower_sluice::store::RedisError> {
/// let store = RedisStore::connect("redis://127.0.0.1").await?;
/// let layer = RateLimitLayer::new(PeerIp::new(), Quota::per_second(10), store.fail_open());
/// # Ok(())
/// # }
/// ```
///
/// In production, add a timeout, a breaker and a local fallback store:
///
/// ```no_run
/// # use std::time::Duration;
/// # use tower_sluice::{LocalStore, RedisStore, StoreExt};
/// # async fn run(secret: [u8; 16]) -> Result<(), tower_sluice::store::RedisError> {
/// let store = RedisStore::connect("redis://limiter:password@redis.internal:6379/2?protocol=resp3")
///     .await?
///     .prefix("shop")
///     .secret(secret)
///     .timeout(Duration::from_millis(50))
///     .breaker()
///     .fallback(LocalStore::with_capacity(100_000))
///     .instances(4);
/// # Ok(())
/// # }
/// ```
///
/// Keys in Redis have the form `<prefix>:<version>:{<hash>}`, and contain no user input. A key
/// expires when its account can be dropped.
///
/// Clones share the store. The store needs a tokio runtime with a timer.
///
/// # Limitations
///
/// - Charges are lost if the server evicts keys to free memory (`allkeys-*`) or loses its data. A
///   failover to a replica loses the charges that the replica lacks. Each loss admits at most one
///   more burst per key.
/// - If a network partition leads to two primaries, each admits the whole limit.
/// - A request whose reply is lost may have been charged, and is never sent again.
/// - A caller that is dropped while it waits for a batch is not charged. A caller that is dropped
///   later may be charged.
/// - All decisions of one call fail together. If a tokio runtime shuts down, callers on other
///   runtimes may receive an error.
/// - A client that can write to the server can change the limits.
#[derive(Clone)]
pub struct RedisStore<C = Link> {
    settings: Arc<RedisConfig>,
    shared: Arc<RedisShared>,
    connection: C,
}

#[derive(Clone)]
struct RedisConfig {
    addresses: Addresses,
    /// `true` if accounts may be on different servers.
    sharded: bool,
    /// `true` if decisions may share a call.
    coalesces: bool,
    rules: Arc<KnownRules>,
    queue: Arc<Queue>,
    /// A clock that replaces the server's clock.
    #[cfg(feature = "testing")]
    test_clock: Option<Arc<AtomicU64>>,
}

#[derive(Default)]
struct RedisShared {
    scripts: Scripts,
    healed: AtomicU64,
    /// The number of charges that are being undone, for tests.
    #[cfg(feature = "testing")]
    undoing: Arc<AtomicUsize>,
}

impl<C> RedisStore<C>
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    /// Creates a store on one server, from a connection of your own.
    ///
    /// The connection should reconnect by itself. If its replies may take arbitrarily long, wrap
    /// the store in a [timeout](crate::StoreExt::timeout).
    #[must_use]
    pub fn new(connection: C) -> Self {
        let settings = RedisConfig {
            addresses: Addresses::new(),
            sharded: false,
            coalesces: true,
            rules: Arc::default(),
            queue: Arc::default(),
            #[cfg(feature = "testing")]
            test_clock: None,
        };
        Self { settings: Arc::new(settings), shared: Arc::default(), connection }
    }

    /// Creates a store on a cluster, from a connection of your own.
    ///
    /// The connection must send each key to its node.
    #[must_use]
    pub fn sharded(connection: C) -> Self {
        let mut store = Self::new(connection);
        // A batch would hold accounts of different servers.
        (store.settings_mut().sharded, store.settings_mut().coalesces) = (true, false);
        store
    }

    /// Sets the prefix of all keys. Defaults to `sluice`.
    ///
    /// Stores with different prefixes do not share accounts.
    ///
    /// # Panics
    ///
    /// Panics if the prefix is empty, longer than 64 bytes, or has a byte other than
    /// `[A-Za-z0-9_.:-]`. A brace would put all accounts on one node of a cluster.
    #[track_caller]
    #[must_use]
    pub fn prefix(mut self, prefix: &str) -> Self {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_.:-".contains(&byte);
        assert!(
            (1..=64).contains(&prefix.len()) && prefix.bytes().all(allowed),
            "prefix {prefix:?}: give 1 to 64 of [A-Za-z0-9_.:-]"
        );
        self.settings_mut().addresses.prefix = prefix.to_owned();
        self
    }

    /// Hashes keys with a secret, to hide the owners of accounts from other users of the server.
    ///
    /// All processes that share accounts need the same secret: sixteen bytes, or a
    /// [`FingerprintKey`] from a longer text.
    ///
    /// Without a secret, anyone with read access can find the owner of an account by trying IP
    /// addresses or short names.
    #[must_use]
    pub fn secret(mut self, secret: impl Into<FingerprintKey>) -> Self {
        self.settings_mut().addresses.secret = secret.into();
        self
    }

    /// Writes the rule and the key in plain text, for debugging.
    ///
    /// All clients with read access to the server can then read the rule and the key. The length of
    /// a key in Redis then depends on user input.
    #[must_use]
    pub fn readable_keys(mut self) -> Self {
        self.settings_mut().addresses.readable = true;
        self
    }

    /// Enables or disables batching. Defaults to `true`, but a cluster never batches.
    ///
    /// With batching, decisions that wait at the same time are sent in one call. The server runs no
    /// other command during a call. Pass `false` if other users of the server cannot wait that
    /// long.
    ///
    /// A call took 0.2 ms for 64 keys of one rule, and 1 ms for 256 accounts, the maximum. Single
    /// calls take several times longer in total, but other commands can run between them.
    ///
    /// ```no_run
    /// use tower_sluice::RedisStore;
    ///
    /// # async fn run() -> Result<(), tower_sluice::store::RedisError> {
    /// let store = RedisStore::connect("redis://127.0.0.1").await?.coalesce(false);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn coalesce(mut self, enabled: bool) -> Self {
        let settings = Arc::make_mut(&mut self.settings);
        settings.coalesces = enabled && !settings.sharded;
        self
    }

    /// Returns the number of accounts that had an invalid value in Redis and were replaced.
    #[must_use]
    pub fn healed(&self) -> u64 {
        self.shared.healed.load(Relaxed)
    }

    /// Replaces the server's clock by `test_clock`, in nanoseconds of Unix time.
    #[cfg(feature = "testing")]
    pub(crate) fn with_test_clock(mut self, test_clock: Arc<AtomicU64>) -> Self {
        self.settings_mut().test_clock = Some(test_clock);
        self.shared =
            Arc::new(RedisShared { scripts: Scripts::with_test_clock(), ..RedisShared::default() });
        self
    }

    #[cfg(feature = "testing")]
    pub(crate) fn undoing(&self) -> Arc<AtomicUsize> {
        self.shared.undoing.clone()
    }

    /// Returns the settings, to change the keys or the clock.
    ///
    /// The store then stops sharing its rules and its queue with its clones.
    fn settings_mut(&mut self) -> &mut RedisConfig {
        let settings = Arc::make_mut(&mut self.settings);
        settings.rules = Arc::default();
        settings.queue = Arc::default();
        settings
    }

    fn addresses(&self) -> &Addresses {
        &self.settings.addresses
    }

    fn script(&self, kind: ScriptKind, letters: impl IntoIterator<Item = u8>) -> &Script {
        self.shared.scripts.get(kind, letters.into_iter())
    }

    /// Returns the script arguments with the time of the test clock, if one is set.
    fn clock_args(&self) -> Vec<Vec<u8>> {
        #[cfg(feature = "testing")]
        if let Some(test_clock) = &self.settings.test_clock {
            let now = test_clock.load(Relaxed);
            return vec![(now / 1_000).to_string().into(), (now % 1_000).to_string().into()];
        }
        Vec::new()
    }

    async fn send(&self, command: &Cmd) -> redis::RedisResult<Value> {
        link::runtime()?;
        self.connection.clone().req_packed_command(command).await.and_then(Value::extract_error)
    }

    async fn execute(&self, request: &Request, op: ScriptOp<'_>) -> Result<Reply, RedisError> {
        let reply = self.execute_unrecorded(request, op).await;
        reply.inspect_err(|error| store_failed(error.kind().as_str()))
    }

    async fn execute_unrecorded(
        &self,
        request: &Request,
        op: ScriptOp<'_>,
    ) -> Result<Reply, RedisError> {
        let kind = request.script_kind(op);
        let (keys, args) = request.encode(op);
        let script = self.script(kind, request.letters());
        let reply = match self.run(script, &keys, args).await? {
            Value::BulkString(bytes) => Reply::read(&bytes, request, kind),
            _ => Err(RedisError::invalid_reply("not a bulk string")),
        };
        let reply = self.checked(reply)?;
        self.note_healed(reply.accounts.iter().filter(|account| account.healed).count());
        Ok(reply)
    }

    /// Calls a script by its hash. Sends the text if the server does not know the hash.
    async fn run<K: redis::ToRedisArgs>(
        &self,
        script: &Script,
        keys: &[K],
        mut args: Vec<Vec<u8>>,
    ) -> Result<Value, RedisError> {
        args.extend(self.clock_args());
        let command = |name: &str, script: &str| {
            let mut command = Cmd::new();
            command.arg(name).arg(script).arg(keys.len()).arg(keys).arg(&args);
            command
        };
        let reply = match self.send(&command("EVALSHA", &script.sha)).await {
            Err(error) if error.kind() == Raw::Server(Server::NoScript) => {
                self.send(&command("EVAL", &script.text)).await
            }
            reply => reply,
        };
        Ok(reply?)
    }

    /// Returns `read`, and replaces the connection after an invalid reply.
    fn checked<T>(&self, read: Result<T, RedisError>) -> Result<T, RedisError> {
        // Later replies may belong to other requests, too.
        read.inspect_err(|_| Link::discard_current(&self.connection))
    }

    fn note_healed(&self, accounts: usize) {
        self.shared.healed.fetch_add(accounts as u64, Relaxed);
    }

    async fn decide(self, request: Request, op: ScriptOp<'static>) -> Result<Decision, RedisError> {
        Ok(self.execute(&request, op).await?.decision(&request))
    }

    fn take(&self, charges: &[Charge<'_>]) -> Answer<<Self as Store>::Future> {
        if let Err(unsupported) = self.supports(charges) {
            return Answer::Now(Err(unsupported.into()));
        }
        let request = Request::new(charges, self.addresses());
        match request.accounts.len() {
            0 => Answer::Now(Ok(Decision::allow().from_source(Source::Redis))),
            2.. if self.settings.sharded => {
                Answer::Later(Box::pin(fan_out::take(self.clone(), request)))
            }
            1..=coalesce::MAX_ACCOUNTS
                if self.settings.coalesces
                    && request.script_kind(ScriptOp::Take) == ScriptKind::Plain =>
            {
                Answer::Later(Box::pin(coalesce::take(self.clone(), Box::new(request))))
            }
            _ => Answer::Later(Box::pin(self.clone().decide(request, ScriptOp::Take))),
        }
    }

    /// Runs `op` on the account of one charge.
    fn change(
        &self,
        charge: &Charge<'_>,
        op: ScriptOp<'static>,
    ) -> Answer<<Self as Store>::Future> {
        if let Err(unsupported) = self.supports(&[*charge]) {
            return Answer::Now(Err(unsupported.into()));
        }
        let request = Request::new(&[charge.with_cost(0)], self.addresses());
        Answer::Later(Box::pin(self.clone().decide(request, op)))
    }
}

impl<C> Store for RedisStore<C>
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    type Error = RedisError;
    type Future = BoxFuture<Result<Decision, RedisError>>;

    fn call(&self, op: Op<'_>) -> Answer<Self::Future> {
        let (charge, script_op) = match op {
            Op::Take(charges) => return self.take(charges),
            Op::Adjust(charge, units) => {
                let amount = units.unsigned_abs();
                // The script reduces a charge above the limit, but does not report it.
                let cut = |(_, quota): &(usize, &Quota)| units > 0 && amount > quota.late_limit();
                if let Some((_, quota)) = charge.charged_quotas().find(cut) {
                    late_charge_cut(quota);
                }
                let late = if units > 0 { ScriptOp::Late } else { ScriptOp::Refund };
                (charge, late(amount))
            }
            Op::Reset(charge) => (charge, ScriptOp::Reset),
            Op::Block(charge, time) => {
                (charge, ScriptOp::Block(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)))
            }
            Op::Unblock(charge) => (charge, ScriptOp::Unblock),
        };
        self.change(charge, script_op)
    }

    /// Undoes the charges in the background. Without a tokio runtime, the charges remain.
    fn undo(&self, charges: &[Charge<'_>], taken: &Decision, units: Option<u32>) {
        if taken.is_allowed() {
            let request = Request::new(charges, self.addresses());
            fan_out::undo(self, request, &taken.on(Charge::quota_ids(charges)), units);
        }
    }

    fn supports(&self, charges: &[Charge<'_>]) -> Result<(), Unsupported> {
        charges.iter().flat_map(Charge::quotas).try_for_each(plan::check)?;
        can_queue(charges)
    }

    fn register(&self, charges: &[Charge<'_>]) -> Result<(), Unsupported> {
        self.settings.rules.register(charges)
    }

    fn with_budget(mut self, budget: Duration) -> Self {
        cluster::set_budget(&mut self.connection, budget);
        self
    }

    fn isolates_failures(&self) -> bool {
        self.cluster_link().is_some_and(ClusterLink::isolates_failures)
    }

    /// Reads an account of the server.
    fn health(&self) -> BoxFuture<Health> {
        Box::pin(probe::health(self.clone()))
    }
}

impl<C> fmt::Debug for RedisStore<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RedisConfig { addresses, sharded, .. } = &*self.settings;
        let mut debug = f.debug_struct("RedisStore");
        debug.field("prefix", &addresses.prefix).field("sharded", sharded).finish_non_exhaustive()
    }
}

//! A store in Redis or Valkey, shared by many processes.

mod batch;
mod builder;
mod call;
mod cluster;
mod connection;
mod driver;
mod error;
mod instances;
mod judge;
mod protocol;
mod renewal;
mod slots;
mod waiting;
mod waits;

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use parking_lot::Mutex;
use redis::aio::ConnectionLike;
use tokio::time::Instant;

pub use self::{
    builder::RedisBuilder,
    cluster::ClusterLink,
    connection::{Link, stream::RedisStream},
    error::{RedisError, RedisErrorKind},
};
use self::{
    driver::Queues,
    judge::Deciding,
    protocol::{MAX_COST, Request, ScriptOp, addresses::Addresses, script::Scripts},
    slots::Slots,
    waiting::Asking,
};
use super::{
    Answer, BoxFuture, Charge, Context, FailureDomain, Health, KnownRules, Op, Store, Unsupported,
    Waiter, can_queue, nanos,
};
use crate::{
    decision::{Decision, Source},
    observe::late_charge_cut,
    quota::Quota,
};

/// The default time to live of slots.
const SLOT_TTL: Duration = Duration::from_secs(10);

/// Store that keeps accounts in Redis or Valkey, shared by many processes.
///
/// A decision is one script call, for any number of rules and quotas. The script uses the server's
/// clock and returns the same results as [`LocalStore`](crate::LocalStore).
///
/// On a cluster, the accounts of a request may be on different servers. These servers are called
/// concurrently. If one server denies, the charges on the other servers are undone. The limit is
/// never exceeded. For one round trip, a charge that will be undone may cause the denial of another
/// request. Alternatives on different servers are tried one after another. With
/// [`hash_tag_by_key`](RedisBuilder::hash_tag_by_key), all accounts of a key are on one server, and are
/// charged in one call.
///
/// Decisions that are made at the same time share one call, called a batch. A batch has up to 4,096
/// callers. Equal requests are sent once. A batch has up to 64 requests that differ, if all their quotas
/// use GCRA and start full, and otherwise requests with up to 64 quotas in all. Different requests are
/// decided in the order of arrival. A decision has a call of its own if no other call is in flight, and
/// if none was shared within the last 5 ms. Otherwise, it joins the next batch, which is sent at once,
/// unless sixteen calls or two equal ones are in flight. The batch is then sent when one of them is
/// answered, or 5 ms after the last one was sent. A burst of one key therefore waits for two calls. On a
/// slow link, a batch is sent every 5 ms, and a request waits longer only if the next batch is full. On a
/// cluster, each hash slot has its own batches. See [`coalesce`](RedisBuilder::coalesce).
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
///     .prefix("shop")
///     .secret(secret)
///     .await?
///     .timeout(Duration::from_millis(50))
///     .breaker()
///     .fallback(LocalStore::with_capacity(100_000), 4);
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
/// - Charges are lost if the server evicts keys to free memory (any policy but `noeviction`) or loses its data. A
///   failover to a replica loses the charges that the replica lacks. Each loss admits at most one
///   more burst per key.
/// - If a network partition leads to two primaries, each admits the whole limit.
/// - A request whose reply is lost may have been charged, and is never sent again.
/// - A late answer is no failure, unless the server is silent: bytes that were written have no answer,
///   and none waits in the kernel. An answer that is not read within ten times the
///   [`timeout`](crate::StoreExt::timeout), and within 20 s, is a denial by
///   [`Source::Busy`](crate::decision::Source::Busy).
/// - A caller that is dropped while it waits for a batch is not charged. A caller that is dropped
///   later may be charged.
/// - All decisions of one call fail together. A batch runs on the tokio runtime of one of its
///   callers. If that runtime shuts down, callers on other runtimes may receive an error.
/// - A client that can write to the server can change the limits.
#[derive(Clone)]
#[must_use]
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
    queues: Arc<Queues>,
    slots: Arc<Slots>,
    /// A clock that replaces the server's clock in tests, in nanoseconds of Unix time.
    test_clock: Option<Arc<AtomicU64>>,
    /// A clock that replaces this process's clock in tests.
    process_clock: Option<Arc<AtomicU64>>,
}

#[derive(Default)]
struct RedisShared {
    scripts: Scripts,
    healed: AtomicU64,
    dropped_states: AtomicU64,
    /// One more reference for each call that undoes charges, for tests.
    undoing: Arc<()>,
    /// The instant of the last warning that this process is busy.
    busy_since: Mutex<Option<Instant>>,
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> RedisStore<C> {
    /// Returns the settings of a store on one server, with a connection of your own.
    ///
    /// The connection should reconnect by itself. If its replies may take arbitrarily long, wrap
    /// the store in a [timeout](crate::StoreExt::timeout).
    pub fn with_connection(connection: C) -> RedisBuilder<C> {
        RedisBuilder::new(Self::new(connection, false))
    }

    /// Returns the settings of a store on a cluster, with a connection of your own.
    ///
    /// The connection must send each call to the node that stores its keys. The store does not know the
    /// nodes, so one that does not reply delays the renewals and frees of slots on others, unlike with
    /// [`cluster`](RedisStore::cluster).
    pub fn sharded(connection: C) -> RedisBuilder<C> {
        RedisBuilder::new(Self::new(connection, true))
    }

    fn new(connection: C, sharded: bool) -> Self {
        let settings = RedisConfig {
            addresses: Addresses::new(),
            sharded,
            coalesces: true,
            rules: Arc::default(),
            queues: Arc::new(Queues::new(sharded)),
            slots: Arc::new(Slots::new(SLOT_TTL, None)),
            test_clock: None,
            process_clock: None,
        };
        Self {
            settings: Arc::new(settings),
            shared: Arc::default(),
            connection,
        }
    }

    /// Returns the settings of this store, for another store on its connection. For tests.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    pub fn reopen(&self) -> RedisBuilder<C> {
        RedisBuilder::new(self.clone())
    }

    /// Returns the number of accounts that had an invalid value in Redis and were replaced.
    #[must_use]
    pub fn healed(&self) -> u64 {
        self.shared.healed.load(Relaxed)
    }

    /// Returns the number of calls that dropped a state that was not full, because a key had states of
    /// more than sixteen quotas besides those of the call.
    ///
    /// Each dropped state allows at most one more burst. The states are those of rules whose
    /// [plan](crate::Plan) changes its periods or algorithms again and again. The log warns once.
    #[must_use]
    pub fn dropped_states(&self) -> u64 {
        self.shared.dropped_states.load(Relaxed)
    }

    /// Replaces the prefix of the keys, and the clock of the server by one that a test drives.
    #[cfg(feature = "testing")]
    pub(crate) fn with_test_clock(mut self, prefix: String) -> Self {
        let settings = self.settings_mut();
        let test_clock = Arc::new(AtomicU64::new(0));
        settings.addresses.prefix = prefix;
        settings.test_clock = Some(test_clock.clone());
        settings.process_clock = Some(test_clock);
        // The scripts have another clock, too.
        self.shared = Arc::default();
        self.with_slot_ttl(SLOT_TTL)
    }

    /// Returns a store on the same accounts, which holds slots as another process.
    pub(crate) fn with_slot_ttl(mut self, time: Duration) -> Self {
        let settings = self.settings_mut();
        settings.slots = Arc::new(Slots::new(time, settings.test_clock.clone()));
        self
    }

    /// Replaces this process's clock, which chooses the calendar periods of a request, in nanoseconds
    /// of Unix time. For simulations.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    pub fn with_process_clock(mut self, process_clock: Arc<AtomicU64>) -> Self {
        Arc::make_mut(&mut self.settings).process_clock = Some(process_clock);
        self
    }

    /// Sets the clock that replaces the server's, in nanoseconds of Unix time, if any.
    #[cfg(feature = "testing")]
    pub(crate) fn set_test_clock(&self, now: u64) {
        if let Some(clock) = &self.settings.test_clock {
            clock.store(now, Relaxed);
        }
    }

    /// Returns the settings for a change of the keys, of the clock or of the slots.
    ///
    /// The rules and the queues are replaced by empty ones, which are not shared with earlier
    /// clones.
    fn settings_mut(&mut self) -> &mut RedisConfig {
        let settings = Arc::make_mut(&mut self.settings);
        settings.rules = Arc::default();
        settings.queues = Arc::new(Queues::new(settings.sharded));
        settings
    }

    fn request(&self, charges: &[Charge<'_>]) -> Request {
        let mut request = Request::new(charges, &self.settings.addresses);
        if request.quotas().any(Quota::is_calendar) {
            request.now = match &self.settings.process_clock {
                Some(clock) => clock.load(Relaxed),
                None => nanos(
                    SystemTime::now()
                        .duration_since(UNIX_EPOCH)
                        .unwrap_or_default(),
                ),
            };
        }
        request
    }

    async fn decide(self, request: Arc<Request>) -> Result<Decision, RedisError> {
        let reply = self.take_queued(&request).await;
        // While a hash slot moves, its accounts may be on two servers.
        let is_moving = reply
            .as_ref()
            .is_err_and(|error| error.kind() == RedisErrorKind::Cluster);
        if is_moving && request.accounts.len() > 1 {
            let subrequests = request.by_account();
            return Box::pin(self.take_subrequests(request, subrequests)).await;
        }
        reply?.into_decision(&request)
    }

    fn take(
        &self,
        charges: &[Charge<'_>],
        op: ScriptOp<'static>,
        context: &Context<'_>,
    ) -> Answer<Deciding> {
        let mut request = self.request(charges);
        if context.waiter.is_none() {
            request.end_waits_for_slots();
        }
        let request = Arc::new(request);
        match self.decide_later(charges, op, context.waiter, request.clone()) {
            Answer::Later(call) => Answer::Later(self.judged(context, request, op, call)),
            now => now,
        }
    }

    fn decide_later(
        &self,
        charges: &[Charge<'_>],
        op: ScriptOp<'_>,
        waiter: Option<&Waiter>,
        request: Arc<Request>,
    ) -> Answer<Deciding> {
        if request.accounts.is_empty() {
            return Answer::Now(Ok(Decision::allow().with_source(Source::Redis)));
        }
        let store = self.clone();
        if !op.takes() {
            return Answer::Later(Box::pin(store.peek_subrequests(request)));
        }
        if !request.quotas().any(Quota::is_concurrent) {
            return Answer::Later(store.take_all(request));
        }
        let slots = &self.settings.slots;
        if let Some(denial) = slots.deny_behind_others(&request, charges, waiter) {
            drop(self.start_renewing());
            return Answer::Now(Ok(denial));
        }
        // Boxed, because few requests wait, and the future is moved.
        let asking = waiter.map(|waiter| Box::new(slots.ask(&request, charges, waiter)));
        Answer::Later(Box::pin(store.take_slots(request, asking)))
    }

    /// Charges all accounts of a request, or none.
    fn take_all(self, request: Arc<Request>) -> Deciding {
        if self.settings.sharded && request.accounts.len() > 1 {
            let subrequests = request.split(true);
            if subrequests.len() > 1 {
                return Box::pin(self.take_subrequests(request, subrequests));
            }
        }
        Box::pin(self.decide(request))
    }

    /// Charges a request that takes slots, and notes the answer for the requests that wait.
    async fn take_slots(
        self,
        request: Arc<Request>,
        mut asking: Option<Box<Asking>>,
    ) -> Result<Decision, RedisError> {
        let taken = self.clone().take_all(request.clone()).await;
        if let Some(asking) = &mut asking {
            asking.has_failed = taken.is_err();
        }
        let mut decision = taken?;
        let slots = &self.settings.slots;
        slots.decided(&request, asking.as_deref_mut(), &mut decision);
        if asking.is_some() {
            // The task may have ended since the call.
            self.start_renewing()?;
        }
        Ok(decision)
    }

    /// Changes the account of a request.
    async fn change(
        self,
        request: Arc<Request>,
        op: ScriptOp<'static>,
    ) -> Result<Decision, RedisError> {
        let reply = self.execute(&request, op).await?;
        reply.into_decision(&request)
    }
}

/// Returns an error for charges of one rule that the scripts cannot keep apart.
fn are_apart(charges: &[Charge<'_>]) -> Result<(), Unsupported> {
    for (at, charge) in charges.iter().enumerate() {
        let others = charges[..at].iter();
        let mut same = others.filter(|other| other.rule == charge.rule && other.key == charge.key);
        if same.any(|other| other.report_only != charge.report_only) {
            return Err(Unsupported::new(
                "a report-only charge beside another charge of its rule and key; give each a rule of its \
                 own",
            ));
        }
    }
    Ok(())
}

/// Reports a late charge above the limit. The script reduces it, but does not report it.
fn report_cut(charge: &Charge<'_>, units: i64) {
    let mut quotas = charge.charged_quotas().map(|(_, quota)| quota);
    let amount = u64::try_from(units).unwrap_or(0);
    if let Some(quota) = quotas.find(|quota| amount > quota.late_limit()) {
        late_charge_cut(quota);
    }
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Store for RedisStore<C> {
    type Error = RedisError;
    type Future = Deciding;

    fn call(&self, op: Op<'_>, context: &Context<'_>) -> Answer<Self::Future> {
        if let Err(unsupported) = self.supports(op.charges()) {
            return Answer::Now(Err(unsupported.into()));
        }
        let (charge, script_op) = match op {
            Op::Take(charges) => return self.take(charges, ScriptOp::Take, context),
            Op::Peek(charges) => return self.take(charges, ScriptOp::Peek, context),
            Op::Adjust(charge, units) => {
                report_cut(charge, units);
                (charge, ScriptOp::Adjust(units))
            }
            Op::Reset(charge) => (charge, ScriptOp::Reset),
            Op::Block(charge, time) => (charge, ScriptOp::Block(nanos(time))),
            Op::Unblock(charge) => (charge, ScriptOp::Unblock),
        };
        let request = Arc::new(self.request(&[charge.with_cost(0)]));
        let call = Box::pin(self.clone().change(request.clone(), script_op));
        Answer::Later(self.judged(context, request, script_op, call))
    }

    /// Undoes the charges in the background. Without a tokio runtime, the charges remain.
    fn undo(&self, charges: &[Charge<'_>], taken: &Decision, units: Option<u32>) {
        if taken.is_allowed() {
            let request = self.request(charges);
            self.undo_in_background(&request, &taken.on(Charge::quota_ids(charges)), units);
        }
    }

    fn supports(&self, charges: &[Charge<'_>]) -> Result<(), Unsupported> {
        charges
            .iter()
            .flat_map(|charge| charge.quotas)
            .try_for_each(protocol::check)?;
        can_queue(charges)?;
        are_apart(charges)
    }

    fn known_rules(&self) -> Option<&KnownRules> {
        Some(&self.settings.rules)
    }

    fn register(&self, charges: &[Charge<'_>]) -> Result<(), Unsupported> {
        let large = charges.iter().filter(|charge| charge.cost > MAX_COST);
        let mut quotas = large.flat_map(Charge::charged_quotas);
        if quotas.any(|(_, quota)| quota.is_concurrent()) {
            return Err(Unsupported::new(
                "a request that takes more than 256 slots; lower its cost",
            ));
        }
        self.settings.rules.register(charges)
    }

    fn failure_domains(&self, op: Op<'_>) -> Vec<FailureDomain> {
        let Some(cluster) = self.cluster_link() else {
            return Vec::new();
        };
        let addresses = &self.settings.addresses;
        let charges = op.charges().iter();
        cluster.servers(charges.map(|charge| addresses.account(charge.rule, charge.key)))
    }

    /// Reads an account of the server.
    fn health(&self) -> BoxFuture<Health> {
        Box::pin(self.clone().look())
    }
}

impl<C> fmt::Debug for RedisStore<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RedisConfig {
            addresses, sharded, ..
        } = &*self.settings;
        let mut debug = f.debug_struct("RedisStore");
        debug
            .field("prefix", &addresses.prefix)
            .field("sharded", sharded)
            .finish_non_exhaustive()
    }
}

//! Accounts in Redis or Valkey, shared by many processes.

mod addresses;
mod batch;
mod cluster;
mod coalesce;
mod error;
mod flight;
mod link;
mod open;
mod plan;
mod probe;
mod question;
mod queue;
mod reply;
mod script;
mod silence;

#[cfg(feature = "testing")]
use std::sync::atomic::AtomicUsize;
use std::{
    any::Any,
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
    question::{Purpose, Question},
    queue::Queue,
    reply::Reply,
    script::{Frame, Script, Scripts},
};
pub use self::{
    cluster::ClusterLink,
    error::{RedisError, RedisErrorKind},
    link::Link,
    probe::Probe,
};
use super::{
    Answer, BoxFuture, Charge, Condition, Store, Unsupported, can_queue, rules::KnownRules,
};
use crate::{
    decision::{Decision, Source},
    fingerprint::Secret,
    observe::{late_charge_cut, store_failed},
    quota::Quota,
};

/// The store that many processes share: accounts in Redis or Valkey.
///
/// A decision is one script call, whatever the number of rules and quotas, by the server's own
/// clock, and gives the numbers that the embedded store gives. On a cluster, where accounts live on
/// different servers, it is one call for each of them, all at once: what was charged is given back
/// where another refuses, so that the limit is never exceeded, and for that one round trip others
/// may be refused who would have passed.
///
/// Under load, decisions that wait at the same moment travel in one call of up to 64 different
/// questions, equal ones asked once with how many they are; each is decided as if it had come by
/// itself, in the order in which they came. It happens only while more than sixteen calls of the
/// store and its clones are under way, and there is no timer: a decision that comes at a quiet
/// moment is sent at once. It is done for GCRA quotas that start full, and not on a cluster; see
/// [`coalesce`](RedisStore::coalesce).
///
/// It can fail, so a layer takes it only with a word on what becomes of requests meanwhile:
///
/// ```no_run
/// use tower_sluice::{PeerIp, Quota, RateLimitLayer, RedisStore, Store};
///
/// # async fn run() -> Result<(), tower_sluice::store::RedisError> {
/// let store = RedisStore::connect("redis://127.0.0.1").await?;
/// let layer = RateLimitLayer::new(PeerIp::new(), Quota::per_second(10), store.fail_open());
/// # Ok(())
/// # }
/// ```
///
/// In service, put a budget and a breaker around it, and a store of this process behind it:
///
/// ```no_run
/// # use std::time::Duration;
/// # use tower_sluice::{LocalStore, RedisStore, Store};
/// # async fn run(secret: [u8; 16]) -> Result<(), tower_sluice::store::RedisError> {
/// let store = RedisStore::connect("redis://limiter:password@redis.internal:6379/2?protocol=resp3")
///     .await?
///     .prefix("shop")
///     .secret(secret)
///     .deadline(Duration::from_millis(50))
///     .breaker()
///     .fallback(LocalStore::with_capacity(100_000))
///     .one_of(4);
/// # Ok(())
/// # }
/// ```
///
/// Keys are `<prefix>:<version>:{<hash>}`, of fixed length and with nothing of the user's in them.
/// Each ends by itself when its account may be forgotten.
///
/// # What it does not protect against
///
/// - A server that evicts keys for want of memory (`maxmemory-policy allkeys-*`), that loses its
///   data, or that fails over to a replica which had not heard of the last charges, forgets debt:
///   each such loss admits at most one more burst per key. Two primaries that do not know of each
///   other admit the limit each.
/// - An answer that is given up for lost may have been charged; it is never asked for twice. Who
///   leaves while waiting for a call with others is not charged; who leaves later may be.
/// - What one call carries fails together. A runtime that ends takes the answers of the calls on
///   it along, also from callers on other runtimes: they are told an error.
/// - Whoever can write to the server can change the limits.
///
/// A clone is the same store. It needs a tokio runtime with a timer.
pub struct RedisStore<C = Link> {
    settings: Arc<Settings>,
    shared: Arc<Shared>,
    connection: C,
}

#[derive(Clone)]
struct Settings {
    addresses: Addresses,
    /// Whether accounts live on different servers.
    sharded: bool,
    /// Whether decisions that wait at the same moment travel together.
    coalesces: bool,
    rules: Arc<KnownRules>,
    queue: Arc<Queue>,
    /// Nanoseconds of Unix time, in place of the server's clock.
    #[cfg(feature = "testing")]
    hands: Option<Arc<AtomicU64>>,
}

#[derive(Default)]
struct Shared {
    scripts: Scripts,
    healed: AtomicU64,
    /// Charges that are being undone: nobody waits for them but tests.
    #[cfg(feature = "testing")]
    undoing: Arc<AtomicUsize>,
}

impl<C> RedisStore<C>
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    /// A store on one server, over a connection of your own.
    ///
    /// It should come back by itself, and answer in a bounded time or be wrapped in a
    /// [deadline](Store::deadline).
    #[must_use]
    pub fn new(connection: C) -> Self {
        let settings = Settings {
            addresses: Addresses::new(),
            sharded: false,
            coalesces: true,
            rules: Arc::default(),
            queue: Arc::default(),
            #[cfg(feature = "testing")]
            hands: None,
        };
        Self { settings: Arc::new(settings), shared: Arc::default(), connection }
    }

    /// A store on a cluster, over a connection of your own that sends each key to its node.
    #[must_use]
    pub fn sharded(connection: C) -> Self {
        let mut store = Self::new(connection);
        // accounts of several questions live on different servers
        (store.settings_mut().sharded, store.settings_mut().coalesces) = (true, false);
        store
    }

    /// What keys begin with; `sluice` unless set. Stores with another prefix share no account.
    ///
    /// # Panics
    ///
    /// When it is empty, longer than 64 bytes, or has anything but `[A-Za-z0-9_.:-]`: a brace would
    /// put all accounts on one node of a cluster.
    #[track_caller]
    #[must_use]
    pub fn prefix(mut self, prefix: &str) -> Self {
        let fine = |byte: u8| byte.is_ascii_alphanumeric() || b"_.:-".contains(&byte);
        assert!(
            (1..=64).contains(&prefix.len()) && prefix.bytes().all(fine),
            "prefix {prefix:?}: give 1 to 64 of [A-Za-z0-9_.:-]"
        );
        self.settings_mut().addresses.prefix = prefix.to_owned();
        self
    }

    /// Hashes keys with a secret: whoever reads the server cannot tell by trying whose account is
    /// whose. All processes that share accounts need the same one.
    ///
    /// Sixteen bytes, or a [`Secret`] made of more. Without it the hash is the same for everybody, and an address or a short name can be found
    /// by hashing all there are.
    #[must_use]
    pub fn secret(mut self, secret: impl Into<Secret>) -> Self {
        self.settings_mut().addresses.secret = secret.into();
        self
    }

    /// Writes the rule and the key in clear, for debugging: whoever reads the server reads them,
    /// and keys are as long as what users send.
    #[must_use]
    pub fn readable_keys(mut self) -> Self {
        self.settings_mut().addresses.readable = true;
        self
    }

    /// Whether decisions that wait at the same moment may travel in one call. They may, unless this
    /// says otherwise; on a cluster they never do.
    ///
    /// A call of 64 decisions keeps the server busy for some tenths of a millisecond, several times
    /// shorter than 64 calls do, but in one piece. Say `false` where others on the server cannot
    /// wait for that.
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
    pub fn coalesce(mut self, may: bool) -> Self {
        let settings = Arc::make_mut(&mut self.settings);
        settings.coalesces = may && !settings.sharded;
        self
    }

    /// Accounts so far whose place held something that was none of ours, or broken. They were
    /// started anew.
    #[must_use]
    pub fn healed(&self) -> u64 {
        self.shared.healed.load(Relaxed)
    }

    /// Decides by these hands, in nanoseconds of Unix time, in place of the server's clock.
    #[cfg(feature = "testing")]
    pub(crate) fn driven(mut self, hands: Arc<AtomicU64>) -> Self {
        self.settings_mut().hands = Some(hands);
        self.shared = Arc::new(Shared { scripts: Scripts::driven(), ..Shared::default() });
        self
    }

    #[cfg(feature = "testing")]
    pub(crate) fn undoing(&self) -> Arc<AtomicUsize> {
        self.shared.undoing.clone()
    }

    /// For a store that finds other accounts, whatever its clones find.
    fn settings_mut(&mut self) -> &mut Settings {
        let settings = Arc::make_mut(&mut self.settings);
        settings.rules = Arc::default();
        settings.queue = Arc::default();
        settings
    }

    fn addresses(&self) -> &Addresses {
        &self.settings.addresses
    }

    fn script(&self, frame: Frame, letters: impl IntoIterator<Item = u8>) -> &Script {
        self.shared.scripts.get(frame, letters.into_iter())
    }

    /// The time that the script is told, where a test drives it.
    fn time(&self) -> Vec<Vec<u8>> {
        #[cfg(feature = "testing")]
        if let Some(hands) = &self.settings.hands {
            let now = hands.load(Relaxed);
            return vec![(now / 1_000).to_string().into(), (now % 1_000).to_string().into()];
        }
        Vec::new()
    }

    async fn send(&self, command: &Cmd) -> redis::RedisResult<Value> {
        link::runtime()?;
        self.connection.clone().req_packed_command(command).await.and_then(Value::extract_error)
    }

    async fn call(&self, question: &Question, purpose: Purpose<'_>) -> Result<Reply, RedisError> {
        self.answer(question, purpose)
            .await
            .inspect_err(|error| store_failed(error.kind().as_str()))
    }

    async fn answer(&self, question: &Question, purpose: Purpose<'_>) -> Result<Reply, RedisError> {
        let frame = question.frame(purpose);
        let (keys, args) = question.encode(purpose);
        let script = self.script(frame, question.letters());
        let reply = match self.run(script, &keys, args).await? {
            Value::BulkString(bytes) => Reply::read(&bytes, question, frame),
            _ => Err(RedisError::reply("no string")),
        };
        let reply = self.trusted(reply)?;
        self.note_healed(reply.accounts.iter().filter(|seen| seen.healed).count());
        Ok(reply)
    }

    /// One script call. The server forgets scripts when it restarts: then it is sent the whole one.
    async fn run<K: redis::ToRedisArgs>(
        &self,
        script: &Script,
        keys: &[K],
        mut args: Vec<Vec<u8>>,
    ) -> Result<Value, RedisError> {
        args.extend(self.time());
        let command = |how: &str, script: &str| {
            let mut command = Cmd::new();
            command.arg(how).arg(script).arg(keys.len()).arg(keys).arg(&args);
            command
        };
        let answer = match self.send(&command("EVALSHA", &script.sha)).await {
            Err(error) if error.kind() == Raw::Server(Server::NoScript) => {
                self.send(&command("EVAL", &script.text)).await
            }
            answer => answer,
        };
        Ok(answer?)
    }

    /// What was read; after an answer that is none of ours another connection is made.
    fn trusted<T>(&self, read: Result<T, RedisError>) -> Result<T, RedisError> {
        let connection: &dyn Any = &self.connection;
        if let (Err(_), Some(link)) = (&read, connection.downcast_ref::<Link>()) {
            // who is to have the next answer is not known either
            link.distrust();
        }
        read
    }

    fn note_healed(&self, accounts: usize) {
        self.shared.healed.fetch_add(accounts as u64, Relaxed);
    }

    async fn decide(
        self,
        question: Question,
        purpose: Purpose<'static>,
    ) -> Result<Decision, RedisError> {
        Ok(self.call(&question, purpose).await?.told(&question))
    }

    /// Changes the account of one charge.
    fn change(
        &self,
        charge: &Charge<'_>,
        purpose: Purpose<'static>,
    ) -> Answer<<Self as Store>::Future> {
        if let Err(what) = self.check(&[*charge]) {
            return Answer::Now(Err(what.into()));
        }
        let question = Question::of(&[charge.cost(0)], self.addresses());
        Answer::Later(Box::pin(self.clone().decide(question, purpose)))
    }
}

impl<C> Store for RedisStore<C>
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    type Error = RedisError;
    type Future = BoxFuture<Result<Decision, RedisError>>;

    fn take(&self, charges: &[Charge<'_>]) -> Answer<Self::Future> {
        if let Err(what) = self.check(charges) {
            return Answer::Now(Err(what.into()));
        }
        let question = Question::of(charges, self.addresses());
        match question.accounts.len() {
            0 => Answer::Now(Ok(Decision::allow().from_source(Source::Redis))),
            2.. if self.settings.sharded => {
                Answer::Later(Box::pin(flight::take(self.clone(), question)))
            }
            1..=coalesce::ACCOUNTS
                if self.settings.coalesces && question.frame(Purpose::Take) == Frame::Plain =>
            {
                Answer::Later(Box::pin(coalesce::take(self.clone(), Box::new(question))))
            }
            _ => Answer::Later(Box::pin(self.clone().decide(question, Purpose::Take))),
        }
    }

    fn settle(&self, charge: &Charge<'_>, units: i64) -> Answer<Self::Future> {
        let moved = units.unsigned_abs();
        // the script does not report what it cut; this is cut in any case
        let cut = |(_, quota): &(usize, &Quota)| units < 0 && moved > quota.late_limit();
        if let Some((_, quota)) = charge.placed().find(cut) {
            late_charge_cut(quota);
        }
        let purpose = if units < 0 { Purpose::Late(moved) } else { Purpose::Refund(moved) };
        self.change(charge, purpose)
    }

    fn reset(&self, charge: &Charge<'_>) -> Answer<Self::Future> {
        self.change(charge, Purpose::Reset)
    }

    fn block(&self, charge: &Charge<'_>, time: Duration) -> Answer<Self::Future> {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.change(charge, Purpose::Block(nanos))
    }

    fn unblock(&self, charge: &Charge<'_>) -> Answer<Self::Future> {
        self.change(charge, Purpose::Unblock)
    }

    /// Goes on by itself where there is a tokio runtime; elsewhere the charge stays.
    fn undo(&self, charges: &[Charge<'_>], taken: &Decision, units: Option<u32>) {
        if taken.is_allowed() {
            let question = Question::of(charges, self.addresses());
            flight::undo(self, question, &taken.on(Charge::named(charges)), units);
        }
    }

    fn check(&self, charges: &[Charge<'_>]) -> Result<(), Unsupported> {
        charges.iter().flat_map(Charge::quotas).try_for_each(plan::check)?;
        can_queue(charges)
    }

    fn announce(&self, charges: &[Charge<'_>]) -> Result<(), Unsupported> {
        self.settings.rules.agree(charges)
    }

    /// Looks at an account, as the first part of a decision.
    fn health(&self) -> BoxFuture<Condition> {
        Box::pin(probe::look(self.clone()))
    }
}

impl<C: Clone> Clone for RedisStore<C> {
    fn clone(&self) -> Self {
        let Self { settings, shared, connection } = self;
        let (settings, shared) = (settings.clone(), shared.clone());
        Self { settings, shared, connection: connection.clone() }
    }
}

impl<C> fmt::Debug for RedisStore<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Settings { addresses, sharded, .. } = &*self.settings;
        let mut debug = f.debug_struct("RedisStore");
        debug.field("prefix", &addresses.prefix).field("sharded", sharded).finish_non_exhaustive()
    }
}

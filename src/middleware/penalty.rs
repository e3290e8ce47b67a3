//! Blocks of clients that ignore denials, or that cause many errors.

use std::{
    convert::Infallible,
    fmt,
    hash::{BuildHasher, RandomState},
    slice,
    sync::{Arc, Once},
    time::Duration,
};

use http::Response;
use tokio::runtime::Handle;

use super::RateLimitLayer;
use crate::{
    decision::{Decision, Source},
    head::ResponseHead,
    key::Key,
    log::{info, warn},
    quota::Quota,
    rule::{self, RuleError, RuleName, Rules},
    store::{self, Answer, Charge, DynStore, LocalStore, OwnedCharges, Store, StoreExt},
};

/// The default number of keys whose strikes are counted.
const KEYS: usize = 16_384;
const DEFAULT_BLOCKS: [Duration; 3] =
    [Duration::from_secs(60), Duration::from_secs(5 * 60), Duration::from_secs(15 * 60)];
const DEFAULT_FORGIVE: Duration = Duration::from_secs(86_400);
/// The longest block and the longest time until one is forgiven.
const LONGEST: Duration = Duration::from_secs(365 * 86_400);
/// A block is longer by up to its length divided by this number, at random.
const JITTER: u32 = 10;

type IsStrike = Arc<dyn Fn(&ResponseHead<'_>) -> bool + Send + Sync>;

/// Block of a key after too many strikes. The next blocks of the key are longer.
///
/// A strike is a denied request or, with [`by_response`](Penalty::by_response), a response such as 401
/// or 404. A key with more strikes than the quota allows is [blocked](crate::StoreExt::block): its
/// requests are rejected by the problem type `abnormal-usage-detected`, also by other processes on the
/// same store. Requests of a blocked key are no strikes.
///
/// The strikes are counted in this process, in a table of bounded size. Only a block calls the store.
/// The store also counts the recent blocks of a key, under the name of the rule and ` penalty`.
///
/// Set by [`RateLimitLayer::penalty`].
///
/// ```
/// use http::StatusCode;
/// use std::time::Duration;
/// use tower_sluice::{LocalStore, PeerIp, Quota, RateLimitLayer, Rule, middleware::Penalty};
///
/// const MINUTE: Duration = Duration::from_secs(60);
///
/// let rule = Rule::new("ip", PeerIp::new(), Quota::per_second(10));
/// // More than 20 denials in a minute block an address.
/// let penalty = Penalty::after(Quota::per_minute(20))
///     .block([MINUTE, 10 * MINUTE, 60 * MINUTE])
///     .forgive(Duration::from_secs(86_400));
/// let layer = RateLimitLayer::rules(rule, LocalStore::new()).penalty("ip", penalty);
/// ```
///
/// # Limitations
///
/// - A client that may choose its key, such as a header that nobody verified, can have the keys of
///   others blocked. A log line warns once when a key that is no address is blocked.
/// - Clients behind one address are blocked together.
/// - Each process counts its own strikes, so `n` processes together allow `n` times as many.
/// - While the table of strikes is full, new keys have no strikes.
/// - [`Key::everyone`] is never blocked, nor are requests without an identity.
#[derive(Clone)]
pub struct Penalty {
    strikes: Quota,
    blocks: Arc<[Duration]>,
    forgive: Duration,
    is_strike: Option<IsStrike>,
    counts: LocalStore,
}

impl Penalty {
    /// Creates a penalty for keys with more strikes than `quota` allows.
    ///
    /// The first block takes one minute, the second five and each further one fifteen. A block is
    /// forgiven after a day.
    ///
    /// # Panics
    ///
    /// Panics if the quota has no units, or is a number of slots.
    #[track_caller]
    #[must_use]
    pub fn after(quota: Quota) -> Self {
        assert!(
            quota.burst() > 0 && !quota.is_concurrent(),
            "penalty: the quota of strikes is {quota}; give a rate, such as Quota::per_minute(20)"
        );
        let counts = LocalStore::with_capacity(KEYS);
        let (blocks, forgive) = (DEFAULT_BLOCKS.into(), DEFAULT_FORGIVE);
        Self { strikes: quota, blocks, forgive, is_strike: None, counts }
    }

    /// Sets the times of the first block, the second, and so on. The last one applies to all further
    /// blocks. A block is up to a tenth longer, at random.
    ///
    /// # Panics
    ///
    /// Panics if there is no time, or one is less than a second or more than 365 days.
    #[track_caller]
    #[must_use]
    pub fn block(self, times: impl Into<Vec<Duration>>) -> Self {
        let times = times.into();
        assert!(!times.is_empty(), "penalty: no time of a block; give one, such as 1 min");
        for time in &times {
            check("time of a block", *time);
        }
        Self { blocks: times.into(), ..self }
    }

    /// Sets the time after which a block is forgiven, so that the next one is one step shorter.
    ///
    /// # Panics
    ///
    /// Panics if the time is less than a second or more than 365 days.
    #[track_caller]
    #[must_use]
    pub fn forgive(self, time: Duration) -> Self {
        check("time until a block is forgiven", time);
        Self { forgive: time, ..self }
    }

    /// Counts responses for which `is_strike` returns `true`, instead of denials.
    ///
    /// ```
    /// use http::StatusCode;
    /// use tower_sluice::{Quota, middleware::Penalty};
    ///
    /// let scans = Penalty::after(Quota::per_minute(30))
    ///     .by_response(|response| response.status == StatusCode::NOT_FOUND);
    /// ```
    #[must_use]
    pub fn by_response(
        self,
        is_strike: impl Fn(&ResponseHead<'_>) -> bool + Send + Sync + 'static,
    ) -> Self {
        Self { is_strike: Some(Arc::new(is_strike)), ..self }
    }

    /// Sets the store that counts strikes. Defaults to one of 16,384 keys.
    #[must_use]
    pub fn counts(self, store: LocalStore) -> Self {
        Self { counts: store, ..self }
    }

    /// Returns the quota whose used units are the recent blocks.
    fn levels(&self) -> Quota {
        let blocks = u32::try_from(self.blocks.len()).unwrap_or(u32::MAX);
        Quota::per(1, self.forgive).with_burst(blocks)
    }
}

#[track_caller]
fn check(what: &str, time: Duration) {
    assert!(
        (Duration::from_secs(1)..=LONGEST).contains(&time),
        "penalty: {what} is {time:?}; give 1 s to 365 days"
    );
}

impl fmt::Debug for Penalty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { strikes, blocks, forgive, .. } = self;
        let mut penalty = f.debug_struct("Penalty");
        penalty.field("strikes", strikes).field("blocks", blocks).field("forgive", forgive);
        penalty.finish_non_exhaustive()
    }
}

/// The penalty of a rule.
pub(crate) struct RulePenalty {
    rule: RuleName,
    /// The name of the accounts that count blocks.
    levels: RuleName,
    penalty: Penalty,
    store: Arc<DynStore<Infallible>>,
}

impl RulePenalty {
    pub(crate) fn reads_responses(&self) -> bool {
        self.penalty.is_strike.is_some()
    }

    /// Counts a strike if the rule denied this request.
    pub(crate) fn deny(&self, decision: &Decision, charges: &[Charge<'_>]) {
        let denies = |charge: &&Charge<'_>| {
            let mut outcomes = decision.outcomes().iter();
            outcomes.any(|it| it.rule() == charge.rule() && it.is_denied() && !it.is_report_only())
        };
        let is_limited = !decision.is_blocked()
            && !matches!(
                decision.source(),
                Source::FailedOpen
                    | Source::FailedClosed
                    | Source::Unsupported
                    | Source::Overflow
                    | Source::Overload
            );
        if is_limited
            && !self.reads_responses()
            && let Some(charge) = self.find(charges).filter(denies)
        {
            self.strike(charge);
        }
    }

    /// Returns the charge of the rule.
    fn find<'c, 'a>(&self, charges: &'c [Charge<'a>]) -> Option<&'c Charge<'a>> {
        charges.iter().find(|charge| charge.rule() == self.rule)
    }

    /// Counts a strike. Blocks the key if it has too many.
    fn strike(&self, charge: &Charge<'_>) {
        let Penalty { strikes, counts, .. } = &self.penalty;
        if charge.key().is_shared() {
            return;
        }
        let account = Charge::new(self.rule, charge.key(), slice::from_ref(strikes));
        let counted = counts.take(&[account]).now();
        // A table without room for the key has not counted it.
        if counted.is_allowed() || counted.source() != Source::Local {
            return;
        }
        let _ = counts.reset(&account).now();
        let levels = self.penalty.levels();
        let level = Charge::new(self.levels, charge.key(), slice::from_ref(&levels));
        let (blocks, store) = (self.penalty.blocks.clone(), self.store.clone());
        let rule = self.rule;
        match self.store.take(&[level]) {
            Answer::Now(counted) => block(&store, charge, rule, time(&blocks, counted)),
            Answer::Later(later) => {
                let charges = OwnedCharges::from(slice::from_ref(charge));
                spawn(async move {
                    let counted = later.await;
                    charges.with(|it| block(&store, &it[0], rule, time(&blocks, counted)));
                });
            }
        }
    }
}

/// Returns the time of a block, by the number of recent ones.
fn time(blocks: &[Duration], counted: Result<Decision, Infallible>) -> Duration {
    let Ok(counted) = counted;
    let left = counted.outcomes().first().map_or(0, |it| it.remaining() as usize);
    let last = blocks.len() - 1;
    let level = if counted.is_allowed() { last.saturating_sub(left) } else { last };
    let random = RandomState::new().hash_one(level) % 1_000;
    blocks[level] + blocks[level] / JITTER * u32::try_from(random).unwrap_or(0) / 1_000
}

/// Blocks a key of a rule.
fn block(store: &Arc<DynStore<Infallible>>, charge: &Charge<'_>, rule: RuleName, time: Duration) {
    warn_of_chosen_key(charge.key(), rule);
    let report = move |blocked: Result<Decision, store::BlockError<Infallible>>| match blocked {
        Ok(_) => info!("a key of rule {rule} is blocked for {time:?}: it had too many strikes"),
        Err(error) => warn!("a penalty of rule {rule} has no effect: {error}"),
    };
    match store::block(store, charge, time) {
        Answer::Now(blocked) => report(blocked),
        Answer::Later(later) => spawn(async move { report(later.await) }),
    }
}

/// Completes a store call in the background, if a Tokio runtime is available.
fn spawn(call: impl Future<Output = ()> + Send + 'static) {
    if let Ok(runtime) = Handle::try_current() {
        drop(runtime.spawn(call));
    }
}

/// Warns once per process.
fn warn_of_chosen_key(key: &Key, rule: RuleName) {
    static WARNED: Once = Once::new();
    if !key.is_address() {
        WARNED.call_once(|| {
            warn!(
                target: "tower_sluice::lint",
                lint = "penalty_of_chosen_key",
                "rule {rule} blocks a key that is no address: if clients may choose it, they can have \
                 the keys of others blocked; use a key that was verified"
            );
        });
    }
}

/// The penalty of a rule whose strikes are responses, and the charge of the request.
pub(crate) struct Watched(Arc<RulePenalty>, OwnedCharges);

impl Watched {
    pub(crate) fn new(penalty: &Arc<RulePenalty>, charges: &[Charge<'_>]) -> Option<Self> {
        let charge = penalty.reads_responses().then(|| penalty.find(charges)).flatten()?;
        Some(Self(penalty.clone(), slice::from_ref(charge).into()))
    }

    /// Counts a strike if the response is one.
    pub(crate) fn classify<B>(&self, response: &Response<B>) {
        let Self(penalty, charges) = self;
        let is_strike = penalty.penalty.is_strike.as_ref();
        if is_strike.is_some_and(|is_strike| is_strike(&ResponseHead::from(response))) {
            charges.with(|charges| charges.iter().for_each(|charge| penalty.strike(charge)));
        }
    }
}

impl<K, S, R> RateLimitLayer<K, S, R>
where
    K: Rules,
    S: Store<Error = Infallible> + Send + Sync + 'static,
    S::Future: 'static,
{
    /// Blocks the keys of a rule that have too many strikes.
    ///
    /// Requests on an [allow list](RateLimitLayer::allow), and those that run because the layer or the
    /// rule is report-only, have no strikes. [`Limiter::unblock`](crate::Limiter::unblock) ends a block
    /// at once.
    ///
    /// # Panics
    ///
    /// Panics if the layer has no rule of this name, or the name is longer than 56 characters.
    #[track_caller]
    pub fn penalty(mut self, rule: &str, penalty: Penalty) -> Self {
        let names: Arc<[_]> = rule::infos(&*self.rules).iter().map(|info| info.name).collect();
        let Some(&name) = names.iter().find(|name| name.as_str() == rule) else {
            panic!("penalty: {}", RuleError::Unknown { name: rule.into(), known: names });
        };
        let levels = match RuleName::new(&format!("{rule} penalty")) {
            Ok(levels) => levels,
            Err(error) => panic!("penalty: {error}"),
        };
        let store = self.store.clone().boxed();
        self.settings.penalties.push(Arc::new(RulePenalty { rule: name, levels, penalty, store }));
        self
    }
}

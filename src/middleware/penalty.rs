//! Blocks of clients that ignore denials, or that cause many errors.

use std::{
    collections::HashMap,
    convert::Infallible,
    fmt,
    hash::{BuildHasher, RandomState},
    slice,
    sync::Arc,
    time::Duration,
};

use http::Response;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::{
    algorithm::{Demand, gcra},
    decision::Decision,
    head::ResponseHead,
    key::Key,
    log::{LogCount, LogLimit, info, log_once, warn},
    quota::Quota,
    rule::{RuleError, RuleInfo, RuleName},
    store::{self, BlockError, Charge, DynStore, OwnedCharges, StoreExt, literal, nanos},
};

/// The default number of keys whose strikes are counted.
const KEYS: usize = 16_384;
/// The parts of the table of strikes, each with a lock.
const SHARDS: usize = 16;
/// The shortest time between two searches for entries that are no longer needed.
const SWEEP: u64 = 100_000_000;
/// The time in which the block of a key reaches the store, in nanoseconds. Strikes until then are
/// ignored.
const BLOCK_DELAY: u64 = 1_000_000_000;
const DEFAULT_BLOCKS: [Duration; 3] = [
    Duration::from_secs(60),
    Duration::from_secs(5 * 60),
    Duration::from_secs(15 * 60),
];
const DEFAULT_FORGIVE: Duration = Duration::from_secs(86_400);
/// The longest block and the longest time until one is forgiven.
const LONGEST: Duration = Duration::from_secs(365 * 86_400);
/// The most lengths of blocks.
const MAX_BLOCKS: usize = 32;
/// A block is longer by up to its length divided by this number, at random.
const JITTER: u32 = 10;

type IsStrike = Arc<dyn Fn(&ResponseHead<'_>) -> bool + Send + Sync>;

/// Block of a key after too many strikes. The next blocks of the key are longer.
///
/// A strike is a denied request or, with [`by_response`](Penalty::by_response), a response such as 401
/// or 404. A key with more strikes than the quota allows is [blocked](crate::StoreExt::block): its
/// requests are rejected with the problem type `abnormal-usage-detected`, in all processes that share
/// the store. Requests of a blocked key are no strikes.
///
/// Strikes and recent blocks are counted in this process, in a table of bounded size. Only a block
/// calls the store, and never one of a key that is blocked already.
///
/// Set by [`RateLimitLayer::penalty`](crate::RateLimitLayer::penalty).
///
/// ```
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
/// # Configuration files
///
/// With feature `serde`, a penalty is read from a table whose fields have the names of the methods. Only
/// `after` is required. `block` is a time or a list of times. [`by_response`](Penalty::by_response) is
/// set in code.
///
/// ```
/// # #[cfg(feature = "serde")] {
/// use tower_sluice::middleware::Penalty;
///
/// #[derive(serde::Deserialize)]
/// struct Limits {
///     scans: Penalty,
/// }
///
/// let limits: Limits = toml::from_str(
///     r#"
///     [scans]
///     after = "30/min"
///     block = ["1min", "10min", "1h"]
///     forgive = "1day"
///     capacity = 50000
///     "#,
/// )?;
/// let scans = limits.scans.by_response(|response| response.status == 404);
/// # }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Limitations
///
/// - A client that may choose its key, such as a header that nobody verified, can have the keys of
///   others blocked. A log line warns once when a key that is no address is blocked.
/// - Clients behind one address are blocked together.
/// - Each process counts for itself: `n` processes together allow `n` times as many strikes, and the
///   blocks of a key grow more slowly. A process that restarts has counted nothing.
/// - While the table is full of keys with recent strikes, new keys have none.
/// - Denials in an outage of the store, in an [overload](crate::decision::Source::Overload), by a queue
///   that other keys filled, or by a full `LocalStore` (an account that keys share) are no strikes.
/// - A denial is a strike for each rule that denies, and, of [alternatives](crate::Rule::or), for the
///   one with the shortest wait. A deny cache knows only the rule that denies longest.
/// - A block is under the rule of the penalty. Of alternatives, it denies the requests that reach that
///   rule, so give the penalty to the first of them.
/// - The denial that leads to a block names the wait for units, and the next ones only the rest of the
///   block, even if the units are not available by its end.
/// - Only keys of [one client](Key::is_client) are blocked: not that of a proxy, the address of which
///   stands for clients that are not known, and not the account of requests without an identity.
/// - The log has a line about blocks at most every ten seconds for each rule, with their number since
///   the last line.
/// - The store must support blocks. With a `GovernorStore`, nothing is blocked, and the log says so.
#[derive(Clone)]
#[must_use]
pub struct Penalty {
    strikes: Quota,
    pub(super) blocks: Arc<[Duration]>,
    pub(super) forgive: Duration,
    is_strike: Option<IsStrike>,
    pub(super) capacity: usize,
}

impl Penalty {
    /// Creates a penalty for keys with more strikes than `quota` allows.
    ///
    /// The first block takes one minute, the second five and each further one fifteen. A block is
    /// forgiven after a day.
    ///
    /// # Panics
    ///
    /// Panics if the quota has no units, or an [algorithm](Quota::with_algorithm) other than GCRA.
    #[track_caller]
    pub fn after(quota: Quota) -> Self {
        literal(Self::unchecked(quota).checked())
    }

    pub(super) fn unchecked(quota: Quota) -> Self {
        Self {
            strikes: quota,
            blocks: DEFAULT_BLOCKS.into(),
            forgive: DEFAULT_FORGIVE,
            is_strike: None,
            capacity: KEYS,
        }
    }

    /// Returns the penalty if all settings are valid.
    pub(super) fn checked(self) -> Result<Self, String> {
        match self.fault() {
            Some(fault) => Err(format!("penalty: {fault}")),
            None => Ok(self),
        }
    }

    fn fault(&self) -> Option<String> {
        if self.strikes.limit() == 0 || !self.strikes.is_gcra() {
            let fix = "give a rate with the algorithm Gcra, such as 20/min";
            return Some(format!("after is {}; {fix}", self.strikes));
        }
        let count = self.blocks.len();
        if !(1..=MAX_BLOCKS).contains(&count) {
            return Some(format!("block has {count} times; give 1 to {MAX_BLOCKS}"));
        }
        let blocks = self.blocks.iter().map(|time| ("block", time));
        let mut times = blocks.chain([("forgive", &self.forgive)]);
        let valid = Duration::from_secs(1)..=LONGEST;
        if let Some((field, time)) = times.find(|(_, time)| !valid.contains(time)) {
            return Some(format!("{field} is {time:?}; give 1 s to 365 days"));
        }
        let fix = "give the number of keys, such as 16384";
        (self.capacity == 0).then(|| format!("capacity is 0; {fix}"))
    }

    /// Sets the times of the first block, the second, and so on. The last one applies to all further
    /// blocks. A block is up to a tenth longer, at random.
    ///
    /// # Panics
    ///
    /// Panics if there is no time or more than 32, or one is less than a second or more than 365 days.
    #[track_caller]
    pub fn block(self, times: impl Into<Vec<Duration>>) -> Self {
        let penalty = Self {
            blocks: times.into().into(),
            ..self
        };
        literal(penalty.checked())
    }

    /// Sets the time after which a block is forgiven, so that the next one is one step shorter.
    ///
    /// # Panics
    ///
    /// Panics if the time is less than a second or more than 365 days.
    #[track_caller]
    pub fn forgive(self, time: Duration) -> Self {
        let penalty = Self {
            forgive: time,
            ..self
        };
        literal(penalty.checked())
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
    pub fn by_response(
        self,
        is_strike: impl Fn(&ResponseHead<'_>) -> bool + Send + Sync + 'static,
    ) -> Self {
        Self {
            is_strike: Some(Arc::new(is_strike)),
            ..self
        }
    }

    /// Sets the number of keys whose strikes are counted, each with some 50 bytes. Defaults to 16,384.
    /// The number is rounded up to a multiple of 16.
    ///
    /// # Panics
    ///
    /// Panics if the number is 0.
    #[track_caller]
    pub fn capacity(self, keys: usize) -> Self {
        let penalty = Self {
            capacity: keys,
            ..self
        };
        literal(penalty.checked())
    }
}

impl fmt::Debug for Penalty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Penalty")
            .field("strikes", &self.strikes)
            .field("blocks", &self.blocks)
            .field("forgive", &self.forgive)
            .field("capacity", &self.capacity)
            .finish_non_exhaustive()
    }
}

/// The strikes and the recent blocks of a key, in nanoseconds of the table's clock.
#[derive(Default)]
struct KeyStrikes {
    /// The instant at which the strikes are forgotten.
    tat: u64,
    /// The instant at which all blocks are forgiven.
    forgiven_at: u64,
    /// The instant until which strikes are ignored.
    ignored_until: u64,
}

#[derive(Default)]
struct StrikeShard {
    entries: HashMap<u64, KeyStrikes>,
    swept_at: Option<u64>,
}

/// The strikes of many keys.
struct Strikes {
    shards: [Mutex<StrikeShard>; SHARDS],
    seed: RandomState,
    created: Instant,
}

impl KeyStrikes {
    /// Forgets the strikes, and begins a block. Returns its time.
    fn block(&mut self, penalty: &Penalty, now: u64) -> Duration {
        let last = penalty.blocks.len() - 1;
        let forgive = nanos(penalty.forgive);
        // A block of level n is forgiven after n + 1 times `forgive`. What is left of that, rounded up, is
        // the level of the next block.
        let recent = self.forgiven_at.saturating_sub(now).div_ceil(forgive);
        let level = usize::try_from(recent).unwrap_or(last).min(last);
        self.forgiven_at = now.saturating_add(forgive.saturating_mul(level as u64 + 1));
        self.tat = 0;
        self.ignored_until = now.saturating_add(BLOCK_DELAY);
        penalty.blocks[level]
    }
}

impl StrikeShard {
    /// Returns the entry of a key, if there is one or room for one.
    fn entry(&mut self, id: u64, now: u64, capacity: usize) -> Option<&mut KeyStrikes> {
        let is_known = self.entries.contains_key(&id);
        if !is_known && !self.has_room(now, capacity) {
            return None;
        }
        Some(self.entries.entry(id).or_default())
    }

    /// Returns `true` if there is room for an entry. Entries of recent blocks make room for those of recent
    /// strikes.
    fn has_room(&mut self, now: u64, capacity: usize) -> bool {
        if self.entries.len() < capacity {
            return true;
        }
        if self.swept_at.is_some_and(|swept| now < swept + SWEEP) {
            return false;
        }
        self.swept_at = Some(now);
        self.entries
            .retain(|_, key| key.tat.max(key.forgiven_at) > now);
        if self.entries.len() >= capacity {
            self.entries
                .retain(|_, key| key.tat.max(key.ignored_until) > now);
        }
        self.entries.len() < capacity
    }
}

impl Strikes {
    fn new() -> Self {
        Self {
            shards: Default::default(),
            seed: RandomState::new(),
            created: Instant::now(),
        }
    }

    /// Counts a strike. Returns the time of a block if the key has too many.
    fn count(&self, key: &Key, penalty: &Penalty) -> Option<Duration> {
        let now = nanos(self.created.elapsed());
        let id = self.seed.hash_one(key);
        #[expect(
            clippy::cast_possible_truncation,
            reason = "any bits of the hash are random"
        )]
        let mut shard = self.shards[id as usize % SHARDS].lock();
        let entry = shard.entry(id, now, penalty.capacity.div_ceil(SHARDS))?;
        if entry.ignored_until > now {
            return None;
        }
        let (tat, counted) = gcra::take(entry.tat, &penalty.strikes, now, Demand::units(1));
        if counted.allowed {
            entry.tat = tat.unwrap_or(entry.tat);
            return None;
        }
        let time = entry.block(penalty, now);
        let random = u32::try_from(self.seed.hash_one((id, now)) % 1_000).unwrap_or(0);
        Some(time + time / JITTER * random / 1_000)
    }
}

/// The penalty of a rule.
pub(crate) struct RulePenalty {
    rule: RuleName,
    penalty: Penalty,
    strikes: Strikes,
    store: Arc<DynStore<Infallible>>,
    log: Mutex<PenaltyLog>,
}

/// The limits of the log lines of a penalty, whose blocks and failures clients can cause.
#[derive(Default)]
struct PenaltyLog {
    blocks: LogCount,
    failures: LogLimit,
}

impl RulePenalty {
    /// Creates the penalty of the rule with this name.
    #[track_caller]
    pub(super) fn new(
        rule: &str,
        penalty: Penalty,
        infos: &[RuleInfo<'_>],
        store: Arc<DynStore<Infallible>>,
    ) -> Self {
        let info = rule_named(rule, infos);
        let rule = info.name;
        assert!(
            info.can_be_client,
            "penalty: the key of rule {rule} is never that of one client, so a block would be one of all \
             clients; give the penalty to a rule with a key such as PeerIp or ClientIp"
        );
        Self {
            rule,
            penalty,
            strikes: Strikes::new(),
            store,
            log: Mutex::default(),
        }
    }

    pub(crate) fn reads_responses(&self) -> bool {
        self.penalty.is_strike.is_some()
    }

    /// Counts a strike if the rule denied this request.
    pub(crate) fn count_denial(self: &Arc<Self>, decision: &Decision, charges: &[Charge<'_>]) {
        let is_limited = !decision.is_blocked() && decision.cause().is_strike();
        if !is_limited || self.reads_responses() {
            return;
        }
        let mut outcomes = decision.outcomes().iter();
        let is_denied = outcomes.any(|outcome| outcome.rule() == self.rule && outcome.denies());
        if let Some(charge) = self.find(charges).filter(|_| is_denied) {
            self.strike(charge);
        }
    }

    /// Returns the charge of the rule.
    pub(super) fn find<'c, 'a>(&self, charges: &'c [Charge<'a>]) -> Option<&'c Charge<'a>> {
        Charge::find(charges, self.rule)
    }

    /// Counts a strike. Blocks the key if it has too many, unless it is blocked already, perhaps for longer.
    fn strike(self: &Arc<Self>, charge: &Charge<'_>) {
        if !charge.key.is_client() {
            return;
        }
        let Some(time) = self.strikes.count(charge.key, &self.penalty) else {
            return;
        };
        // A block is not seen by a charge of nothing.
        let charge = charge.with_cost(charge.cost.max(1));
        let owned = OwnedCharges::from(slice::from_ref(&charge));
        let this = self.clone();
        self.store.peek(&[charge]).detach(move |Ok(seen)| {
            if !seen.is_blocked() {
                owned.with(|charges| this.block(&charges[0], time));
            }
        });
    }

    fn block(self: &Arc<Self>, charge: &Charge<'_>, time: Duration) {
        let this = self.clone();
        let is_address = charge.key.is_address();
        store::block(&self.store, charge, time).detach(move |blocked| match blocked {
            Ok(_) => this.log_block(is_address, time),
            Err(error) => this.log_failure(&error),
        });
    }

    fn log_block(&self, is_address: bool, time: Duration) {
        let rule = self.rule;
        let mut log = self.log.lock();
        // Ends the failures. A block has a line of its own.
        log.failures.should_log_recovery();
        let blocked = log.blocks.count();
        drop(log);
        if !is_address {
            warn_of_chosen_key(rule);
        }
        match blocked {
            None => {}
            Some(1) => {
                info!("a key of rule {rule} is blocked for {time:?}: it had too many strikes");
            }
            Some(keys) => info!(
                "{keys} keys of rule {rule} are blocked, the last for {time:?}: they had too many \
                 strikes"
            ),
        }
    }

    fn log_failure(&self, error: &BlockError<Infallible>) {
        if self.log.lock().failures.should_log_failure() {
            warn!("a penalty of rule {} has no effect: {error}", self.rule);
        }
    }
}

/// Returns the rule with this name.
#[track_caller]
fn rule_named<'i, 'a>(name: &str, infos: &'i [RuleInfo<'a>]) -> &'i RuleInfo<'a> {
    let shown = infos.iter().filter(|info| !info.is_hidden());
    if let Some(info) = shown.clone().find(|info| info.name.as_str() == name) {
        return info;
    }
    let error = RuleError::Unknown {
        name: name.into(),
        known: shown.map(|info| info.name).collect(),
    };
    panic!("penalty: {error}");
}

/// Warns once per process.
fn warn_of_chosen_key(rule: RuleName) {
    log_once!(warn!(
            target: "tower_sluice::lint",
            lint = "penalty_of_chosen_key",
            "rule {rule} blocks a key that is no address: if clients may choose it, they can have the keys \
             of others blocked; use a key that was verified"
    ));
}

/// A request whose response may be a strike.
pub(crate) struct PendingStrike {
    penalty: Arc<RulePenalty>,
    /// The charge of the rule.
    charge: OwnedCharges,
}

impl PendingStrike {
    /// Returns `None` unless the request runs under the rule, which may stop requests. It may be uncharged:
    /// by [`Overcommit`](crate::middleware::Overcommit), or by a store that failed open.
    pub(crate) fn new(
        penalty: &Arc<RulePenalty>,
        decision: &Decision,
        charges: &[Charge<'_>],
    ) -> Option<Self> {
        if !penalty.reads_responses() || !decision.is_allowed() {
            return None;
        }
        let charge = penalty.find(charges)?;
        if charge.report_only || !decision.charged(charge.rule) {
            return None;
        }
        Some(Self {
            penalty: penalty.clone(),
            charge: slice::from_ref(charge).into(),
        })
    }

    /// Counts a strike if the response is one.
    pub(crate) fn classify<B>(&self, response: &Response<B>) {
        let penalty = &self.penalty;
        let is_strike = penalty.penalty.is_strike.as_ref();
        if is_strike.is_none_or(|is_strike| !is_strike(&ResponseHead::from(response))) {
            return;
        }
        self.charge.with(|charges| {
            for charge in charges {
                penalty.strike(charge);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = 86_400_000_000_000;

    #[test]
    fn strikes_of_invented_keys_take_no_more_room_than_the_capacity() {
        let strikes = Strikes::new();
        let penalty = Penalty::after(Quota::per_hour(9)).capacity(64);
        for key in 0..10_000_u64 {
            assert_eq!(strikes.count(&Key::from(key), &penalty), None);
        }
        let counted = strikes
            .shards
            .iter()
            .map(|it| it.lock().entries.len())
            .sum::<usize>();
        assert_eq!(counted, 64);
    }

    #[test]
    fn a_full_table_has_room_once_strikes_are_forgotten_or_keys_are_blocked() {
        let struck = |tat| KeyStrikes {
            tat,
            ..KeyStrikes::default()
        };
        let blocked = KeyStrikes {
            forgiven_at: DAY,
            ignored_until: SWEEP,
            ..struck(0)
        };
        for (name, recent) in [("strikes", struck(SWEEP)), ("a block", blocked)] {
            let mut shard = StrikeShard::default();
            *shard.entry(0, 0, 2).expect("room") = recent;
            *shard.entry(1, 0, 2).expect("room") = struck(DAY);
            assert!(shard.entry(2, 1, 2).is_none(), "{name}: full");
            assert!(
                shard.entry(1, 1, 2).is_some(),
                "{name}: a key with strikes has its entry"
            );
            assert!(
                shard.entry(2, SWEEP, 2).is_none(),
                "{name}: swept a moment ago"
            );
            *shard.entry(2, SWEEP + 1, 2).expect(name) = struck(DAY);
            assert!(
                shard.entry(3, DAY - 1, 2).is_none(),
                "{name}: recent strikes stay"
            );
        }
    }
}

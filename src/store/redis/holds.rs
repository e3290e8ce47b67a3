//! The slots that this process holds, and the reports of them.
//!
//! Each call on an account of slots has a report: the slots that this process holds, and its
//! charges that are pending. A report replaces all earlier ones, so a lost reply, a lost release
//! and a repeated report need no repair of their own.

#[cfg(feature = "testing")]
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::{
    collections::HashMap,
    fmt,
    hash::{BuildHasher, RandomState},
    mem::take,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use smallvec::SmallVec;
use tokio::{
    sync::{Notify, OwnedSemaphorePermit, Semaphore},
    time::{Instant, timeout},
};

use super::{
    error::{RedisError, RedisErrorKind},
    link::{TIMEOUT, runtime},
    request::{AccountRequest, Request, reports},
    slot_call::{SlotCall, SlotReport},
};
use crate::{
    decision::{FreeSlots, LossSignal},
    name::RuleName,
    quota::Quota,
};

/// The maximum number of calls in flight that charge slots of one account, because each call lists
/// the others.
const MAX_CALLS: usize = 16;

/// Fate of requests whose slots a [`RedisStore`](super::RedisStore) has lost.
///
/// A process loses its slots if it is paused for longer than their
/// [time to live](super::RedisStore::slot_ttl). Other processes may then hold them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnLost {
    /// The requests end: with 503, or with an error of the response body.
    #[default]
    Fence,
    /// The requests go on, and count again. More requests than the limit may then run.
    Keep,
}

/// The slots that this process holds.
pub(super) struct Reporter {
    pub(super) process: u64,
    pub(super) life: Duration,
    pub(super) on_lost: OnLost,
    created: Instant,
    #[cfg(feature = "testing")]
    pub(super) test_clock: Option<Arc<AtomicU64>>,
    ids: RandomState,
    state: Mutex<ReporterState>,
    /// Wakes the task that sends reports.
    pub(super) wake: Notify,
}

#[derive(Default)]
pub(super) struct ReporterState {
    pub(super) sequence: u64,
    /// The number of holds so far.
    pub(super) holds: u64,
    pub(super) accounts: HashMap<u64, SlotAccount>,
    /// Accounts with changes that no call has reported.
    due: Vec<u64>,
    is_running: bool,
}

/// An account of slots in which this process holds slots, or charges some.
pub(super) struct SlotAccount {
    rule: RuleName,
    address: String,
    quota_index: usize,
    quota: Quota,
    holds: HashMap<u64, (u32, Arc<LossSignal>)>,
    /// The slots of all holds.
    held: u64,
    /// The permits of calls that charge slots.
    turns: Arc<Semaphore>,
    /// The sequences of charges without a reply.
    pub(super) pending: SmallVec<[u64; 2]>,
    /// The distance of its sequences from those of other accounts, after a reset.
    pub(super) offset: u64,
    is_due: bool,
    sent_at: u64,
    /// The instant until which the server counts the holds.
    pub(super) valid_until: u64,
    /// `true` if the server did not accept the newest report.
    pub(super) is_unreachable: bool,
}

impl Reporter {
    pub(super) fn new(life: Duration, on_lost: OnLost) -> Self {
        let ids = RandomState::new();
        Self {
            process: ids.hash_one("process"),
            life,
            on_lost,
            created: Instant::now(),
            #[cfg(feature = "testing")]
            test_clock: None,
            ids,
            state: Mutex::default(),
            wake: Notify::new(),
        }
    }

    /// Returns a reporter of a new process with the same settings.
    pub(super) fn renewed(&self) -> Self {
        Self {
            #[cfg(feature = "testing")]
            test_clock: self.test_clock.clone(),
            ..Self::new(self.life, self.on_lost)
        }
    }

    pub(super) fn with_life(&self, life: Duration) -> Self {
        Self { life, ..self.renewed() }
    }

    pub(super) fn with_on_lost(&self, on_lost: OnLost) -> Self {
        Self { on_lost, ..self.renewed() }
    }

    #[cfg(feature = "testing")]
    pub(super) fn with_clock(&self, clock: Arc<AtomicU64>) -> Self {
        Self { test_clock: Some(clock), ..self.renewed() }
    }

    /// Returns the nanoseconds of a clock that does not step back.
    pub(super) fn now(&self) -> u64 {
        #[cfg(feature = "testing")]
        if let Some(clock) = &self.test_clock {
            return clock.load(Relaxed);
        }
        nanos(self.created.elapsed())
    }

    pub(super) fn state(&self) -> MutexGuard<'_, ReporterState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Creates a call without reports.
    pub(super) fn without_reports(self: &Arc<Self>) -> SlotCall {
        let (reporter, sent_at) = (self.clone(), self.now());
        SlotCall { reporter, reports: SmallVec::new(), sent_at, failed: false }
    }

    /// Waits until few calls are in flight that charge slots of the same accounts.
    pub(super) async fn turns(
        &self,
        request: &Request,
    ) -> Result<SmallVec<[OwnedSemaphorePermit; 1]>, RedisError> {
        let mut needed = SmallVec::<[_; 1]>::new();
        for account in &request.accounts {
            let charged = account.slots().filter(|(_, (_, ask))| ask.cost > 0);
            for (quota_index, (quota, _)) in charged {
                let id = self.ids.hash_one((&account.address, quota_index));
                let new = || SlotAccount::new(account, quota_index, quota);
                let turns = self.state().accounts.entry(id).or_insert_with(new).turns.clone();
                needed.push((id, turns));
            }
        }
        if needed.is_empty() {
            return Ok(SmallVec::new());
        }
        // One order for all calls, so that no two wait for each other.
        needed.sort_unstable_by_key(|(id, _)| *id);
        runtime()?;
        let all = async {
            let mut turns = SmallVec::new();
            for (_, semaphore) in needed {
                turns.extend(semaphore.acquire_owned().await);
            }
            turns
        };
        const TEXT: &str = "the calls that charge slots of the same key took too long";
        timeout(TIMEOUT, all).await.map_err(|_| RedisError::new(RedisErrorKind::Timeout, TEXT))
    }

    /// Creates the reports of a call. With `charges`, the call charges the demands.
    pub(super) fn begin(self: &Arc<Self>, request: &Request, charges: bool) -> SlotCall {
        let mut call = self.without_reports();
        let sent_at = call.sent_at;
        for (at, account) in request.accounts.iter().enumerate() {
            for (quota_index, (quota, ask)) in account.slots() {
                let id = self.ids.hash_one((&account.address, quota_index));
                let cost = if charges { ask.cost } else { 0 };
                let (mut state, mut lost) = (self.state(), Vec::new());
                state.sequence += 1;
                let sequence = state.sequence;
                let mut report = SlotReport {
                    account: at,
                    quota_index,
                    id,
                    cost,
                    process: self.process,
                    sequence,
                    held: 0,
                    life_micros: nanos(self.life) / 1_000,
                    pending: SmallVec::new(),
                };
                if cost > 0 {
                    let new = || SlotAccount::new(account, quota_index, quota);
                    state.accounts.entry(id).or_insert_with(new);
                }
                if let Some(known) = state.accounts.get_mut(&id) {
                    lost = known.expire(self.on_lost, sent_at);
                    report.sequence += known.offset;
                    (report.held, report.pending) = (known.held, known.pending.clone());
                    (known.quota, known.sent_at, known.is_due) = (*quota, sent_at, false);
                    if cost > 0 {
                        known.pending.push(report.sequence);
                    }
                }
                drop(state);
                raise(lost);
                call.reports.push(report);
            }
        }
        call
    }

    /// Returns `true` if the caller should start the task that sends reports.
    pub(super) fn should_start(&self) -> bool {
        #[cfg(feature = "testing")]
        if self.test_clock.is_some() {
            return false;
        }
        let mut state = self.state();
        let starts = !state.is_running && !state.accounts.is_empty();
        state.is_running |= starts;
        starts
    }

    /// Records that the task ended.
    pub(super) fn stopped(&self) {
        self.state().is_running = false;
    }

    /// Returns requests for the accounts with changes, or with `all` for all accounts. If `sharded`,
    /// a request has one slot of the cluster. Returns `None` if no account is left, so that the task
    /// ends.
    pub(super) fn due(&self, all: bool, sharded: bool) -> Option<Vec<Request>> {
        let (now, mut lost, mut found) = (self.now(), Vec::new(), Vec::new());
        let mut state = self.state();
        let due = take(&mut state.due);
        let due: Vec<_> = if all { state.accounts.keys().copied().collect() } else { due };
        for id in due {
            let Some(account) = state.accounts.get_mut(&id) else { continue };
            lost.extend(account.expire(self.on_lost, now));
            let is_forgotten = now >= account.sent_at.saturating_add(nanos(self.life));
            if account.is_idle() || account.is_empty() && is_forgotten {
                state.accounts.remove(&id);
            } else if account.is_due || all {
                account.is_due = true;
                let quota = (account.quota_index, account.quota);
                found.push((account.rule, account.address.clone(), quota));
            }
        }
        let is_empty = state.accounts.is_empty();
        state.is_running &= !is_empty;
        drop(state);
        raise(lost);
        (!is_empty).then(|| reports(found, sharded))
    }
}

impl ReporterState {
    pub(super) fn mark_due(&mut self, id: u64) {
        if let Some(account) = self.accounts.get_mut(&id)
            && !account.is_due
        {
            account.is_due = true;
            self.due.push(id);
        }
    }
}

impl FreeSlots for Reporter {
    /// Frees the hold with the number `hold`, unless it was lost or reset.
    fn free(&self, id: u64, hold: u64, _: u64) {
        let mut state = self.state();
        if state.accounts.get_mut(&id).is_some_and(|account| account.free(hold)) {
            state.mark_due(id);
            drop(state);
            self.wake.notify_one();
        }
    }
}

impl SlotAccount {
    fn new(account: &AccountRequest, quota_index: usize, quota: &Quota) -> Self {
        Self {
            rule: account.rule,
            address: account.address.clone(),
            quota_index,
            quota: *quota,
            holds: HashMap::new(),
            held: 0,
            turns: Arc::new(Semaphore::new(MAX_CALLS)),
            pending: SmallVec::new(),
            offset: 0,
            is_due: false,
            sent_at: 0,
            valid_until: 0,
            is_unreachable: false,
        }
    }

    pub(super) fn hold(&mut self, hold: u64, units: u32, signal: Arc<LossSignal>) {
        self.held += u64::from(units);
        self.holds.insert(hold, (units, signal));
    }

    /// Returns `false` if the hold was lost or reset.
    fn free(&mut self, hold: u64) -> bool {
        let freed = self.holds.remove(&hold);
        self.held -= freed.as_ref().map_or(0, |(units, _)| u64::from(*units));
        freed.is_some()
    }

    /// Removes and returns all holds.
    pub(super) fn free_all(&mut self) -> HashMap<u64, (u32, Arc<LossSignal>)> {
        self.held = 0;
        take(&mut self.holds)
    }

    fn is_empty(&self) -> bool {
        self.holds.is_empty() && self.pending.is_empty()
    }

    /// Returns `true` if the server knows that nothing is held.
    pub(super) fn is_idle(&self) -> bool {
        self.is_empty() && !self.is_due
    }

    /// Removes and returns all holds if the process was paused for too long.
    ///
    /// While the server fails, other processes cannot take the slots, and the holds stay.
    fn expire(&mut self, on_lost: OnLost, now: u64) -> Vec<Arc<LossSignal>> {
        let expired = now >= self.valid_until && !self.is_unreachable && on_lost == OnLost::Fence;
        let lost = if expired { self.free_all() } else { HashMap::new() };
        lost.into_values().map(|(_, signal)| signal).collect()
    }
}

fn raise(lost: Vec<Arc<LossSignal>>) {
    lost.into_iter().for_each(|signal| signal.raise());
}

pub(super) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl fmt::Debug for Reporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reporter").field("life", &self.life).finish_non_exhaustive()
    }
}

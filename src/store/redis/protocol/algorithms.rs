//! The algorithms in the calls of scripts: their letters, scripts, plans and states.

use super::{EncodedPlan, reader::Reader};
use crate::{
    algorithm::{AccountState, FixedWindow, TokenBucket, fixed_window::retention},
    quota::{Algorithm, Quota},
    store::{Unsupported, redis::error::RedisError},
};

/// The bound below which a double represents every integer.
const EXACT: u64 = 1 << 53;
pub(super) const SLOTS: &str = include_str!("../../../../lua/slots.lua");
pub(super) const GCRA: &str = include_str!("../../../../lua/gcra.lua");
pub(super) const CONCURRENT: &str = include_str!("../../../../lua/concurrent.lua");
/// The letter and the scripts of each algorithm.
pub(super) const ALGORITHMS: [(u8, &[&str]); 6] = [
    (b'g', &[GCRA]),
    (b't', &[include_str!("../../../../lua/token_bucket.lua")]),
    (b'f', &[include_str!("../../../../lua/fixed_window.lua")]),
    (b's', &[include_str!("../../../../lua/sliding_window.lua")]),
    (b'l', &[include_str!("../../../../lua/sliding_log.lua")]),
    (b'c', &[SLOTS, CONCURRENT]),
];
/// The number of sets of algorithms.
pub(super) const SETS: usize = 1 << ALGORITHMS.len();

/// Returns the letters of all algorithms.
pub(crate) fn all_letters() -> impl Iterator<Item = u8> {
    ALGORITHMS.iter().map(|(letter, _)| *letter)
}

/// Returns the letter that stands for the algorithm in script arguments and stored accounts.
pub(crate) fn letter(quota: &Quota) -> u8 {
    match quota.algorithm() {
        Algorithm::Gcra => b'g',
        Algorithm::TokenBucket => b't',
        Algorithm::FixedWindow { .. } | Algorithm::AnchoredWindow => b'f',
        Algorithm::SlidingWindow { .. } => b's',
        Algorithm::SlidingLog => b'l',
        Algorithm::Concurrent => b'c',
    }
}

/// Returns an error if the scripts cannot count the quota exactly.
pub(crate) fn check(quota: &Quota) -> Result<(), Unsupported> {
    let (width, product) = match quota.algorithm() {
        Algorithm::Gcra | Algorithm::Concurrent => return Ok(()),
        Algorithm::SlidingWindow { buckets } => (quota.period_nanos() / u64::from(buckets), true),
        Algorithm::FixedWindow { paced, .. } => (quota.period_nanos(), paced),
        Algorithm::TokenBucket | Algorithm::AnchoredWindow | Algorithm::SlidingLog => {
            (quota.period_nanos(), false)
        }
    };
    if !width.is_multiple_of(1_000) {
        return Err(Unsupported::new(
            "a window, bucket or refill that is not a whole number of microseconds, the resolution \
             of Redis's clock; choose another period, or Gcra",
        ));
    }
    let beyond = quota.units().max(quota.max_debt_units());
    let units = u64::from(quota.units()) + u64::from(beyond) + u64::from(quota.soft());
    if product && units.saturating_mul(width / 1_000) >= EXACT {
        return Err(Unsupported::new(
            "(units + max_debt + soft) * width of a sliding or paced window, in microseconds, is \
             2^53 or more, which exceeds Lua's numbers; use more buckets, or Gcra",
        ));
    }
    Ok(())
}

impl EncodedPlan {
    /// Appends the settings of a quota that is not counted by GCRA.
    pub(super) fn settings(self, quota: &Quota, end: u64, key: usize) -> Self {
        let period = quota.period_nanos() / 1_000;
        match quota.algorithm() {
            Algorithm::TokenBucket => self.token_bucket(quota, period),
            Algorithm::SlidingWindow { buckets } => {
                let buckets = u64::from(buckets.max(1));
                self.window(quota)
                    .int::<7>(period / buckets)
                    .int::<4>(buckets)
            }
            Algorithm::SlidingLog => self.window(quota).int::<7>(period).int::<2>(key as u64),
            Algorithm::FixedWindow { carry_over, paced } => {
                let kind = if quota.is_calendar() {
                    3
                } else {
                    u64::from(paced) * 2
                };
                let plan = self.window(quota).int::<7>(retention(quota) / 1_000);
                plan.int::<5>(carry_over.into()).int::<1>(kind).nanos(end)
            }
            Algorithm::AnchoredWindow => self
                .window(quota)
                .int::<7>(period)
                .int::<5>(0)
                .int::<1>(1)
                .nanos(end),
            // Their plans are others.
            Algorithm::Gcra | Algorithm::Concurrent => self,
        }
    }

    /// Appends the units of a window or a log.
    fn window(self, quota: &Quota) -> Self {
        self.int::<5>(quota.units().into())
            .int::<5>(quota.soft().into())
    }

    fn token_bucket(self, quota: &Quota, period: u64) -> Self {
        let burst = u64::from(quota.limit());
        let refill = u64::from(quota.units()).max(1);
        let initial = quota.initial().map(u64::from);
        let kept = initial.map_or(0, |_| burst.div_ceil(refill) * period);
        let plan = self
            .int::<5>(burst)
            .int::<5>(quota.soft().into())
            .int::<5>(refill);
        plan.int::<5>(initial.unwrap_or(burst))
            .int::<7>(period)
            .int::<7>(kept)
    }
}

/// Returns `true` if an account has a list beside its value, in a key of its own.
pub(super) fn has_list(quota: &Quota) -> bool {
    matches!(quota.algorithm(), Algorithm::SlidingLog)
}

/// Parses the state of an account under the algorithm of its quota.
pub(super) fn parse_state(
    content: &mut Reader<'_>,
    quota: &Quota,
) -> Result<AccountState, RedisError> {
    Ok(match quota.algorithm() {
        Algorithm::Gcra => AccountState::Gcra(content.instant()?),
        Algorithm::TokenBucket => {
            let tokens = content.int::<6>()?;
            // The number has six bytes, and the sign is in the highest byte.
            let tokens = (tokens << 16).cast_signed() >> 16;
            let anchor = content.instant()?;
            let opened = content.instant()?;
            AccountState::TokenBucket(TokenBucket {
                tokens,
                anchor,
                opened,
            })
        }
        Algorithm::FixedWindow { .. } | Algorithm::AnchoredWindow => {
            let start = content.instant()?;
            let count = content.int::<5>()?;
            let bonus = content.int::<5>()?;
            AccountState::FixedWindow(FixedWindow {
                start,
                count,
                bonus,
            })
        }
        Algorithm::SlidingWindow { .. } => {
            content.int::<5>()?;
            AccountState::SlidingWindow(content.entries()?.into())
        }
        Algorithm::SlidingLog => {
            content.int::<5>()?;
            content.instant()?;
            AccountState::SlidingLog(content.entries()?.into())
        }
        Algorithm::Concurrent => AccountState::Slots(content.int::<4>()?),
    })
}

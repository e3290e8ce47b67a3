//! What a script answers: the accounts as they are now. Every number a decision tells is worked out
//! from them by the same steps that the embedded store takes.

use smallvec::SmallVec;

use super::{
    error::RedisError,
    question::{Account, Named, Question},
    script::Frame,
};
use crate::{
    algorithm::{self, Ask, Receipt, State, Step, gcra::Gcra},
    decision::{Decision, Outcome, Source},
    quota::{Algorithm, Quota},
};

/// Instants beyond this (in microseconds, the year 2241) are none of ours: sums of a few of them
/// stay below 2^64 nanoseconds.
const LATEST: u64 = 1 << 53;

/// One call's answer.
#[derive(Clone, Debug)]
pub(super) struct Reply {
    pub(super) allowed: bool,
    /// The server's clock, in nanoseconds of Unix time.
    pub(super) now: u64,
    pub(super) accounts: SmallVec<[Seen; 2]>,
}

/// An account after the call.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) charged: bool,
    /// Something of another's was found in its place, and ended.
    pub(super) healed: bool,
    /// Until when it is blocked.
    block: Option<u64>,
    kept: SmallVec<[Kept; 2]>,
}

#[derive(Clone, Debug)]
enum Kept {
    Cold,
    Gcra(u64),
    State(State),
}

impl Reply {
    /// Reads the answer of `frame` to `question`; anything odd is an error.
    pub(super) fn read(
        bytes: &[u8],
        question: &Question,
        frame: Frame,
    ) -> Result<Self, RedisError> {
        let mut bytes = Bytes(bytes);
        let allowed = match bytes.int::<1>()? {
            0 => false,
            1 => true,
            _ => return Err(RedisError::reply("neither yes nor no")),
        };
        let now = bytes.instant()?;
        let mut accounts = SmallVec::new();
        for account in &question.accounts {
            let due = allowed && frame != Frame::Settle && account.charges();
            accounts.push(Seen::read(&mut bytes, account, due)?);
        }
        bytes.end()?;
        Ok(Self { allowed, now, accounts })
    }

    /// What one server's answer says.
    pub(super) fn told(&self, question: &Question) -> Decision {
        let seen: SmallVec<[_; 2]> = self.accounts.iter().map(|seen| (self.now, seen)).collect();
        Self::decision(question, &seen, self.allowed)
    }

    /// The answers of several servers as one, each with its own clock.
    pub(super) fn decision(
        question: &Question,
        replies: &[(u64, &Seen)],
        allowed: bool,
    ) -> Decision {
        let clock = replies.first().map_or(0, |(now, _)| *now);
        if !allowed && let Some(refusal) = blocked(question, replies, clock) {
            return refusal;
        }
        let mut decision = Decision::new(allowed, clock).from_source(Source::Redis);
        let (mut overage, mut wait) = (false, 0);
        for &Named { account: at, place, .. } in &question.named {
            let (account, (now, seen)) = (&question.accounts[at], replies[at]);
            let Some(Some((quota, ask))) = account.places.get(place) else { continue };
            let charged = seen.charged && ask.cost > 0;
            // a refusal tells the waits of those who do not queue
            let max_wait = if allowed { ask.max_wait } else { 0 };
            let step = seen.kept[place].told(quota, now, Ask { max_wait, ..*ask }, charged);
            if allowed && !account.report_only {
                (overage, wait) = (overage | step.overage, wait.max(step.wait));
            }
            let outcome = Outcome::with(account.rule, place, step.numbers);
            let skew = now.cast_signed().saturating_sub(clock.cast_signed());
            decision.push(outcome.report_only(account.report_only).by_clock(skew));
        }
        decision.passes(overage, wait);
        decision
    }
}

impl Seen {
    /// The next account of an answer; whether it is `due` to be charged.
    pub(super) fn read(
        bytes: &mut Bytes<'_>,
        account: &Account,
        due: bool,
    ) -> Result<Self, RedisError> {
        let flags = bytes.int::<1>()?;
        let length = usize::try_from(bytes.int::<4>()?).unwrap_or(usize::MAX);
        let (block, kept) = kept(bytes.take(length)?, &account.places)?;
        let (charged, healed) = (flags & 1 == 1, flags & 2 == 2);
        if flags > 3 || charged && !due || due && !charged && !account.report_only {
            return Err(RedisError::reply("flags that cannot be"));
        }
        Ok(Self { charged, healed, block, kept })
    }

    /// Whether so many equal charges can have been made at `now`. Of GCRA quotas that start full.
    pub(super) fn was_charged(&self, times: usize, account: &Account, now: u64) -> bool {
        self.kept.len() == account.places.len()
            && self.kept.iter().zip(&account.places).all(|(kept, asked)| {
                let (Kept::Gcra(stored), Some((quota, ask))) = (kept, asked) else { return false };
                let charged = worth(quota, *ask).checked_mul(times as u64);
                charged.and_then(|worth| now.checked_add(worth)).is_some_and(|tat| tat <= *stored)
            })
    }

    /// The account as it was before so many of its charges.
    pub(super) fn before(&self, charges: usize, account: &Account) -> Self {
        let mut seen = self.clone();
        for (kept, asked) in seen.kept.iter_mut().zip(&account.places) {
            if let (Kept::Gcra(stored), Some((quota, ask))) = (kept, asked) {
                *stored = stored.saturating_sub(worth(quota, *ask).saturating_mul(charges as u64));
            }
        }
        seen
    }

    /// As those see it who are refused.
    pub(super) fn uncharged(mut self) -> Self {
        self.charged = false;
        self
    }

    /// The account without the charge of `ask` made at `now`, which is undone.
    pub(super) fn without(mut self, places: &[Option<(Quota, Ask)>], now: u64) -> Self {
        self.charged = false;
        for (kept, asked) in self.kept.iter_mut().zip(places) {
            let Some((quota, ask)) = asked else { continue };
            let receipt = Receipt::newest(now, *ask);
            match kept {
                Kept::Cold => {}
                Kept::Gcra(stored) => {
                    let back = Gcra::new(quota).undo(*stored, now, receipt);
                    *stored = back.unwrap_or(*stored);
                }
                Kept::State(state) => {
                    let mut account = Some(state.clone());
                    algorithm::undo(&mut account, quota, now, receipt);
                    *kept = account.map_or(Kept::Cold, Kept::State);
                }
            }
        }
        self
    }
}

/// A charge in the time of a GCRA quota.
fn worth(quota: &Quota, ask: Ask) -> u64 {
    quota.interval_nanos().saturating_mul(ask.cost.into())
}

impl Kept {
    fn told(&self, quota: &Quota, now: u64, ask: Ask, charged: bool) -> Step {
        match (Gcra::counting(quota), self) {
            (Some(gcra), Self::Gcra(stored)) => gcra.told(*stored, now, ask, charged),
            (Some(gcra), _) => gcra.told(0, now, ask, charged),
            (None, Self::State(state)) => algorithm::told(Some(state), quota, now, ask, charged),
            (None, _) => algorithm::told(None, quota, now, ask, charged),
        }
    }
}

/// The refusal of a blocked key.
fn blocked(question: &Question, replies: &[(u64, &Seen)], clock: u64) -> Option<Decision> {
    let all = question.accounts.iter().zip(replies);
    let refusing = all.filter(|(account, _)| !account.report_only && account.charges());
    let left = refusing.filter_map(|(account, (now, seen))| {
        Some((account, seen.block?.saturating_sub(*now))).filter(|(_, left)| *left > 0)
    });
    let (account, left) = left.max_by_key(|(_, left)| *left)?;
    let limit = account.places.iter().flatten().next().map_or(1, |(quota, _)| quota.limit());
    let left = std::time::Duration::from_nanos(left);
    let outcome = Outcome::new(account.rule, 0, limit, 0, left, left, Some(left));
    Some(Decision::new(false, clock).from_source(Source::Redis).blocked().outcome(outcome))
}

/// The block and the places of an account, as `lua/account.lua` writes them.
fn kept(
    account: &[u8],
    places: &[Option<(Quota, Ask)>],
) -> Result<(Option<u64>, SmallVec<[Kept; 2]>), RedisError> {
    let mut kept: SmallVec<[Kept; 2]> = SmallVec::new();
    let mut block = None;
    let mut bytes = Bytes(account);
    if !account.is_empty() {
        // when it was last changed
        bytes.int::<7>()?;
    }
    while !bytes.0.is_empty() {
        let [letter] = bytes.array::<1>()?;
        let length = usize::try_from(bytes.int::<2>()?).unwrap_or(usize::MAX);
        let mut content = Bytes(bytes.take(length)?);
        match letter {
            b'b' => {
                block = Some(content.instant()?);
                continue;
            }
            // receipts of before a reset, which only the scripts look at
            b'r' => continue,
            _ => {}
        }
        let Some(asked) = places.get(kept.len()) else { break };
        kept.push(match asked {
            Some((quota, _)) => state(letter, &mut content, quota)?,
            None => Kept::Cold,
        });
    }
    kept.resize(places.len(), Kept::Cold);
    Ok((block, kept))
}

fn state(letter: u8, content: &mut Bytes<'_>, quota: &Quota) -> Result<Kept, RedisError> {
    let state = match (letter, quota.counted_by()) {
        (b'g', Algorithm::Gcra) => return Ok(Kept::Gcra(content.instant()?)),
        (b't', Algorithm::TokenBucket) => {
            let tokens = content.int::<6>()?;
            // the sign is in the highest of six bytes
            let tokens = (tokens << 16).cast_signed() >> 16;
            State::token_bucket(tokens, content.instant()?, content.instant()?)
        }
        (b'f', Algorithm::FixedWindow { .. } | Algorithm::AnchoredWindow) => {
            State::fixed_window(content.instant()?, content.int::<5>()?, content.int::<5>()?)
        }
        (b's', Algorithm::SlidingWindow { .. }) => {
            content.int::<5>()?;
            State::sliding_window(content.entries()?)
        }
        (b'l', Algorithm::SlidingLog) => {
            content.int::<5>()?;
            content.instant()?;
            State::sliding_log(content.entries()?)
        }
        // the quota has changed its algorithm
        _ => return Ok(Kept::Cold),
    };
    Ok(Kept::State(state))
}

/// Reads little-endian numbers off the front.
pub(super) struct Bytes<'a>(pub(super) &'a [u8]);

impl<'a> Bytes<'a> {
    pub(super) fn end(&self) -> Result<(), RedisError> {
        if self.0.is_empty() { Ok(()) } else { Err(RedisError::reply("too long")) }
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], RedisError> {
        let (taken, rest) =
            self.0.split_at_checked(length).ok_or_else(|| RedisError::reply("too short"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], RedisError> {
        self.take(N)?.try_into().map_err(|_| RedisError::reply("too short"))
    }

    pub(super) fn int<const N: usize>(&mut self) -> Result<u64, RedisError> {
        let mut bytes = [0; 8];
        bytes[..N].copy_from_slice(&self.array::<N>()?);
        Ok(u64::from_le_bytes(bytes))
    }

    /// Nanoseconds of Unix time.
    pub(super) fn instant(&mut self) -> Result<u64, RedisError> {
        let (micros, nanos) = (self.int::<7>()?, self.int::<2>()?);
        if micros > LATEST || nanos > 999 {
            return Err(RedisError::reply("an instant that cannot be"));
        }
        Ok(micros * 1_000 + nanos)
    }

    /// Instants and units, oldest first.
    fn entries(&mut self) -> Result<Vec<(u64, u64)>, RedisError> {
        let mut entries = Vec::with_capacity(self.0.len() / 14);
        while !self.0.is_empty() {
            match (self.instant()?, self.int::<5>()?) {
                (_, 0) => return Err(RedisError::reply("an entry of nothing")),
                entry => entries.push(entry),
            }
        }
        Ok(entries)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        key::Key,
        name::RuleName,
        store::{Charge, redis::addresses::Addresses},
    };

    const NOW: u64 = 1_700_000_000_000_000;
    const ALGORITHMS: [Algorithm; 8] = [
        Algorithm::Gcra,
        Algorithm::TokenBucket,
        Algorithm::fixed_window(),
        Algorithm::FixedWindow { carry_over: 3, paced: true },
        Algorithm::AnchoredWindow,
        Algorithm::SlidingWindow { buckets: 5 },
        Algorithm::SlidingWindow { buckets: 1 },
        Algorithm::SlidingLog,
    ];

    /// A look and a charge of two accounts.
    fn question(quotas: &[Quota]) -> Question {
        let (one, two) = (Key::from("one"), Key::from("two"));
        let charges = [&one, &two].map(|key| Charge::new(RuleName::default(), key, quotas));
        let [look, take] = charges;
        let queueing = take.cost(2).headroom(1).max_wait(Duration::MAX);
        Question::of(&[look.cost(0), queueing], &Addresses::new())
    }

    fn instant(micros: u64) -> Vec<u8> {
        [&micros.to_le_bytes()[..7], &[7, 0]].concat()
    }

    /// An account as a script tells it, its units being the lowest numbers.
    fn account(algorithm: Algorithm) -> Vec<u8> {
        let entry = |ago| [&instant(NOW - ago)[..], &[2, 0, 0, 0, 0]].concat();
        let (letter, content) = match algorithm {
            Algorithm::Gcra => (b'g', instant(NOW + 2_000_000)),
            Algorithm::TokenBucket => {
                (b't', [&[3, 0, 0, 0, 0, 0][..], &instant(NOW - 9), &instant(NOW - 9)].concat())
            }
            Algorithm::SlidingWindow { .. } => {
                (b's', [&[4, 0, 0, 0, 0][..], &entry(900_000), &entry(9)].concat())
            }
            Algorithm::SlidingLog => {
                let head = [&[4, 0, 0, 0, 0][..], &instant(NOW - 9)].concat();
                (b'l', [head, entry(900_000), entry(9)].concat())
            }
            _ => (
                b'f',
                [&instant(NOW - NOW % 10_000_000)[..], &[2, 0, 0, 0, 0, 1, 0, 0, 0, 0]].concat(),
            ),
        };
        let length = u16::try_from(content.len()).expect("short").to_le_bytes();
        [&NOW.to_le_bytes()[..7], &[b'b', 9, 0], &instant(NOW - 1), &[letter], &length, &content]
            .concat()
    }

    fn reply(allowed: u8, accounts: &[(u8, Vec<u8>)]) -> Vec<u8> {
        let mut bytes = [&[allowed][..], &instant(NOW)].concat();
        for (flags, account) in accounts {
            bytes.push(*flags);
            bytes.extend(u32::try_from(account.len()).expect("short").to_le_bytes());
            bytes.extend(account);
        }
        bytes
    }

    /// Reads it and works out every number; whether it was an allowed charge.
    fn told(bytes: &[u8], question: &Question) -> Option<bool> {
        let reply = Reply::read(bytes, question, Frame::Take).ok()?;
        let seen: Vec<_> = reply.accounts.iter().map(|seen| (reply.now, seen)).collect();
        let decision = Reply::decision(question, &seen, reply.allowed);
        for outcome in decision.outcomes() {
            let times = (outcome.reset_after(), outcome.next_after(), outcome.retry_after());
            assert!(outcome.remaining() <= outcome.limit() + 3, "{times:?}");
        }
        for (seen, account) in reply.accounts.iter().zip(&question.accounts) {
            let undone = seen.clone().without(&account.places, reply.now);
            let _ = Reply::decision(question, &[(reply.now, &undone), (reply.now, seen)], false);
        }
        let charged: Vec<_> = reply.accounts.iter().map(|seen| seen.charged).collect();
        assert_eq!(charged, [false, reply.allowed]);
        assert_eq!(decision.is_allowed(), reply.allowed);
        Some(reply.allowed)
    }

    #[test]
    fn noise_is_no_decision_and_what_looks_like_one_is_consistent() {
        let mut state = 1_u64;
        let mut random = |below: usize| {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            usize::try_from(state >> 33).unwrap_or(0) % below
        };
        let base = Quota::new(10, Duration::from_secs(10)).expect("a quota");
        let mut read = 0;
        for algorithm in ALGORITHMS {
            let question = question(&[base.algorithm(algorithm)]);
            let account = account(algorithm);
            let real = [
                reply(1, &[(0, account.clone()), (1, account.clone())]),
                reply(0, &[(0, account.clone()), (0, account.clone())]),
                reply(1, &[(2, Vec::new()), (3, account)]),
            ];
            let allowed = real.each_ref().map(|bytes| told(bytes, &question));
            assert_eq!(allowed, [Some(true), Some(false), Some(true)], "{algorithm:?}");
            for _ in 0..10_000 {
                let noise: Vec<_> = (0..random(80)).map(|_| random(256).to_le_bytes()[0]).collect();
                assert_eq!(told(&noise, &question), None);
                let mut bytes = real[random(3)].clone();
                for _ in 0..=random(3) {
                    let at = random(bytes.len());
                    match random(8) {
                        0 => bytes.truncate(at + 1),
                        1 => bytes.insert(at, random(256).to_le_bytes()[0]),
                        2 if at > 0 => drop(bytes.remove(at)),
                        3 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][random(5)],
                        4 => bytes[at..].iter_mut().take(7).for_each(|byte| *byte = 0xff),
                        _ => bytes[at] ^= 1 << random(8),
                    }
                }
                read += usize::from(told(&bytes, &question).is_some());
            }
        }
        assert!(read > 10_000, "{read} were read");
    }
}

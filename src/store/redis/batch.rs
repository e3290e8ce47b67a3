//! Several questions in one call: equal ones are asked once, with how many they are.

use redis::Value;
use smallvec::SmallVec;

use super::{
    error::RedisError,
    question::{Account, Places, Question},
    queue::Waiting,
    reply::{Bytes, Reply, Seen},
};
use crate::decision::Decision;

/// Different questions in a batch.
pub(super) const FULL: usize = 64;
/// Callers in a batch, those with equal questions counted each.
const MOST: usize = 1_024;

/// Callers who ask together.
#[derive(Debug, Default)]
pub(super) struct Batch {
    /// Equal questions, in the order in which the first of each came.
    kinds: Vec<Kind>,
    /// The different plans.
    plans: Vec<(Places, Vec<u8>)>,
    callers: usize,
}

#[derive(Debug)]
struct Kind {
    callers: SmallVec<[Waiting; 1]>,
    /// The plan of each account, by its number.
    plans: SmallVec<[u16; 2]>,
}

/// What a script answers to a batch.
#[derive(Debug)]
pub(super) struct Answers {
    now: u64,
    /// Of each kind some, in its order.
    runs: Vec<Run>,
}

/// Of callers with equal questions, the next so many: the first of them passed, others did not.
#[derive(Debug)]
struct Run {
    callers: usize,
    passed: usize,
    /// Their accounts now.
    accounts: SmallVec<[Seen; 2]>,
}

impl Batch {
    /// How many more callers fit, whatever they ask.
    pub(super) fn room(&self) -> usize {
        FULL.saturating_sub(self.kinds.len()).min(MOST.saturating_sub(self.callers))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.kinds.is_empty()
    }

    pub(super) fn add(&mut self, caller: Waiting) {
        self.callers += 1;
        match self.kinds.iter_mut().find(|kind| kind.question().equals(&caller.question)) {
            Some(kind) => kind.callers.push(caller),
            None => {
                let accounts = caller.question.accounts.iter();
                let plans = accounts.map(|account| {
                    let known = self.plans.iter().position(|(places, _)| *places == account.places);
                    if known.is_none() {
                        self.plans.push((account.places.clone(), account.plain()));
                    }
                    // the first is 1 in Lua
                    u16::try_from(known.map_or(self.plans.len(), |at| at + 1)).unwrap_or(u16::MAX)
                });
                let plans = plans.collect();
                self.kinds.push(Kind { callers: [caller].into_iter().collect(), plans });
            }
        }
    }

    /// The keys and the arguments of the script.
    pub(super) fn encode(&self) -> (Vec<&str>, Vec<Vec<u8>>) {
        let keys = self.kinds.iter().flat_map(|kind| &kind.question().accounts);
        let keys = keys.map(|account| account.address.as_str()).collect();
        let mut shape = Vec::new();
        for alike in self.kinds.chunk_by(Kind::is_alike) {
            let kind = &alike[0];
            let plans = kind.plans.iter().map(|plan| usize::from(*plan));
            let numbers = [alike.len(), kind.callers.len(), kind.plans.len()];
            for number in numbers.into_iter().chain(plans) {
                // batches are small
                shape.extend(u16::try_from(number).unwrap_or(u16::MAX).to_le_bytes());
            }
        }
        let plans = self.plans.iter().map(|(_, plan)| plan.clone());
        (keys, plans.chain([shape]).collect())
    }

    /// What the script answers; anything odd is an error.
    pub(super) fn read(&self, value: &Value) -> Result<Answers, RedisError> {
        let Value::BulkString(bytes) = value else { return Err(RedisError::reply("no string")) };
        let mut bytes = Bytes(bytes);
        let now = bytes.instant()?;
        let mut runs = Vec::with_capacity(self.kinds.len());
        for kind in &self.kinds {
            let mut left = kind.callers.len();
            while left > 0 {
                let run = Run::read(&mut bytes, kind.question(), now)?;
                let rest = left.checked_sub(run.callers);
                left = rest.ok_or_else(|| RedisError::reply("more answers than questions"))?;
                runs.push(run);
            }
        }
        bytes.end()?;
        Ok(Answers { now, runs })
    }

    /// Tells everybody its own decision.
    pub(super) fn tell(self, answers: &Answers) {
        let places = answers.runs.iter().flat_map(|run| (0..run.callers).map(move |at| (run, at)));
        for (caller, (run, at)) in self.callers().zip(places) {
            let decision = run.decision(&caller.question, answers.now, at);
            drop(caller.tell.send(Ok(decision)));
        }
    }

    /// All of them, equal ones beside each other.
    pub(super) fn callers(self) -> impl Iterator<Item = Waiting> {
        self.kinds.into_iter().flat_map(|kind| kind.callers)
    }
}

impl Answers {
    /// How many accounts were healed.
    pub(super) fn healed(&self) -> usize {
        let accounts = self.runs.iter().flat_map(|run| &run.accounts);
        accounts.filter(|seen| seen.healed).count()
    }
}

impl Kind {
    fn is_alike(&self, other: &Self) -> bool {
        self.callers.len() == other.callers.len() && self.plans == other.plans
    }

    fn question(&self) -> &Question {
        &self.callers[0].question
    }
}

impl Run {
    fn read(bytes: &mut Bytes<'_>, question: &Question, now: u64) -> Result<Self, RedisError> {
        let number = |bytes: &mut Bytes<'_>| {
            bytes.int::<2>().map(|number| usize::try_from(number).unwrap_or(usize::MAX))
        };
        let (callers, passed) = (number(bytes)?, number(bytes)?);
        if callers == 0 || passed > callers {
            return Err(RedisError::reply("a number that cannot be"));
        }
        let mut accounts = SmallVec::new();
        for account in &question.accounts {
            let seen = Seen::read(bytes, account, passed > 0)?;
            if passed > 0 && !seen.was_charged(passed, account, now) {
                return Err(RedisError::reply("charges that cannot be"));
            }
            accounts.push(seen);
        }
        Ok(Self { callers, passed, accounts })
    }

    /// What the caller at that place is told, as if it had asked by itself after those before it.
    fn decision(&self, question: &Question, now: u64, place: usize) -> Decision {
        let passes = place < self.passed;
        let seen = |(seen, account): (&Seen, &Account)| match self.passed.checked_sub(place + 1) {
            // it was charged before others
            Some(others) => seen.before(others, account),
            None => seen.clone().uncharged(),
        };
        let seen: SmallVec<[_; 2]> =
            self.accounts.iter().zip(&question.accounts).map(seen).collect();
        let seen: SmallVec<[_; 2]> = seen.iter().map(|seen| (now, seen)).collect();
        Reply::decision(question, &seen, passes)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::{runtime::Handle, sync::oneshot};

    use super::*;
    use crate::{
        key::Key,
        name::RuleName,
        quota::Quota,
        store::{Charge, redis::addresses::Addresses},
    };

    const NOW: u64 = 1_700_000_000_000_000;

    /// Two equal questions, and another of two quotas.
    fn batch() -> Batch {
        let (one, two) = (Key::from("one"), Key::from("two"));
        let quota = |units| Quota::new(units, Duration::from_secs(10)).expect("a quota");
        let (few, more) = ([quota(10)], [quota(10), quota(100)]);
        let mut batch = Batch::default();
        for charge in [
            Charge::new(RuleName::default(), &one, &few),
            Charge::new(RuleName::default(), &two, &more).cost(2),
            Charge::new(RuleName::default(), &one, &few),
        ] {
            let question = Box::new(Question::of(&[charge], &Addresses::new()));
            let (tell, _told) = oneshot::channel();
            batch.add(Waiting { question, tell, runtime: Handle::current() });
        }
        batch
    }

    fn instant(micros: u64) -> Vec<u8> {
        [&micros.to_le_bytes()[..7], &[0, 0]].concat()
    }

    /// A run: how many, how many passed, flags, and the TATs in microseconds from now.
    fn run(callers: u8, passed: u8, flags: u8, tats: &[u64]) -> Vec<u8> {
        let place = |tat: &u64| [&[b'g', 9, 0][..], &instant(NOW + tat)].concat();
        let places: Vec<_> = tats.iter().flat_map(place).collect();
        let account = [&NOW.to_le_bytes()[..7], &places].concat();
        let length = u32::try_from(account.len()).expect("short").to_le_bytes();
        [&[callers, 0, passed, 0, flags][..], &length, &account].concat()
    }

    fn answer(runs: &[Vec<u8>]) -> Value {
        Value::BulkString([instant(NOW), runs.concat()].concat())
    }

    #[tokio::test]
    async fn equal_questions_are_one_kind_and_plans_are_sent_once() {
        let batch = batch();
        let kinds: Vec<_> = batch.kinds.iter().map(|kind| kind.callers.len()).collect();
        assert_eq!(kinds, [2, 1]);
        let (keys, args) = batch.encode();
        assert_eq!((keys.len(), args.len()), (2, 3));
        // one kind, of two callers, with one account of the first plan; and the other
        let numbers = [1, 2, 1, 1, 1, 1, 1, 2_u16];
        assert_eq!(args[2], numbers.map(u16::to_le_bytes).concat());
    }

    #[tokio::test]
    async fn answers_that_cannot_be_are_errors() {
        let (batch, second) = (batch(), 1_000_000);
        let two = || run(1, 1, 1, &[2 * second, second / 5]);
        let fine = [run(2, 2, 1, &[2 * second]), two()];
        assert!(batch.read(&answer(&fine)).is_ok());
        assert!(batch.read(&answer(&[run(2, 0, 0, &[10 * second]), two()])).is_ok());
        assert!(
            batch.read(&answer(&[run(1, 1, 1, &[second]), run(1, 0, 0, &[second]), two()])).is_ok()
        );
        for (what, runs) in [
            ("nothing", vec![]),
            ("too few", vec![fine[0].clone()]),
            ("too many", vec![fine[0].clone(), two(), two()]),
            ("for more than asked", vec![run(3, 2, 1, &[2 * second]), two()]),
            ("for fewer than asked", vec![run(1, 1, 1, &[2 * second]), two()]),
            ("for nobody", vec![run(0, 0, 0, &[second]), fine[0].clone(), two()]),
            ("more passed than there are", vec![run(2, 3, 1, &[3 * second]), two()]),
            ("passed and not charged", vec![run(2, 2, 0, &[2 * second]), two()]),
            ("charged and not passed", vec![run(2, 0, 1, &[2 * second]), two()]),
            ("odd flags", vec![run(2, 2, 5, &[2 * second]), two()]),
            ("two charges of which one is missing", vec![run(2, 2, 1, &[2 * second - 1]), two()]),
            ("no place", vec![run(2, 2, 1, &[]), two()]),
            ("one place of two", vec![fine[0].clone(), run(1, 1, 1, &[2 * second])]),
        ] {
            assert!(batch.read(&answer(&runs)).is_err(), "{what}");
        }
        let Value::BulkString(bytes) = answer(&fine) else { unreachable!() };
        for cut in 0..bytes.len() {
            assert!(batch.read(&Value::BulkString(bytes[..cut].to_vec())).is_err(), "{cut}");
        }
        assert!(batch.read(&Value::BulkString([&bytes[..], b"x"].concat())).is_err());
        assert!(batch.read(&Value::Int(1)).is_err() && batch.read(&Value::Nil).is_err());
    }

    #[tokio::test]
    async fn noise_is_no_answer() {
        let batch = batch();
        let Value::BulkString(real) =
            answer(&[run(2, 1, 1, &[1_000_000]), run(1, 1, 1, &[2_000_000, 200_000])])
        else {
            unreachable!()
        };
        let mut state = 1_u64;
        let mut random = |below: usize| {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            usize::try_from(state >> 33).unwrap_or(0) % below
        };
        let mut read = 0;
        for _ in 0..50_000 {
            let mut bytes = real.clone();
            for _ in 0..=random(3) {
                let at = random(bytes.len());
                match random(4) {
                    0 => bytes[at] ^= 1 << random(8),
                    1 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][random(5)],
                    2 => bytes.insert(at, random(256).to_le_bytes()[0]),
                    _ => drop(bytes.remove(at)),
                }
            }
            // whatever is read can be told
            if let Ok(answers) = batch.read(&Value::BulkString(bytes)) {
                read += 1;
                for run in &answers.runs {
                    for at in 0..run.callers {
                        let kind =
                            batch.kinds.iter().find(|kind| kind.plans.len() == run.accounts.len());
                        let question = kind.expect("a kind").question();
                        let _ = run.decision(question, answers.now, at).remaining();
                    }
                }
            }
        }
        assert!(read > 1_000, "{read} were read");
    }
}

//! A random sequence of decisions, adjustments, damaged values and single commands.

use std::{sync::Arc, time::Duration};

use tower_sluice::{
    Decision, Key, Quota, RedisStore, Store, StoreExt, rule::RuleName, store::Charge,
    testing::Subject,
};

use super::{snippets, tee::Tee};
use crate::{quotas::quota, random::Random};

const NAMES: [&str; 3] = ["a", "b", "c"];

/// The state of one sequence.
pub struct Sequence {
    random: Random,
    tee: Tee,
    subject: RedisStore<Tee>,
    store: RedisStore<Tee>,
    /// `true` if the scripts use a clock that this sequence drives.
    driven: bool,
    now: Duration,
    rules: Vec<(RuleName, Vec<Quota>)>,
    taken: Vec<(Vec<Wanted>, Decision)>,
}

#[derive(Clone, Copy)]
struct Wanted {
    rule: usize,
    key: usize,
    cost: u32,
    headroom: u32,
    max_wait: Duration,
    only: Option<usize>,
}

impl Sequence {
    pub async fn new(seed: u64, tee: &Tee) -> Self {
        let mut random = Random::new(seed);
        tee.begin().await;
        let driven = random.percent(70);
        let plain =
            RedisStore::with_connection(tee.clone()).readable_keys().lazy().expect("a store");
        let mut subject = plain.clone();
        let store = if driven { subject.open() } else { plain };
        let rules = NAMES.iter().map(|name| {
            let quotas = (0..random.within(1..4)).map(|_| quota(&mut random, 100)).collect();
            (RuleName::new(name).expect("a name"), quotas)
        });
        let rules = rules.collect();
        let now = Duration::from_micros(random.within(0..2_000_000_000_000_000));
        subject.set(now);
        let tee = tee.clone();
        Self { random, tee, subject, store, driven, now, rules, taken: Vec::new() }
    }

    /// Runs all steps, then compares all keys. Returns `false` if it ended early.
    pub async fn run(mut self) -> bool {
        for _ in 0..self.random.within(5..30) {
            self.step().await;
            if self.tee.is_over() {
                return false;
            }
        }
        for key in self.tee.node_keys() {
            let left = self.tee.send(&[b"PTTL".to_vec(), key.clone()]).await;
            if matches!(left, Some(redis::Value::Int(left)) if left == -1 || left > 1_000) {
                self.tee.send(&[b"GET".to_vec(), key.clone()]).await;
                self.tee.send(&[&b"LRANGE"[..], &key, b"0", b"-1"].map(<[u8]>::to_vec)).await;
                let set = [&b"ZRANGE"[..], &key, b"0", b"-1", b"WITHSCORES"];
                self.tee.send(&set.map(<[u8]>::to_vec)).await;
            }
        }
        self.tee.compare_keys().await;
        !self.tee.is_over()
    }

    async fn step(&mut self) {
        match self.random.within(0..100) {
            0..15 => self.pass(),
            15..50 => self.take().await,
            50..58 => self.adjust().await,
            58..64 => self.undo().await,
            64..70 => self.block_or_reset().await,
            70..76 => self.many().await,
            76..82 => self.damage().await,
            82..90 => snippets::eval(&mut self.random, &self.tee).await,
            _ => snippets::command(&mut self.random, &self.tee).await,
        }
    }

    fn pass(&mut self) {
        let longest = self.rules.iter().flat_map(|(_, quotas)| quotas).map(Quota::period).max();
        let longest = u64::try_from(longest.unwrap_or_default().as_micros()).unwrap_or(0);
        let step = longest * *self.random.pick(&[0, 3, 10, 40, 110]) / 100;
        let step = Duration::from_nanos(step * 1_000 + self.random.within(0..2_000));
        // The clock steps back at times.
        let back = self.random.percent(10);
        self.now = if back { self.now.saturating_sub(step) } else { self.now + step };
        self.subject.set(self.now);
    }

    fn wanted(&mut self) -> Vec<Wanted> {
        let mut all = Vec::<Wanted>::new();
        let random = &mut self.random;
        for rule in 0..self.rules.len() {
            if all.is_empty() || random.percent(25) {
                let rule = if all.is_empty() { random.below(3) } else { rule };
                all.retain(|it| it.rule != rule);
                let cost = *random.pick(&[0, 1, 1, 1, 2, 3, 7, 20]);
                let headroom = *random.pick(&[0, 0, 0, 1, 3]);
                let max_wait = Duration::from_nanos(*random.pick(&[0, 0, 1_000_000, 3_000_000]));
                let only = random.percent(10).then(|| random.below(self.rules[rule].1.len()));
                all.push(Wanted { rule, key: random.below(2), cost, headroom, max_wait, only });
            }
        }
        all
    }

    /// Calls `run` with the charges of `wanted`.
    async fn with<T>(&self, wanted: &[Wanted], run: impl AsyncFnOnce(&[Charge<'_>]) -> T) -> T {
        let keys = [Key::from("one"), Key::from("two")];
        let charge = |it: &Wanted| {
            let (name, quotas) = &self.rules[it.rule];
            let charge = Charge::new(*name, &keys[it.key], quotas);
            let charge = it.only.map_or(charge, |only| charge.with_quota_index(only));
            let charge = charge.with_cost(it.cost).with_headroom(it.headroom);
            let patient = charge.with_max_wait(it.max_wait);
            if self.store.supports(&[patient]).is_ok() { patient } else { charge }
        };
        run(&wanted.iter().map(charge).collect::<Vec<_>>()).await
    }

    async fn take(&mut self) {
        let wanted = self.wanted();
        let decision = self.with(&wanted, async |charges| self.store.take(charges).await).await;
        if let Ok(decision) = decision
            && decision.is_allowed()
        {
            self.taken.push((wanted, decision));
        }
    }

    async fn adjust(&mut self) {
        let (wanted, units) = (self.wanted(), self.random.within(0..24).cast_signed() - 12);
        let adjust = async |charges: &[Charge<'_>]| self.store.adjust(&charges[0], units).await;
        drop(self.with(&wanted[..1], adjust).await);
    }

    async fn undo(&mut self) {
        if self.taken.is_empty() {
            return;
        }
        let (wanted, decision) = self.taken.swap_remove(self.random.below(self.taken.len()));
        let units = *self.random.pick(&[None, None, Some(1), Some(5)]);
        let undo = async |charges: &[Charge<'_>]| self.store.undo(charges, &decision, units);
        self.with(&wanted, undo).await;
        if self.driven {
            self.subject.finish(&self.store).await;
        } else {
            // Both sides still run one command after another.
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    async fn block_or_reset(&mut self) {
        let (wanted, kind) = (self.wanted(), self.random.within(0..3));
        let time = Duration::from_micros(self.random.within(0..5_000));
        let change = async |charges: &[Charge<'_>]| match kind {
            0 => self.store.block(&charges[0], time).await.is_ok(),
            1 => self.store.unblock(&charges[0]).await.is_ok(),
            _ => self.store.reset(&charges[0]).await.is_ok(),
        };
        self.with(&wanted[..1], change).await;
    }

    /// Sends more decisions at once than are sent singly, so that the rest share a script call.
    async fn many(&mut self) {
        let quotas: Arc<[Quota]> = match self.random.percent(50) {
            true => [Quota::per_second(3)].into(),
            false => [Quota::per_second(2), Quota::per_hour(30)].into(),
        };
        let count = self.random.within(18..40);
        let tasks: Vec<_> = (0..count)
            .map(|_| {
                let (store, quotas) = (self.store.clone(), quotas.clone());
                let cost = *self.random.pick(&[1, 1, 2]);
                let key = Key::from(*self.random.pick(&["x", "y", "z"]));
                tokio::spawn(async move {
                    let rule = RuleName::new("many").expect("a name");
                    drop(store.take(&[Charge::new(rule, &key, &quotas).with_cost(cost)]).await);
                })
            })
            .collect();
        for task in tasks {
            drop(task.await);
        }
    }

    /// Damages a value, or replaces it by another type.
    async fn damage(&mut self) {
        let keys = self.tee.node_keys();
        if keys.is_empty() {
            return;
        }
        let key = self.random.pick(&keys).clone();
        let Some(redis::Value::BulkString(mut value)) =
            self.tee.send(&[b"GET".to_vec(), key.clone()]).await
        else {
            let foreign = self.random.bytes(14);
            self.tee.send(&[b"LSET".to_vec(), key, b"0".to_vec(), foreign]).await;
            return;
        };
        let (at, byte) = (self.random.below(value.len().max(1)), self.random.bytes(1));
        match self.random.within(0..4) {
            0 => value.truncate(at),
            1 => value.extend(byte),
            2 => {
                self.tee.send(&[b"DEL".to_vec(), key.clone()]).await;
                self.tee.send(&[b"RPUSH".to_vec(), key, value]).await;
                return;
            }
            _ => value.iter_mut().skip(at).take(1).for_each(|it| *it = byte[0]),
        }
        self.tee.send(&[b"PSETEX".to_vec(), key, b"60000".to_vec(), value]).await;
    }
}

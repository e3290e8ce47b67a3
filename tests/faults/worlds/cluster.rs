//! A cluster that loses a master, changes one, or moves slots.

use std::{collections::BTreeSet, time::Duration};

use tokio::time::Instant;

use super::key_at;
use crate::{
    app::App,
    fault::{Fault, Findings, Must, World},
    log::Entry,
    options::Options,
    servers::Cluster,
    stack::{APPS, BURST, Door},
    stage::Ran,
};

const ERRORS: &[&str] = &["budget", "timeout", "disconnected", "cluster", "replica", "other"];

pub(crate) fn faults() -> Vec<Fault> {
    vec![
        Fault::new(
            "cluster: master killed",
            "its keys are back within a second of the promotion; at most the lost burst and the \
             fallback's above the limit",
            Must::policy(2 * BURST, ERRORS),
            async |options| Changed::start(options, Change::Kill).await,
        ),
        Fault::new(
            "cluster: master frozen",
            "as killed",
            Must::policy(2 * BURST, ERRORS),
            async |options| Changed::start(options, Change::Freeze).await,
        ),
        Fault::new(
            "cluster: failover",
            "at most the fallback's burst and one on return above the limit",
            Must::policy(2 * BURST, ERRORS).may_pass(),
            async |options| Changed::start(options, Change::Failover).await,
        ),
        Fault::new(
            "cluster: shard lost",
            "Redis decides at least 99 % of the requests for the other keys; few requests for the \
             slots; at most the lost burst and the fallback's above the limit",
            Must::policy(2 * BURST, ERRORS),
            async |options| Changed::start(options, Change::Lose).await,
        ),
        Fault::new("cluster: slots move", "no visible effect", Must::UNNOTICED, async |options| {
            Changed::start(options, Change::Slots).await
        }),
    ]
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Kill,
    Freeze,
    Failover,
    /// The master and its replica are killed.
    Lose,
    Slots,
}

struct Changed {
    cluster: Cluster,
    change: Change,
    /// Keys whose accounts are on the changed server.
    keys: BTreeSet<u16>,
    /// The requests for the slots that the other masters received during the fault.
    refreshes: u64,
    done: String,
}

impl Changed {
    async fn start(options: &Options, change: Change) -> Self {
        let cluster = Cluster::start(options.flavour()).await;
        Self { cluster, change, keys: BTreeSet::new(), refreshes: 0, done: String::new() }
    }

    /// Moves the slots of accounts, one after another.
    async fn move_slots(&mut self, addresses: &[String], end: Instant) {
        let (mut moved, start) = (0, Instant::now());
        for address in addresses {
            let slot = self.cluster.slot_of(address).await;
            let migration = self.cluster.begin_migration(slot, 1).await;
            // Some keys have moved and some have not.
            tokio::time::sleep(Duration::from_millis(50)).await;
            migration.move_keys().await;
            tokio::time::sleep(Duration::from_millis(50)).await;
            migration.move_keys().await;
            migration.finish().await;
            moved += 1;
            if Instant::now() >= end {
                break;
            }
        }
        self.done = format!("{moved} slots moved in {:.1?}", start.elapsed());
    }

    /// Returns how often the masters that stay were asked for the slots so far.
    async fn refreshes(&self) -> u64 {
        let mut all = 0;
        for node in &self.cluster.nodes()[1..3] {
            let stats: String = node.command("INFO commandstats").await;
            let line = stats.lines().find(|line| line.starts_with("cmdstat_cluster|slots:"));
            let calls = line.and_then(|line| line.split("calls=").nth(1)?.split(',').next());
            all += calls.map_or(0, |calls| calls.parse::<u64>().expect("a number"));
        }
        all
    }

    /// Checks the decisions on the keys of the other servers, and the requests for the slots.
    fn look_at_others(&self, ran: &Ran) -> Findings {
        let during = |entry: &&Entry| (ran.struck..ran.healed).contains(&entry.asked);
        let entries = ran.entries().map(|(_, entry)| entry).filter(during);
        let others: Vec<_> = entries.filter(|entry| !self.keys.contains(&entry.key)).collect();
        let decided = others.iter().filter(|entry| entry.is_from_redis()).count();
        let text = format!("Redis decided {decided} of {} about the other keys", others.len());
        let most = APPS as u64 * (10 + 4 * (ran.healed - ran.struck).as_secs());
        let asked = format!("{} requests for the slots", self.refreshes);
        let findings = Findings::default().note(text.clone()).note(asked.clone());
        // A machine that stalls delays all servers.
        let stalled = ran.logs.iter().any(|log| !log.stalled().is_zero());
        let holds = stalled || decided * 100 >= others.len() * 99;
        let findings = findings.demand(holds, text);
        findings.demand(self.refreshes <= most, asked)
    }

    /// Returns the longest time without a decision of Redis about any key of another server.
    fn longest_gap(&self, ran: &Ran) -> Duration {
        let elsewhere = |entry: &&Entry| entry.is_from_redis() && !self.keys.contains(&entry.key);
        let mut longest = Duration::ZERO;
        for log in &ran.logs {
            let mut times: Vec<_> =
                log.entries.iter().filter(elsewhere).map(|entry| entry.answered).collect();
            times.sort_unstable();
            longest = times.windows(2).map(|pair| pair[1] - pair[0]).fold(longest, Ord::max);
        }
        longest
    }
}

impl World for Changed {
    fn door(&self, _: usize) -> Door {
        Door::Cluster(self.cluster.urls())
    }

    fn ends_itself(&self) -> bool {
        self.change != Change::Lose
    }

    async fn strike(&mut self, _: &[App], end: Instant) {
        let addresses: Vec<String> = self.cluster.nodes()[0].command("KEYS sluice:4:*").await;
        self.keys = addresses.iter().filter_map(|address| key_at(address)).collect();
        let (first, start) = (addresses[0].clone(), Instant::now());
        match self.change {
            Change::Kill => {
                self.cluster.node_mut(0).kill();
                self.cluster.master_of(&first).await;
                self.done = format!("promoted after {:.1?}", start.elapsed());
            }
            Change::Freeze => {
                self.cluster.nodes()[0].stop();
                self.cluster.master_of(&first).await;
                self.done = format!("promoted after {:.1?}", start.elapsed());
            }
            Change::Failover => {
                self.cluster.failover(&first).await;
                self.done = format!("all nodes knew after {:.1?}", start.elapsed());
            }
            Change::Lose => {
                self.refreshes = self.refreshes().await;
                [0, 3].into_iter().for_each(|node| self.cluster.node_mut(node).kill());
            }
            Change::Slots => self.move_slots(&addresses, end).await,
        }
    }

    async fn heal(&mut self) {
        if self.change == Change::Lose {
            self.refreshes = self.refreshes().await - self.refreshes;
            self.cluster.node_mut(0).restart().await;
            self.cluster.healthy().await;
        }
    }

    async fn look(&mut self, ran: &Ran) -> Findings {
        if self.change == Change::Lose {
            return self.look_at_others(ran);
        }
        let gap = self.longest_gap(ran);
        let astray = ran.entries().filter(|(_, entry)| {
            !entry.is_from_redis() && self.keys.contains(&entry.key) && entry.answered > ran.struck
        });
        let outage = astray.map(|(_, entry)| entry.answered - ran.struck).max().unwrap_or_default();
        Findings::default()
            .note(self.done.clone())
            .note(format!("{} keys there, for {outage:.0?} not all by Redis", self.keys.len()))
            .note(format!("no decision of Redis about the other keys for {gap:.0?} at most"))
    }
}

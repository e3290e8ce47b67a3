//! Probes check the permissions, the version and the settings of the server before the first
//! request.

use std::{sync::atomic::Ordering::Relaxed, time::Instant};

use futures_util::future::{join, join_all};
use redis::{Cmd, Value, aio::ConnectionLike};

use crate::{
    key::Key,
    name::RuleName,
    quota::{Algorithm, Quota},
    store::{
        Charge, Health,
        redis::{
            RedisStore, SLOT_TTL,
            cluster::ClusterLink,
            error::{RedisError, RedisErrorKind},
            protocol::{
                request::{Request, ScriptOp},
                script::ScriptKind,
            },
            slots::SlotChange,
        },
    },
};

/// The commands that a user of the store must be permitted to run.
const PERMISSIONS: &str = "+eval +evalsha +time +get +mget +exists +psetex +del +pttl +pexpire \
                           +lindex +lrange +lset +rpush +lpop +rpop +lrem +zadd +zrem +zrange \
                           +zcount +zmscore +info +select +script|load";
/// The additional commands for a cluster.
const CLUSTER_PERMISSIONS: &str = " +cluster|slots +asking";
const MIN_VERSION: [u32; 2] = [6, 2];

/// The result of a [probe](RedisStore::probe).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Probe {
    /// The version of the server, if it reports one. Valkey reports the Redis version that it is
    /// compatible with.
    pub version: Option<String>,
    /// Settings that may cause wrong decisions, and masters that cannot be reached, as text.
    pub warnings: Vec<String>,
}

impl<C> RedisStore<C>
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    /// Runs the scripts on a separate key and reads the settings of the server.
    ///
    /// On a cluster, probes each master. A master that cannot be reached is a warning. The probe
    /// fails if no master can be reached.
    ///
    /// # Errors
    ///
    /// Returns an error if the server cannot be reached, is a replica, is older than Redis 6.2, or
    /// does not permit the commands of the scripts. The text lists the commands to permit.
    pub async fn probe(&self) -> Result<Probe, RedisError> {
        // The first batch finds out.
        self.shared.lacks_msetex.store(false, Relaxed);
        let mut info = Cmd::new();
        info.arg("INFO");
        let probe = async { self.probe_scripts().await.map_err(|error| self.with_fix(error)) };
        let rest = join(self.load_scripts(), self.send(&info));
        // A server that does not reply costs one timeout in all.
        let (mut probe, ((), info)) = match self.cluster_link() {
            None => (probe.await?, rest.await),
            Some(_) => {
                let (probe, rest) = join(probe, rest).await;
                (probe?, rest)
            }
        };
        // The store also works if the user has no permission for INFO.
        for text in info_texts(&info.unwrap_or(Value::Nil)) {
            let Probe { version, warnings } = report(&text)?;
            probe.version = probe.version.or(version);
            let new = warnings.into_iter().filter(|it| !probe.warnings.contains(it));
            probe.warnings.extend(new.collect::<Vec<_>>());
        }
        Ok(probe)
    }

    /// Runs the scripts on each server. Returns a warning for each server that cannot be reached.
    async fn probe_scripts(&self) -> Result<Probe, RedisError> {
        let Some(cluster) = self.cluster_link() else {
            self.probe_key(&Key::everyone()).await?;
            return Ok(Probe::default());
        };
        let keys = cluster.key_per_server(|key| self.addresses().account(rule(), key)).await?;
        let (mut warnings, mut missing) = (Vec::new(), None);
        let probes = keys.iter().map(|(_, key)| self.probe_key(key));
        for (probed, (server, _)) in join_all(probes).await.into_iter().zip(&keys) {
            match probed {
                Err(error) if error.kind().is_absence() => {
                    warnings.push(format!("{server}: {error}; the requests for its keys fail"));
                    missing = Some(error);
                }
                probed => probed?,
            }
        }
        let all_missing = missing.filter(|_| warnings.len() == keys.len());
        all_missing.map_or(Ok(Probe { version: None, warnings }), Err)
    }

    async fn probe_key(&self, key: &Key) -> Result<(), RedisError> {
        self.probe_batch(key).await?;
        let log = Quota::per_second(1).algorithm(Algorithm::SlidingLog);
        let quotas = [Quota::per_second(1), log, Quota::concurrent(u32::MAX)];
        let request = Request::new(&[Charge::new(rule(), key, &quotas)], self.addresses());
        // A store of its own, which renews and frees no other slots.
        let store = self.clone().with_slot_ttl(SLOT_TTL);
        let taken = store.execute(&request, ScriptOp::Take).await?;
        store.change_all(SlotChange::Renew).await?;
        drop(taken);
        store.change_all(SlotChange::Free).await?;
        store.execute(&request, ScriptOp::Refund(1)).await.map(drop)
    }

    /// Runs a batch of two requests, to check the permissions of batches.
    async fn probe_batch(&self, key: &Key) -> Result<(), RedisError> {
        if !self.settings.coalesces {
            return Ok(());
        }
        let quotas = [Quota::per_second(1_000)];
        let charge = Charge::new(rule(), key, &quotas);
        let request = |cost| Request::new(&[charge.with_cost(cost)], self.addresses());
        self.take_together([1, 2].map(request)).await?;
        // Without units, the key is deleted.
        self.execute(&request(0), ScriptOp::Refund(3)).await.map(drop)
    }

    /// Loads the most common scripts on every server, to save a round trip later.
    async fn load_scripts(&self) {
        let kinds = [ScriptKind::Plain, ScriptKind::Batch, ScriptKind::Adjust];
        join_all(kinds.map(async |kind| {
            let mut load = Cmd::new();
            load.arg("SCRIPT").arg("LOAD").arg(&self.script(kind, [b'g']).text);
            // Without this permission, the first request of each kind sends its script.
            drop(self.send(&load).await);
        }))
        .await;
    }

    /// Appends a suggested fix to an error.
    fn with_fix(&self, error: RedisError) -> RedisError {
        with_fix(error, &self.addresses().prefix, self.settings.sharded)
    }
}

/// Reads the probe's account, and returns the health of the store.
pub(crate) async fn health<C>(store: RedisStore<C>) -> Health
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    let started = Instant::now();
    let (key, quotas) = (Key::everyone(), [Quota::per_second(1)]);
    let look = Charge::new(rule(), &key, &quotas).with_cost(0);
    let healed = match store.healed() {
        0 => String::new(),
        n => format!("; {n} accounts were invalid and have been replaced"),
    };
    let failing = store.cluster_link().map(ClusterLink::failing).unwrap_or_default();
    match store.take(&[look]).await {
        Ok(_) if !failing.is_empty() => {
            Health::failing("redis", format!("failing servers: {}", failing.join(", ")))
        }
        Ok(_) => Health::healthy("redis", format!("answered in {:?}{healed}", started.elapsed())),
        Err(error) => Health::failing("redis", error.to_string()),
    }
}

fn rule() -> RuleName {
    RuleName::new("sluice probe").unwrap_or_default()
}

/// Appends a suggested fix to an error. `sharded` selects the text for a cluster.
pub(crate) fn with_fix(error: RedisError, prefix: &str, sharded: bool) -> RedisError {
    let text = error.to_string();
    match error.kind() {
        RedisErrorKind::Replica => error.with_fix("give the address of the primary"),
        RedisErrorKind::Denied if text.contains("uthentication") || text.contains("WRONGPASS") => {
            error.with_fix("check the user and password in the address")
        }
        RedisErrorKind::Denied => {
            let more = if sharded { CLUSTER_PERMISSIONS } else { "" };
            error
                .with_fix(&format!("permit it: ACL SETUSER <user> ~{prefix}:* {PERMISSIONS}{more}"))
        }
        _ => error,
    }
}

/// Returns the text of an INFO reply. On a cluster, returns the texts of all servers.
fn info_texts(value: &Value) -> Vec<String> {
    match value {
        Value::BulkString(bytes) => vec![String::from_utf8_lossy(bytes).into_owned()],
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => vec![text.clone()],
        Value::Array(values) => values.iter().flat_map(info_texts).collect(),
        Value::Map(pairs) => pairs.iter().flat_map(|(_, value)| info_texts(value)).collect(),
        _ => Vec::new(),
    }
}

fn report(info: &str) -> Result<Probe, RedisError> {
    let field = |name: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.map(|value| value.trim().to_owned())
    };
    let version = field("redis_version");
    let number = |text: &String| {
        let mut parts = text.split('.').map_while(|part| part.parse::<u32>().ok());
        Some([parts.next()?, parts.next()?])
    };
    if let Some(version) =
        version.as_ref().filter(|it| number(it).is_some_and(|it| it < MIN_VERSION))
    {
        let [major, minor] = MIN_VERSION;
        let text = format!("the server is Redis {version}; {major}.{minor} or later is needed");
        return Err(RedisError::new(RedisErrorKind::Config, text));
    }
    let mut warnings = Vec::new();
    if let Some(policy) = field("maxmemory_policy")
        && policy.starts_with("allkeys")
    {
        warnings.push(format!(
            "maxmemory-policy is {policy}: a server out of memory evicts accounts, and their keys \
             get a fresh quota; set noeviction or volatile-ttl"
        ));
    }
    Ok(Probe { version, warnings })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_servers_are_errors_and_eviction_is_a_warning() {
        let old = report("redis_version:5.0.7\r\n").unwrap_err().to_string();
        assert!(old.contains("Redis 5.0.7") && old.contains("6.2 or later"), "{old}");
        assert!(report("redis_version:6.0.16\r\n").is_err());
        let report = |text| report(text).expect("a good server");
        let evicting = report("redis_version:7.0.15\r\nmaxmemory_policy:allkeys-lru\r\n");
        assert!(evicting.warnings[0].contains("allkeys-lru"), "{evicting:?}");
        assert_eq!(report("redis_version:6.2.0").warnings, [""; 0]);
        assert_eq!(report("redis_version:7.2.4\r\nmaxmemory_policy:noeviction").warnings, [""; 0]);
        assert_eq!(report("gibberish"), Probe::default());
    }

    #[test]
    fn the_guide_lists_the_same_commands() {
        let guide = include_str!("../../../guide/redis.md");
        let guide = guide.split_whitespace().collect::<Vec<_>>().join(" ");
        for permissions in [PERMISSIONS, CLUSTER_PERMISSIONS.trim()] {
            assert!(guide.contains(permissions), "src/guide/redis.md lacks {permissions}");
        }
    }
}

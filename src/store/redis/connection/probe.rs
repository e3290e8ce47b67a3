//! Probes check the permissions, the version and the settings of the server before the first
//! request.

use std::{sync::atomic::Ordering::Relaxed, time::Instant};

use futures_util::future::{join_all, join3};
use redis::{Cmd, InfoDict, RedisResult, Value, aio::ConnectionLike, cmd, from_redis_value};

use crate::{
    key::Key,
    name::RuleName,
    quota::Quota,
    store::{
        Charge, Health, Op, Store,
        redis::{
            RedisStore,
            cluster::ClusterLink,
            error::{RedisError, RedisErrorKind},
            protocol::script::ScriptKind,
        },
    },
};

/// The commands that a user of the store must be permitted to run.
const PERMISSIONS: &str = "+eval +evalsha +time +get +mget +exists +psetex +del +pttl +pexpire \
                           +lindex +lrange +lset +rpush +lpop +lrem +zadd +zrem +zrange +zcount \
                           +zmscore +info +select +script|load";
/// The additional commands for a cluster.
const CLUSTER_PERMISSIONS: &str = " +cluster|slots +asking";
const MIN_VERSION: (u32, u32) = (6, 2);

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

impl<C: ConnectionLike + Clone + Send + Sync + 'static> RedisStore<C> {
    /// Reads the settings of the server, and runs the commands of the scripts on a separate key.
    ///
    /// On a cluster, reads the settings of each master. A master that cannot be reached is a warning.
    /// The probe fails if no master can be reached.
    ///
    /// # Errors
    ///
    /// Returns an error if the server cannot be reached, is a replica, is older than Redis 6.2, or
    /// does not permit the commands of the scripts. The text lists the commands to permit.
    pub async fn probe(&self) -> Result<Probe, RedisError> {
        // The first batch finds out.
        self.shared.lacks_msetex.store(false, Relaxed);
        let info = cmd("INFO");
        let key = [self.settings.addresses.account(rule(), &Key::everyone())];
        let script = self.run(self.script(ScriptKind::Probe, []), &key, Vec::new());
        // A server that does not reply costs one timeout in all.
        let (infos, ran, ()) = join3(self.on_all(&info), script, self.load_scripts()).await;
        let (mut probe, servers, mut missing) = (Probe::default(), infos.len(), 0);
        for (server, info) in infos {
            match info.and_then(|info| Ok(from_redis_value(info)?)).map_err(RedisError::from) {
                Ok(info) => probe.add(&info)?,
                Err(error) if error.kind().is_absence() => {
                    let warning = format!("{server}: {error}; the requests for its keys fail");
                    probe.warnings.push(warning);
                    missing += 1;
                }
                // The store also works if the user has no permission for INFO.
                Err(_) => {}
            }
        }
        match ran {
            // The key of the probe may be on a server that the warnings name.
            Err(error) if !(error.kind().is_absence() && (1..servers).contains(&missing)) => {
                Err(self.with_fix(error))
            }
            _ => Ok(probe),
        }
    }

    /// Loads the most common scripts, so that later calls take one round trip.
    async fn load_scripts(&self) {
        let kinds = [ScriptKind::Plain, ScriptKind::Batch, ScriptKind::Adjust];
        join_all(kinds.map(async |kind| {
            let mut load = cmd("SCRIPT");
            self.on_all(load.arg("LOAD").arg(&self.script(kind, [b'g']).text)).await
        }))
        .await;
    }

    /// Sends a command to the server, or to each master. Returns the replies with the addresses.
    async fn on_all(&self, command: &Cmd) -> Vec<(String, RedisResult<Value>)> {
        match self.cluster_link() {
            Some(cluster) => cluster.call_all(command).await,
            None => vec![(String::new(), self.send(command).await)],
        }
    }

    /// Appends a suggested fix to an error.
    fn with_fix(&self, error: RedisError) -> RedisError {
        let text = error.to_string();
        let is_login = ["uthentication", "WRONGPASS"].iter().any(|word| text.contains(word));
        match error.kind() {
            RedisErrorKind::Replica => error.with_fix("give the address of the primary"),
            RedisErrorKind::Denied if is_login => {
                error.with_fix("check the user and password in the address")
            }
            RedisErrorKind::Denied => {
                let prefix = &self.settings.addresses.prefix;
                let more = if self.settings.sharded { CLUSTER_PERMISSIONS } else { "" };
                let fix = format!("permit it: ACL SETUSER <user> ~{prefix}:* {PERMISSIONS}{more}");
                error.with_fix(&fix)
            }
            _ => error,
        }
    }

    /// Reads the probe's account, and returns the health of the store.
    pub(crate) async fn look(self) -> Health {
        let started = Instant::now();
        let (key, quotas) = (Key::everyone(), [Quota::per_second(1)]);
        let look = Charge::new(rule(), &key, &quotas).with_cost(0);
        let failing = self.cluster_link().map(ClusterLink::failing).unwrap_or_default();
        match self.call(Op::Take(&[look])).await {
            Ok(_) if !failing.is_empty() => {
                Health::failing("redis", format!("failing servers: {}", failing.join(", ")))
            }
            Ok(_) => {
                let healed = match self.healed() {
                    0 => String::new(),
                    n => format!("; {n} accounts were invalid and have been replaced"),
                };
                Health::healthy("redis", format!("answered in {:?}{healed}", started.elapsed()))
            }
            Err(error) => Health::failing("redis", error.to_string()),
        }
    }
}

fn rule() -> RuleName {
    RuleName::new("sluice probe").unwrap_or_default()
}

impl Probe {
    /// Adds the settings of a server.
    fn add(&mut self, info: &InfoDict) -> Result<(), RedisError> {
        if let Some(version) = info.get::<String>("redis_version") {
            let mut numbers = version.split('.').map_while(|part| part.parse::<u32>().ok());
            if let (Some(major), Some(minor)) = (numbers.next(), numbers.next())
                && (major, minor) < MIN_VERSION
            {
                let (major, minor) = MIN_VERSION;
                let text =
                    format!("the server is Redis {version}; {major}.{minor} or later is needed");
                return Err(RedisError::new(RedisErrorKind::Config, text));
            }
            self.version.get_or_insert(version);
        }
        let policy = info.get::<String>("maxmemory_policy");
        if let Some(policy) = policy.filter(|policy| policy.starts_with("allkeys")) {
            let warning = format!(
                "maxmemory-policy is {policy}: a server out of memory evicts accounts, and their \
                 keys get a fresh quota; set noeviction or volatile-ttl"
            );
            if !self.warnings.contains(&warning) {
                self.warnings.push(warning);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_servers_are_errors_and_eviction_is_a_warning() {
        let report = |text| {
            let mut probe = Probe::default();
            probe.add(&InfoDict::new(text)).map(|()| probe)
        };
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

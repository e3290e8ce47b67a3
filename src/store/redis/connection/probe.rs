//! Probes, which check the permissions, the version and the settings of the server before the first
//! request.

use std::time::Instant;

use futures_util::future::{join, join_all};
use redis::{Cmd, InfoDict, RedisResult, Value, aio::ConnectionLike, cmd, from_redis_value};

use crate::{
    decision::Source,
    key::Key,
    name::RuleName,
    quota::Quota,
    store::{
        Charge, Context, Health, Op, Store,
        redis::{
            RedisStore,
            cluster::ClusterLink,
            error::{RedisError, RedisErrorKind},
            protocol::script::ScriptKind,
        },
    },
};

impl<C: ConnectionLike + Clone + Send + Sync + 'static> RedisStore<C> {
    /// Reads the settings of the server, and runs the commands of the scripts on a separate key.
    ///
    /// Returns warnings: settings that may cause wrong decisions, and masters that cannot be reached.
    ///
    /// On a cluster, reads the settings of each master. A master that cannot be reached is a warning.
    /// The probe fails if no master can be reached.
    ///
    /// # Errors
    ///
    /// Returns an error if the server cannot be reached, is a replica, is older than Redis 6.2, is
    /// Garnet, or does not permit the commands of the scripts. The text lists the commands to permit.
    pub async fn probe(&self) -> Result<Vec<String>, RedisError> {
        // A server that does not reply costs one timeout in all.
        let (infos, ran) = join(self.on_all(&cmd("INFO")), self.run_probe()).await;
        let servers = infos.len();
        let mut findings = Findings::default();
        for (server, info) in infos {
            let info = info.and_then(|info| Ok(from_redis_value(info)?));
            findings.add(&server, info.map_err(RedisError::from))?;
        }
        match ran {
            // The key of the probe may be on a server that the warnings name.
            Err(error)
                if !(error.kind().is_absence() && (1..servers).contains(&findings.missing)) =>
            {
                Err(self.with_fix(error))
            }
            _ => Ok(findings.warnings),
        }
    }

    async fn run_probe(&self) -> Result<(), RedisError> {
        let key = [self.settings.addresses.account(rule(), &Key::everyone())];
        let script = self.script(ScriptKind::Probe, []);
        self.run(script, &key, Vec::new(), Ok).await?;
        // Redis closes a connection without a login that sends 16 KiB or more.
        self.load_scripts().await;
        Ok(())
    }

    /// Loads the most common scripts, so that later calls take one round trip.
    async fn load_scripts(&self) {
        let kinds = [ScriptKind::Plain, ScriptKind::Adjust];
        join_all(kinds.map(async |kind| {
            let mut load = cmd("SCRIPT");
            self.on_all(load.arg("LOAD").arg(&self.script(kind, [b'g']).text))
                .await
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
        let is_login = ["uthentication", "WRONGPASS"]
            .iter()
            .any(|word| text.contains(word));
        match error.kind() {
            RedisErrorKind::Replica => error.with_fix("give the address of the primary"),
            RedisErrorKind::Denied if is_login => error.with_fix("check the user and password"),
            RedisErrorKind::Denied => {
                let prefix = &self.settings.addresses.prefix;
                let more = if self.settings.sharded {
                    CLUSTER_PERMISSIONS
                } else {
                    ""
                };
                let fix = format!("permit it: ACL SETUSER <user> ~{prefix}:* {PERMISSIONS}{more}");
                error.with_fix(&fix)
            }
            _ => error,
        }
    }

    /// Reads the probe's account, and returns the health of the store.
    pub(crate) async fn look(self) -> Health {
        let started = Instant::now();
        let key = Key::everyone();
        let quotas = [Quota::per_second(1)];
        let look = Charge::new(rule(), &key, &quotas).with_cost(0);
        let failing = self
            .cluster_link()
            .map(ClusterLink::failing)
            .unwrap_or_default();
        match self.call(Op::Take(&[look]), &Context::default()).await {
            Ok(decision) if decision.source() != Source::Busy => {}
            Ok(_) => return Health::failing("redis", "this process or the server is too busy"),
            Err(error) => return Health::failing("redis", error.to_string()),
        }
        if !failing.is_empty() {
            return Health::failing("redis", format!("failing servers: {}", failing.join(", ")));
        }
        let healed = match self.healed() {
            0 => String::new(),
            n => format!("; {n} accounts were invalid and have been replaced"),
        };
        let took = started.elapsed();
        Health::healthy("redis", format!("answered in {took:?}{healed}"))
    }
}

/// The commands that a user of the store must be permitted to run.
const PERMISSIONS: &str = "+eval +evalsha +time +get +mget +exists +psetex +del +pttl +pexpire \
                           +lindex +lrange +lset +rpush +lpop +lrem +zadd +zrem +zrange +zcard \
                           +zcount +zmscore +info +select +script|load";
/// The additional commands for a cluster.
const CLUSTER_PERMISSIONS: &str = " +cluster|slots +asking";
const MIN_VERSION: [u32; 2] = [6, 2];

fn rule() -> RuleName {
    RuleName::new("sluice probe").unwrap_or_default()
}

/// Findings from the settings of the servers.
#[derive(Default)]
struct Findings {
    warnings: Vec<String>,
    /// The number of servers that cannot be reached.
    missing: usize,
}

impl Findings {
    fn add(&mut self, server: &str, info: Result<InfoDict, RedisError>) -> Result<(), RedisError> {
        match info {
            Ok(info) => add_warnings(&mut self.warnings, &info)?,
            Err(error) if error.kind().is_absence() => {
                let warning = format!("{server}: {error}; the requests for its keys fail");
                self.warnings.push(warning);
                self.missing += 1;
            }
            // The store also works if the user has no permission for INFO.
            Err(_) => {}
        }
        Ok(())
    }
}

/// Adds warnings on the settings of a server. Fails if its version is too old.
fn add_warnings(warnings: &mut Vec<String>, info: &InfoDict) -> Result<(), RedisError> {
    check_version(info)?;
    check_engine(info)?;
    if info.get::<String>("dragonfly_version").is_some() {
        let warning = "the server is Dragonfly, whose clock stands still during a millisecond: waits are \
                       up to 1 ms too long; this crate is not tested on it";
        warnings.push(warning.to_owned());
    }
    let policy = info.get::<String>("maxmemory_policy");
    if let Some(policy) = policy.filter(|policy| policy != "noeviction") {
        let warning = format!(
            "maxmemory-policy is {policy}: a server out of memory evicts accounts, and their keys \
             get a fresh quota; set noeviction"
        );
        if !warnings.contains(&warning) {
            warnings.push(warning);
        }
    }
    Ok(())
}

fn check_version(info: &InfoDict) -> Result<(), RedisError> {
    if let Some(version) = info.get::<String>("redis_version") {
        let numbers: Vec<u32> = version
            .split('.')
            .map_while(|part| part.parse().ok())
            .collect();
        if numbers.len() > 1 && *numbers < MIN_VERSION[..] {
            let [major, minor] = MIN_VERSION;
            let text = format!("the server is Redis {version}; {major}.{minor} or later is needed");
            return Err(RedisError::new(RedisErrorKind::Config, text));
        }
    }
    Ok(())
}

fn check_engine(info: &InfoDict) -> Result<(), RedisError> {
    if let Some(version) = info.get::<String>("garnet_version") {
        let text = format!(
            "the server is Garnet {version}: its scripts are not atomic by default, and its PSETEX \
             ends at 24 days; use Redis or Valkey"
        );
        return Err(RedisError::new(RedisErrorKind::Config, text));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_servers_are_errors_and_eviction_is_a_warning() {
        let report = |text| {
            let mut warnings = Vec::new();
            add_warnings(&mut warnings, &InfoDict::new(text)).map(|()| warnings)
        };
        let old = report("redis_version:5.0.7\r\n").unwrap_err().to_string();
        assert!(
            old.contains("Redis 5.0.7") && old.contains("6.2 or later"),
            "{old}"
        );
        assert!(report("redis_version:6.0.16\r\n").is_err());
        let report = |text| report(text).expect("a good server");
        let evicting = report("redis_version:7.0.15\r\nmaxmemory_policy:allkeys-lru\r\n");
        assert!(evicting[0].contains("allkeys-lru"), "{evicting:?}");
        assert_eq!(report("redis_version:6.2.0"), [""; 0]);
        assert_eq!(
            report("redis_version:7.2.4\r\nmaxmemory_policy:noeviction"),
            [""; 0]
        );
        assert_eq!(report("gibberish"), [""; 0]);
        let dragonfly = report("redis_version:7.4.0\r\ndragonfly_version:df-v1.40.1\r\n");
        assert!(dragonfly[0].contains("Dragonfly"), "{dragonfly:?}");
    }

    #[test]
    fn the_guide_lists_the_same_commands() {
        let guide = include_str!("../../../guide/redis.md");
        let guide = guide.split_whitespace().collect::<Vec<_>>().join(" ");
        for permissions in [PERMISSIONS, CLUSTER_PERMISSIONS.trim()] {
            assert!(
                guide.contains(permissions),
                "src/guide/redis.md lacks {permissions}"
            );
        }
    }
}

//! A look at the server before the first request: may we, and is it one to trust?

use std::time::Instant;

use redis::{Cmd, Value, aio::ConnectionLike};

use super::{
    RedisStore,
    error::{RedisError, RedisErrorKind},
    question::{Purpose, Question},
    script::Frame,
};
use crate::{
    key::Key,
    name::RuleName,
    quota::{Algorithm, Quota},
    store::{Charge, Condition, Store},
};

/// Commands that the scripts use, and those that call them.
const RIGHTS: &str = "+eval +evalsha +time +get +set +del +pttl +pexpire +lindex +lrange +lset \
                      +rpush +lpop +rpop +lrem +info +select +script|load";
/// What else is sent to a cluster.
const CLUSTER_RIGHTS: &str = " +cluster|slots +ping";
const OLDEST: u32 = 6;

/// What a [probe](RedisStore::probe) found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Probe {
    /// The version the server tells, where it does: of Valkey the Redis it is compatible with.
    pub version: Option<String>,
    /// What may cost the limits their truth, in words.
    pub warnings: Vec<String>,
}

impl<C> RedisStore<C>
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    /// Runs the real script on a key of its own and looks at the server's settings.
    ///
    /// # Errors
    ///
    /// When the server cannot be reached, is a replica, is older than Redis 6, or does not permit
    /// what the scripts do; the text tells what to permit.
    pub async fn probe(&self) -> Result<Probe, RedisError> {
        let key = Key::everyone();
        let quotas = [Quota::per_second(1), Quota::per_second(1).algorithm(Algorithm::SlidingLog)];
        let question = Question::of(&[Charge::new(rule(), &key, &quotas)], self.addresses());
        for purpose in [Purpose::Take, Purpose::Refund(1)] {
            self.call(&question, purpose).await.map_err(|error| self.explained(error))?;
        }
        self.load().await;
        let mut info = Cmd::new();
        info.arg("INFO");
        match self.send(&info).await {
            Ok(value) => report(&texts(&value)),
            // what is not permitted is not needed
            Err(_) => Ok(Probe::default()),
        }
    }

    /// Has every server know the commonest scripts, so that no first request takes a second trip.
    async fn load(&self) {
        for frame in [Frame::Plain, Frame::Batch, Frame::Settle] {
            let mut load = Cmd::new();
            load.arg("SCRIPT").arg("LOAD").arg(&self.script(frame, [b'g']).text);
            // where it is not permitted, the first request of a kind sends the script
            drop(self.send(&load).await);
        }
    }

    /// The error with what to do about it.
    fn explained(&self, error: RedisError) -> RedisError {
        explained(error, &self.addresses().prefix, self.settings.sharded)
    }
}

/// Whether the server decides now: asked for a look at the probe's account.
pub(super) async fn look<C>(store: RedisStore<C>) -> Condition
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    let started = Instant::now();
    let (key, quotas) = (Key::everyone(), [Quota::per_second(1)]);
    let look = Charge::new(rule(), &key, &quotas).cost(0);
    let healed = match store.healed() {
        0 => String::new(),
        n => format!("; {n} accounts were broken and started anew"),
    };
    match store.take(&[look]).await {
        Ok(_) => Condition::well("redis", format!("answered in {:?}{healed}", started.elapsed())),
        Err(error) => Condition::failing("redis", error.to_string()),
    }
}

fn rule() -> RuleName {
    RuleName::new("sluice probe").unwrap_or_default()
}

/// The error of a server, or of a cluster, with what to do about it.
pub(super) fn explained(error: RedisError, prefix: &str, sharded: bool) -> RedisError {
    let text = error.to_string();
    match error.kind() {
        RedisErrorKind::Replica => error.advice("give the address of the primary"),
        RedisErrorKind::Denied if text.contains("uthentication") || text.contains("WRONGPASS") => {
            error.advice("check the user and password in the address")
        }
        RedisErrorKind::Denied => {
            let more = if sharded { CLUSTER_RIGHTS } else { "" };
            error.advice(&format!("permit it: ACL SETUSER <user> ~{prefix}:* {RIGHTS}{more}"))
        }
        _ => error,
    }
}

/// The texts of an answer: one, or of a cluster one from each node.
fn texts(value: &Value) -> String {
    match value {
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => text.clone(),
        Value::Array(values) => values.iter().map(texts).collect(),
        Value::Map(pairs) => pairs.iter().map(|(_, value)| texts(value)).collect(),
        _ => String::new(),
    }
}

fn report(info: &str) -> Result<Probe, RedisError> {
    let field = |name: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.map(|value| value.trim().to_owned())
    };
    let version = field("redis_version");
    let major = version.as_deref().and_then(|text| text.split('.').next()?.parse::<u32>().ok());
    if let (Some(major), Some(version)) = (major, &version)
        && major < OLDEST
    {
        let text = format!("the server is Redis {version}; {OLDEST}.0 or later is needed");
        return Err(RedisError::new(RedisErrorKind::Config, text));
    }
    let mut warnings = Vec::new();
    if let Some(policy) = field("maxmemory_policy")
        && policy.starts_with("allkeys")
    {
        warnings.push(format!(
            "maxmemory-policy is {policy}: when memory is full the server drops accounts in debt, \
             and their limits start anew; set noeviction or volatile-ttl"
        ));
    }
    Ok(Probe { version, warnings })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_servers_are_refused_and_eviction_is_warned_of() {
        let old = report("redis_version:5.0.7\r\n").unwrap_err().to_string();
        assert!(old.contains("Redis 5.0.7") && old.contains("6.0 or later"), "{old}");
        let report = |text| report(text).expect("a good server");
        let evicting = report("redis_version:7.0.15\r\nmaxmemory_policy:allkeys-lru\r\n");
        assert!(evicting.warnings[0].contains("allkeys-lru"), "{evicting:?}");
        assert_eq!(report("redis_version:7.2.4\r\nmaxmemory_policy:noeviction").warnings, [""; 0]);
        assert_eq!(report("gibberish"), Probe::default());
    }

    #[test]
    fn the_guide_permits_the_same() {
        let guide = include_str!("../../guide/redis.md");
        let guide = guide.split_whitespace().collect::<Vec<_>>().join(" ");
        for rights in [RIGHTS, CLUSTER_RIGHTS.trim()] {
            assert!(guide.contains(rights), "src/guide/redis.md does not say {rights}");
        }
    }
}

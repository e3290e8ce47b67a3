//! The connections to a cluster. All of them are replaced if a part of the cluster no longer
//! replies.

use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{
            AtomicBool,
            Ordering::{AcqRel, Release},
        },
    },
    time::Duration,
};

use redis::{
    Arg, Cmd, Pipeline, RedisFuture, Value, aio::ConnectionLike, cluster::ClusterClient,
    cluster_async::ClusterConnection,
};
use tokio::{
    runtime::Handle,
    time::{sleep, timeout},
};

use super::{link::TIMEOUT, watchdog::Watchdog};

/// The number of slot groups. Each group has a watchdog. Neighbouring slots are usually on the same
/// server.
const SLOT_GROUPS: u16 = 64;
const SLOTS: u16 = 16_384;
/// The pause between two attempts to reconnect.
const RENEW_PAUSE: Duration = Duration::from_millis(100);

/// Connections to the masters of a cluster, which follow moved slots and failovers.
///
/// The connections follow a slot when its old master redirects the call or is gone. A frozen master
/// does not redirect calls, and its connection seems to be open. After a failover, calls would
/// still be sent to the frozen master until it resumes. Therefore new connections are opened beside
/// the old ones if a part of the cluster has not replied for a second. The new connections replace
/// the old ones when that part replies on a new connection. Callers do not wait for the
/// replacement.
///
/// Created by [`RedisStore::cluster`](super::RedisStore::cluster). Clones share the connections.
#[derive(Clone)]
pub struct ClusterLink(Arc<ClusterInner>);

struct ClusterInner {
    client: ClusterClient,
    connection: Mutex<ClusterConnection>,
    watchdogs: [Watchdog; SLOT_GROUPS as usize],
    is_renewing: AtomicBool,
}

impl ClusterLink {
    pub(super) async fn connect(client: ClusterClient) -> redis::RedisResult<Self> {
        let connection = Mutex::new(client.get_async_connection().await?);
        let watchdogs = std::array::from_fn(|_| Watchdog::new());
        let is_renewing = AtomicBool::new(false);
        Ok(Self(Arc::new(ClusterInner { client, connection, watchdogs, is_renewing })))
    }

    /// Starts to replace the connections, because a call with `key` got no reply. Does nothing if a
    /// replacement is in progress.
    fn renew(&self, key: &[u8]) {
        // Without a runtime, the next command starts the replacement.
        let Ok(runtime) = Handle::try_current() else { return };
        if !self.0.is_renewing.swap(true, AcqRel) {
            let guard = RenewGuard(Arc::downgrade(&self.0));
            drop(runtime.spawn(renew(guard, self.0.client.clone(), key.to_vec())));
        }
    }
}

impl ClusterInner {
    fn connection(&self) -> MutexGuard<'_, ClusterConnection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The guard of the one task that opens new connections. It is released when the task ends or the
/// runtime drops the task.
struct RenewGuard(Weak<ClusterInner>);

impl Drop for RenewGuard {
    fn drop(&mut self) {
        if let Some(inner) = self.0.upgrade() {
            inner.is_renewing.store(false, Release);
        }
    }
}

/// Opens new connections and keeps them if a command with `key` gets a reply. Before a replica is
/// promoted, new connections do not help.
async fn renew(guard: RenewGuard, client: ClusterClient, key: Vec<u8>) {
    let connect = async {
        let mut fresh = client.get_async_connection().await.ok()?;
        let mut get = Cmd::new();
        // GET changes nothing. The scripts also need GET, so the user has the permission.
        get.arg("GET").arg(key);
        fresh.req_packed_command(&get).await.and_then(Value::extract_error).ok()?;
        Some(fresh)
    };
    match timeout(2 * TIMEOUT, connect).await {
        Ok(Some(fresh)) => {
            let Some(inner) = guard.0.upgrade() else { return };
            *inner.connection() = fresh;
            inner.watchdogs.iter().for_each(Watchdog::reply_received);
        }
        _ => sleep(RENEW_PAUSE).await,
    }
}

impl ConnectionLike for ClusterLink {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        Box::pin(async move {
            let key = key(command);
            let watchdog = &self.0.watchdogs[slot_group(key.unwrap_or_default())];
            if watchdog.request_sent()
                && let Some(key) = key
            {
                self.renew(key);
            }
            let mut connection = self.0.connection().clone();
            let reply = connection.req_packed_command(command).await;
            let reply = reply.and_then(Value::extract_error);
            if !reply.as_ref().is_err_and(redis::RedisError::is_timeout) {
                watchdog.reply_received();
            }
            reply
        })
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        commands: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        Box::pin(async move {
            let mut connection = self.0.connection().clone();
            connection.req_packed_commands(commands, offset, count).await
        })
    }

    fn get_db(&self) -> i64 {
        0
    }
}

impl fmt::Debug for ClusterLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterLink").finish_non_exhaustive()
    }
}

/// Returns the first key of a script call.
fn key(command: &Cmd) -> Option<&[u8]> {
    let mut args = command.args_iter();
    let (Some(Arg::Simple(b"EVALSHA" | b"EVAL")), Some(Arg::Simple(key))) =
        (args.next(), args.nth(2))
    else {
        return None;
    };
    Some(key)
}

/// Returns the slot group of a key of this store. Such a key contains braces.
fn slot_group(key: &[u8]) -> usize {
    let inside =
        key.split(|byte| *byte == b'{').nth(1).and_then(|rest| rest.split(|b| *b == b'}').next());
    let slot = inside.unwrap_or(key).iter().fold(0, |crc, byte| {
        // CRC-16 as defined by Redis Cluster.
        (0..8).fold(crc ^ u16::from(*byte) << 8, |crc: u16, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 }
        })
    }) % SLOTS;
    usize::from(slot / (SLOTS / SLOT_GROUPS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_match_those_of_redis_cluster() {
        // The output of CLUSTER KEYSLOT: 12182, 5061, 15495.
        for (key, slot) in [("sluice:2:{foo}", 12_182_usize), ("{bar}:0", 5_061), ("a", 15_495)] {
            assert_eq!(slot_group(key.as_bytes()), slot / 256, "{key}");
        }
        let mut command = Cmd::new();
        command.arg("EVALSHA").arg("0123").arg(1).arg("{foo}").arg("plan");
        assert_eq!(key(&command), Some(&b"{foo}"[..]));
        assert_eq!(key(&redis::cmd("INFO")), None);
    }
}

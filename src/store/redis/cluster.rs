//! The connections to a cluster, made anew when a part of it has been silent.

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

use super::{link::PATIENCE, silence::Silence};

/// Parts of a cluster whose silence is told apart: neighbouring slots live on the same server.
const PARTS: u16 = 64;
const SLOTS: u16 = 16_384;
/// Between two tries to make the connections anew.
const PAUSE: Duration = Duration::from_millis(100);

/// Connections to the masters of a cluster, which follow slots as they move, and failovers.
///
/// A slot is followed when its old master says that it is elsewhere, or is gone. One that is frozen
/// says nothing, and its connection looks alive: after a failover it would be asked until it thaws.
/// So new connections are made beside the old ones when a part of the cluster has not answered
/// anything for a second, and take their place once that part answers there. Callers do not wait
/// for it.
///
/// Made by [`RedisStore::cluster`](super::RedisStore::cluster). A clone is the same connections.
#[derive(Clone)]
pub struct ClusterLink(Arc<Inner>);

struct Inner {
    client: ClusterClient,
    connection: Mutex<ClusterConnection>,
    silences: [Silence; PARTS as usize],
    renewing: AtomicBool,
}

impl ClusterLink {
    pub(super) async fn connect(client: ClusterClient) -> redis::RedisResult<Self> {
        let connection = Mutex::new(client.get_async_connection().await?);
        let silences = std::array::from_fn(|_| Silence::new());
        let renewing = AtomicBool::new(false);
        Ok(Self(Arc::new(Inner { client, connection, silences, renewing })))
    }

    /// Makes new connections unless that is under way, for want of an answer about `key`.
    fn renew(&self, key: &[u8]) {
        // where there is no runtime, the next command starts it
        let Ok(runtime) = Handle::try_current() else { return };
        if !self.0.renewing.swap(true, AcqRel) {
            let right = Renewing(Arc::downgrade(&self.0));
            drop(runtime.spawn(renew(right, self.0.client.clone(), key.to_vec())));
        }
    }
}

impl Inner {
    fn connection(&self) -> MutexGuard<'_, ClusterConnection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The right to make new connections; it ends with its task, or with its runtime.
struct Renewing(Weak<Inner>);

impl Drop for Renewing {
    fn drop(&mut self) {
        if let Some(inner) = self.0.upgrade() {
            inner.renewing.store(false, Release);
        }
    }
}

/// New connections are no better while no replica has been promoted: they are taken if `key` is
/// answered there.
async fn renew(right: Renewing, client: ClusterClient, key: Vec<u8>) {
    let look = async {
        let mut fresh = client.get_async_connection().await.ok()?;
        let mut get = Cmd::new();
        // of what the scripts may do, what does nothing
        get.arg("GET").arg(key);
        fresh.req_packed_command(&get).await.and_then(Value::extract_error).ok()?;
        Some(fresh)
    };
    match timeout(2 * PATIENCE, look).await {
        Ok(Some(fresh)) => {
            let Some(inner) = right.0.upgrade() else { return };
            *inner.connection() = fresh;
            inner.silences.iter().for_each(Silence::answered);
        }
        _ => sleep(PAUSE).await,
    }
}

impl ConnectionLike for ClusterLink {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        Box::pin(async move {
            let key = key(command);
            let silence = &self.0.silences[part(key.unwrap_or_default())];
            if silence.asked()
                && let Some(key) = key
            {
                self.renew(key);
            }
            let mut connection = self.0.connection().clone();
            let answer = connection.req_packed_command(command).await;
            let answer = answer.and_then(Value::extract_error);
            if !answer.as_ref().is_err_and(redis::RedisError::is_timeout) {
                silence.answered();
            }
            answer
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

/// The first key of a script call.
fn key(command: &Cmd) -> Option<&[u8]> {
    let mut args = command.args_iter();
    let (Some(Arg::Simple(b"EVALSHA" | b"EVAL")), Some(Arg::Simple(key))) =
        (args.next(), args.nth(2))
    else {
        return None;
    };
    Some(key)
}

/// The part of the cluster where a key of ours is, which has its braces.
fn part(key: &[u8]) -> usize {
    let inside =
        key.split(|byte| *byte == b'{').nth(1).and_then(|rest| rest.split(|b| *b == b'}').next());
    let slot = inside.unwrap_or(key).iter().fold(0, |crc, byte| {
        // CRC-16 as the cluster takes it
        (0..8).fold(crc ^ u16::from(*byte) << 8, |crc: u16, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 }
        })
    }) % SLOTS;
    usize::from(slot / (SLOTS / PARTS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_where_the_cluster_has_them() {
        // as CLUSTER KEYSLOT says: 12182, 5061, 15495
        for (key, slot) in [("sluice:1:{foo}", 12_182_usize), ("{bar}:0", 5_061), ("a", 15_495)] {
            assert_eq!(part(key.as_bytes()), slot / 256, "{key}");
        }
        let mut command = Cmd::new();
        command.arg("EVALSHA").arg("0123").arg(1).arg("{foo}").arg("plan");
        assert_eq!(key(&command), Some(&b"{foo}"[..]));
        assert_eq!(key(&redis::cmd("INFO")), None);
    }
}

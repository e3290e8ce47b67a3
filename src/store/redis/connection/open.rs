//! Constructors that connect to one server, to a cluster, or to the master that sentinels report.

use std::{sync::Arc, time::Duration};

use redis::{
    Client,
    ConnectionAddr::{Tcp, TcpTls},
    ConnectionInfo, IntoConnectionInfo, RedisConnectionInfo, RedisResult, TlsMode,
    aio::{ConnectionLike, MultiplexedConnection},
    io::tcp::{TcpSettings, socket2::TcpKeepalive},
    sentinel::{SentinelClient, SentinelNodeConnectionInfo, SentinelServerType},
};

use super::{Link, config};
use crate::{
    log::warn,
    store::redis::{
        RedisStore,
        cluster::ClusterLink,
        error::{RedisError, RedisErrorKind},
    },
};

/// The time after which the TCP connection is closed if sent data is not acknowledged.
#[cfg(any(target_os = "linux", target_os = "android", target_os = "fuchsia"))]
const TCP_USER_TIMEOUT: Duration = Duration::from_secs(3);
/// The idle time after which TCP sends a probe. Many NATs silently drop idle connections.
const TCP_KEEPALIVE: Duration = Duration::from_secs(15);

impl RedisStore {
    /// Connects to one server, at `redis://[user:password@]host[:port][/db]`.
    ///
    /// All clones share one connection, which reconnects by itself. Add `?protocol=resp3` for
    /// RESP3. An address `rediss://` (TLS) needs the feature `redis-tls`.
    ///
    /// The constructor [probes](RedisStore::probe) the server and logs warnings.
    ///
    /// # Errors
    ///
    /// Fails if the address is invalid, the server cannot be reached, or the probe fails. To start
    /// while the server is down, use [`connect_lazy`](RedisStore::connect_lazy).
    pub async fn connect(url: &str) -> Result<Self, RedisError> {
        let server = address(url)?.addr().to_string();
        let fix = format!("is it at {server}? `connect_lazy` starts without it");
        Self::connect_lazy(url)?.connected(&fix).await
    }

    /// Like [`connect`](RedisStore::connect), but connects on the first request and does not probe.
    ///
    /// # Errors
    ///
    /// Fails if the address is invalid.
    pub fn connect_lazy(url: &str) -> Result<Self, RedisError> {
        let client = Client::open(address(url)?)?;
        Ok(Self::from_connector(move || open(client.clone())))
    }

    /// Creates a store whose connections `connect` opens, for example through a tunnel or with
    /// credentials that change.
    ///
    /// All clones share one connection. The store calls `connect` on the first request, and again
    /// after a failure, with the pauses of [`connect`](RedisStore::connect). An attempt may take a
    /// second.
    ///
    /// ```
    /// use redis::Client;
    /// use tower_sluice::RedisStore;
    ///
    /// # fn password() -> String { "rotated".into() }
    /// let store = RedisStore::from_connector(|| async {
    ///     let client = Client::open(format!("redis://limiter:{}@127.0.0.1", password()))?;
    ///     client.get_multiplexed_async_connection().await
    /// });
    /// ```
    #[must_use]
    pub fn from_connector<F, Fut>(connect: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = RedisResult<MultiplexedConnection>> + Send + 'static,
    {
        Self::new(Link::new(Box::new(move || Box::pin(connect()))))
    }

    /// Connects to the master `name` that the sentinels at `urls` report.
    ///
    /// After a failover, the store asks the sentinels again.
    ///
    /// The first address gives the user, password, database and TLS for the master. The credentials
    /// in the other addresses are for the sentinels.
    ///
    /// # Errors
    ///
    /// Fails as [`connect`](RedisStore::connect) does.
    pub async fn sentinel(urls: &[&str], name: &str) -> Result<Self, RedisError> {
        Self::sentinel_lazy(urls, name)?.connected("`sentinel_lazy` starts without it").await
    }

    /// Like [`sentinel`](RedisStore::sentinel), but connects on the first request and does not
    /// probe.
    ///
    /// # Errors
    ///
    /// Returns an error if an address is invalid, or if there is no address.
    pub fn sentinel_lazy(urls: &[&str], name: &str) -> Result<Self, RedisError> {
        let mut sentinels = addresses(urls)?;
        let (master, address) = (sentinels[0].redis_settings().clone(), sentinels[0].addr());
        let tls = match address {
            TcpTls { insecure: true, .. } => Some(TlsMode::Insecure),
            TcpTls { .. } => Some(TlsMode::Secure),
            _ => None,
        };
        sentinels[0] = sentinels[0].clone().set_redis_settings(RedisConnectionInfo::default());
        let node = SentinelNodeConnectionInfo::default()
            .set_redis_connection_info(master)
            .set_tcp_settings(tcp());
        let node = tls.into_iter().fold(node, SentinelNodeConnectionInfo::set_tls_mode);
        let name = name.to_owned();
        Ok(Self::from_connector(move || {
            let (sentinels, node) = (sentinels.clone(), Some(node.clone()));
            let kind = SentinelServerType::Master;
            let client = SentinelClient::build(sentinels, name.clone(), node, kind);
            async move { client?.get_async_connection_with_config(&config()).await }
        }))
    }
}

impl RedisStore<ClusterLink> {
    /// Connects to the cluster of the nodes at `urls`. These nodes report the other nodes.
    ///
    /// The first address gives the user, password and TLS for all nodes. The store follows moved
    /// slots and failovers.
    ///
    /// To keep other shards available when one shard fails:
    ///
    /// - Set `cluster-require-full-coverage no` on the servers.
    /// - Apply [`timeout`](crate::StoreExt::timeout) directly to this store. After several failures
    ///   of a server, calls to that server then fail immediately, and a
    ///   [`breaker`](crate::StoreExt::breaker) has no effect.
    ///
    /// The constructor [probes](RedisStore::probe) the cluster and logs warnings. A master that
    /// cannot be reached is a warning.
    ///
    /// # Errors
    ///
    /// Fails if an address is invalid, no master can be reached, or the probe fails. To start
    /// without the cluster, use [`cluster_lazy`](RedisStore::cluster_lazy).
    pub async fn cluster(urls: &[&str]) -> Result<Self, RedisError> {
        Self::cluster_lazy(urls)?.connected("`cluster_lazy` starts without it").await
    }

    /// Like [`cluster`](RedisStore::cluster), but connects on the first request and does not probe.
    ///
    /// # Errors
    ///
    /// Returns an error if an address is invalid, or if there is no address.
    pub fn cluster_lazy(urls: &[&str]) -> Result<Self, RedisError> {
        let nodes = addresses(urls)?;
        let seeds = nodes.iter().map(|node| match node.addr() {
            Tcp(host, port) | TcpTls { host, port, .. } => Ok((host.as_str(), *port)),
            _ => Err(RedisError::new(RedisErrorKind::Config, NO_TCP)),
        });
        let (seeds, first) = (seeds.collect::<Result<Vec<_>, _>>()?, nodes[0].clone());
        Self::cluster_from_connector(&seeds, move |name, number| {
            let mut node = first.addr().clone();
            if let Tcp(host, port) | TcpTls { host, port, .. } = &mut node {
                (*host, *port) = (name, number);
            }
            let client = Client::open(first.clone().set_addr(node));
            async move { open(client?).await }
        })
    }

    /// Creates a store on a cluster, whose connections `connect` opens from a host and a port.
    ///
    /// The servers at `seeds` report all servers. The store opens one connection to each server, as
    /// [`from_connector`](RedisStore::from_connector) does.
    ///
    /// ```
    /// use redis::Client;
    /// use tower_sluice::RedisStore;
    ///
    /// # fn password() -> String { "rotated".into() }
    /// # fn main() -> Result<(), tower_sluice::store::RedisError> {
    /// let store = RedisStore::cluster_from_connector(&[("10.0.0.1", 7000)], |host, port| async move {
    ///     let client = Client::open(format!("redis://limiter:{}@{host}:{port}", password()))?;
    ///     client.get_multiplexed_async_connection().await
    /// })?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error if there is no seed.
    pub fn cluster_from_connector<F, Fut>(
        seeds: &[(&str, u16)],
        connect: F,
    ) -> Result<Self, RedisError>
    where
        F: Fn(String, u16) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = RedisResult<MultiplexedConnection>> + Send + 'static,
    {
        let connect = move |host: &str, port| Box::pin(connect(host.into(), port)) as _;
        Ok(Self::sharded(ClusterLink::new(seeds, Arc::new(connect))?))
    }
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> RedisStore<C> {
    /// Probes the servers and logs warnings. `fix` is for servers that cannot be reached.
    async fn connected(self, fix: &str) -> Result<Self, RedisError> {
        let probe = self.probe().await.map_err(|error| match error.kind() {
            RedisErrorKind::Disconnected => error.with_fix(fix),
            _ => error,
        })?;
        probe.warnings.iter().for_each(|warning| warn!("redis: {warning}"));
        Ok(self)
    }
}

async fn open(client: Client) -> RedisResult<MultiplexedConnection> {
    client.get_multiplexed_async_connection_with_config(&config()).await
}

fn tcp() -> TcpSettings {
    let keepalive = TcpKeepalive::new().with_time(TCP_KEEPALIVE);
    #[cfg(any(target_os = "linux", target_os = "android", target_os = "fuchsia"))]
    let keepalive = keepalive.with_interval(TCP_KEEPALIVE / 3);
    let settings = TcpSettings::default().set_nodelay(true).set_keepalive(keepalive);
    #[cfg(any(target_os = "linux", target_os = "android", target_os = "fuchsia"))]
    let settings = settings.set_user_timeout(TCP_USER_TIMEOUT);
    settings
}

const NO_TCP: &str = "a server of a cluster is reached by TCP; give redis://host:port";
const URL_FORM: &str = "give redis://[user:password@]host[:port][/db]";

/// Parses the addresses of a cluster or of sentinels.
fn addresses(urls: &[&str]) -> Result<Vec<ConnectionInfo>, RedisError> {
    if urls.is_empty() {
        let text = format!("no address is given; {URL_FORM}");
        return Err(RedisError::new(RedisErrorKind::Config, text));
    }
    urls.iter().map(|url| address(url)).collect()
}

/// Parses an address. An error does not show it, because it may contain a password.
fn address(url: &str) -> Result<ConnectionInfo, RedisError> {
    let info = url.into_connection_info().map_err(|error| {
        let is_tls = url.starts_with("rediss:") || url.starts_with("valkeys:");
        let fix = if is_tls && !cfg!(feature = "redis-tls") {
            "enable the feature `redis-tls` of tower-sluice"
        } else {
            URL_FORM
        };
        RedisError::new(RedisErrorKind::Config, format!("an address is invalid: {error}; {fix}"))
    })?;
    Ok(info.set_tcp_settings(tcp()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_addresses_show_no_password() {
        for url in [
            "http://me:hunter2@host",
            "redis://me:hunter2@host/x",
            "redis://me:hun/hunter2@host:port/x",
            "redis://me:hun@hunter2@host/x",
            "me:hunter2@",
            "hunter2",
            "me:hunter2",
            ":hunter2@localhost:6379",
            "hunter2://host",
            "redis://me:hunter2",
            "redis://localhost/x?password=hunter2",
            "redis://localhost/x#hunter2",
            "redis://localhost/x:hunter2@",
            "http://localhost?pass=hunter2",
            "",
        ] {
            let Err(error) = RedisStore::connect_lazy(url) else { panic!("{url} is an address") };
            let text = format!("{error} {error:?}");
            assert!(!text.contains("hunter2"), "{text}");
            assert!(text.ends_with("give redis://[user:password@]host[:port][/db]\" }"), "{text}");
            assert_eq!(error.kind(), RedisErrorKind::Config);
        }
    }
}

//! Constructors that connect to one server, to a cluster, or to the master that sentinels report.

use std::{io, sync::Arc, time::Duration};

use futures_util::future::select_ok;
use redis::{
    Client,
    ConnectionAddr::{self, Tcp, TcpTls},
    ConnectionInfo, IntoConnectionInfo, RedisConnectionInfo, RedisResult, TlsMode,
    aio::MultiplexedConnection,
    io::tcp::{TcpSettings, socket2::TcpKeepalive},
    sentinel::{SentinelClient, SentinelNodeConnectionInfo, SentinelServerType},
};

use super::{
    Link,
    dial::{OpenConnection, dial, unjudged},
    first_line::{FirstLines, of_stream},
    stream::RedisStream,
};
use crate::store::redis::{
    RedisBuilder, RedisStore,
    cluster::{ClusterLink, Connect},
    error::{RedisError, RedisErrorKind},
};

/// The time after which the TCP connection is closed if sent data is not acknowledged.
#[cfg(any(target_os = "linux", target_os = "android", target_os = "fuchsia"))]
const TCP_USER_TIMEOUT: Duration = Duration::from_secs(3);
/// The idle time after which TCP sends a probe. Many NATs silently drop idle connections.
const TCP_KEEPALIVE: Duration = Duration::from_secs(15);

impl RedisStore {
    /// Returns the settings of a store on one server, at `redis://[user:password@]host[:port][/db]`.
    ///
    /// All clones share one connection, which reconnects by itself. Add `?protocol=resp3` for
    /// RESP3. An address `rediss://` (TLS) needs the feature `redis-tls`.
    ///
    /// The store is opened by `.await`, which [probes](RedisStore::probe) the server and logs
    /// warnings, or by [`lazy`](RedisBuilder::lazy), which also starts while the server is down.
    ///
    /// ```no_run
    /// use tower_sluice::RedisStore;
    ///
    /// # async fn run() -> Result<(), tower_sluice::store::RedisError> {
    /// let store = RedisStore::connect("redis://127.0.0.1").prefix("shop").await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// `.await` fails if the address is invalid, the server cannot be reached, or the probe fails.
    pub fn connect(url: impl AsRef<str>) -> RedisBuilder {
        RedisBuilder::or_error(Self::on_server(url.as_ref()))
    }

    fn on_server(url: &str) -> Result<RedisBuilder, RedisError> {
        let server = address(url)?;
        let place = server.addr().to_string();
        let client = Client::open(server)?;
        let lines = FirstLines::default();
        let link = Link::new(
            Box::new(move || Box::pin(open(client.clone(), lines.clone()))),
            true,
        );
        Ok(Self::with_connection(link).at(&place))
    }

    /// Returns the settings of a store whose connections `connect` opens, for example through a
    /// tunnel or with credentials that change.
    ///
    /// All clones share one connection. The store calls `connect` on the first call, and again after
    /// a failure, with the pauses of [`connect`](RedisStore::connect). An attempt may take a second.
    ///
    /// # Limitations
    ///
    /// On such a connection, the store does not notice that a server is silent. A
    /// [`Timeout`](crate::store::Timeout) counts the time of a call plainly: under load, late answers
    /// of a working server are failures, and the policy decides.
    /// [`from_stream`](RedisStore::from_stream) has no such limitation.
    ///
    /// ```
    /// use redis::Client;
    /// use tower_sluice::RedisStore;
    ///
    /// # fn password() -> String { "rotated".into() }
    /// let store = RedisStore::from_connector(|| async {
    ///     let client = Client::open(format!("redis://limiter:{}@127.0.0.1", password()))?;
    ///     client.get_multiplexed_async_connection().await
    /// })
    /// .lazy()?;
    /// # Ok::<(), tower_sluice::store::RedisError>(())
    /// ```
    pub fn from_connector<F, Fut>(connect: F) -> RedisBuilder
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = RedisResult<MultiplexedConnection>> + Send + 'static,
    {
        let link = Link::new(Box::new(move || Box::pin(unjudged(connect()))), false);
        Self::with_connection(link)
    }

    /// Returns the settings of a store on streams that `open` opens, for example through a tunnel, or
    /// with credentials that change.
    ///
    /// All clones share one connection. The store calls `open` on the first call, and again after a
    /// failure, with the pauses of [`connect`](RedisStore::connect). An attempt, with the login, may
    /// take a second. If a login fails, the store opens another stream without a login: a server that
    /// ends streams at the start may say the reason.
    ///
    /// A [`RedisStream`] also has the login, and the function by which the store distinguishes a silent
    /// server from a process that is too busy to read:
    ///
    /// ```
    /// use std::io::ErrorKind::WouldBlock;
    ///
    /// use redis::RedisConnectionInfo;
    /// use tokio::net::TcpStream;
    /// use tower_sluice::{RedisStore, store::RedisStream};
    ///
    /// # fn password() -> String { "rotated".into() }
    /// let store = RedisStore::from_stream(|| async {
    ///     let socket = TcpStream::connect("127.0.0.1:6379").await?.into_std()?;
    ///     let second = socket.try_clone()?;
    ///     let unread = move || {
    ///         !second.peek(&mut [0]).is_err_and(|error| error.kind() == WouldBlock)
    ///     };
    ///     let login = RedisConnectionInfo::default().set_password(password());
    ///     let stream = RedisStream::new(TcpStream::from_std(socket)?);
    ///     Ok(stream.with_login(login).with_unread(unread))
    /// })
    /// .lazy()?;
    /// # Ok::<(), tower_sluice::store::RedisError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// `.await` fails with the error of `open`, or as for [`connect`](RedisStore::connect).
    ///
    /// # Limitations
    ///
    /// A stream that is not a [`RedisStream`], such as one end of a `tokio::io::duplex`, has no such
    /// function: see [`with_unread`](RedisStream::with_unread).
    pub fn from_stream<F, Fut, S>(open: F) -> RedisBuilder
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = io::Result<S>> + Send + 'static,
        S: Into<RedisStream> + 'static,
    {
        let open = Arc::new(open);
        let link = Link::new(
            Box::new(move || {
                let open = open.clone();
                Box::pin(log_in(move || open()))
            }),
            true,
        );
        Self::with_connection(link)
    }

    /// Returns the settings of a store on the master `name` that the sentinels at `urls` report.
    ///
    /// After a failover, the store asks the sentinels again.
    ///
    /// The first address gives the user, password, database and TLS for the master. The credentials
    /// in the other addresses are for the sentinels.
    ///
    /// # Errors
    ///
    /// `.await` fails as for [`connect`](RedisStore::connect), or if there is no address.
    pub fn sentinel(urls: &[&str], name: &str) -> RedisBuilder {
        RedisBuilder::or_error(Self::on_master(urls, name))
    }

    fn on_master(urls: &[&str], name: &str) -> Result<RedisBuilder, RedisError> {
        let mut sentinels = addresses(urls)?;
        let servers: Arc<[_]> = sentinels
            .iter()
            .map(|server| server.addr().clone())
            .collect();
        let lines = FirstLines::default();
        let node = master_settings(&sentinels[0]);
        sentinels[0] = sentinels[0]
            .clone()
            .set_redis_settings(RedisConnectionInfo::default());
        let name = name.to_owned();
        let link = Link::new(
            Box::new(move || {
                let kind = SentinelServerType::Master;
                let clients = sentinels.iter().map(|sentinel| {
                    let node = Some(node.clone());
                    SentinelClient::build(vec![sentinel.clone()], name.clone(), node, kind.clone())
                });
                Box::pin(open_master(
                    clients.collect(),
                    servers.clone(),
                    lines.clone(),
                ))
            }),
            true,
        );
        Ok(Self::with_connection(link))
    }
}

impl RedisStore<ClusterLink> {
    /// Returns the settings of a store on the cluster of the nodes at `urls`, which report the other
    /// nodes.
    ///
    /// The first address gives the user, password and TLS for all nodes. The store follows moved
    /// hash slots and failovers.
    ///
    /// To keep other shards available when one shard fails:
    ///
    /// - Set `cluster-require-full-coverage no` on the servers.
    /// - Apply [`timeout`](crate::StoreExt::timeout) and then [`breaker`](crate::StoreExt::breaker)
    ///   to this store. After several failures of a server, calls to that server fail immediately.
    ///
    /// The store is opened by `.await`, which [probes](RedisStore::probe) the cluster and logs
    /// warnings, or by [`lazy`](RedisBuilder::lazy). For the probe, a master that cannot be reached
    /// is a warning.
    ///
    /// # Errors
    ///
    /// `.await` fails if an address is invalid or missing, no master can be reached, or the probe
    /// fails.
    pub fn cluster(urls: &[&str]) -> RedisBuilder<ClusterLink> {
        RedisBuilder::or_error(Self::on_nodes(urls))
    }

    fn on_nodes(urls: &[&str]) -> Result<RedisBuilder<ClusterLink>, RedisError> {
        let nodes = addresses(urls)?;
        let seeds = nodes.iter().map(|node| match node.addr() {
            Tcp(host, port) | TcpTls { host, port, .. } => Ok((host.as_str(), *port)),
            _ => Err(RedisError::new(RedisErrorKind::Config, NO_TCP)),
        });
        let seeds = seeds.collect::<Result<Vec<_>, _>>()?;
        let first = nodes[0].clone();
        let lines = FirstLines::default();
        let link = ClusterLink::new(
            &seeds,
            Arc::new(move |name, number| {
                let mut node = first.addr().clone();
                if let Tcp(host, port) | TcpTls { host, port, .. } = &mut node {
                    (*host, *port) = (name.to_owned(), number);
                }
                let client = Client::open(first.clone().set_addr(node));
                let lines = lines.clone();
                Box::pin(async move { open(client?, lines).await })
            }),
            true,
        );
        Ok(Self::sharded(link))
    }

    /// Returns the settings of a store on a cluster, whose connections `connect` opens from a host and
    /// a port.
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
    /// })
    /// .lazy()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Both ends return an error if there is no seed.
    pub fn cluster_from_connector<F, Fut>(
        seeds: &[(&str, u16)],
        connect: F,
    ) -> RedisBuilder<ClusterLink>
    where
        F: Fn(String, u16) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = RedisResult<MultiplexedConnection>> + Send + 'static,
    {
        Self::on_seeds(
            seeds,
            Arc::new(move |host, port| Box::pin(unjudged(connect(host.into(), port)))),
            false,
        )
    }

    /// Returns the settings of a store on a cluster, on streams that `open` opens to a host and a
    /// port.
    ///
    /// The servers at `seeds` report all servers. The store opens one stream to each server, as
    /// [`from_stream`](RedisStore::from_stream) does.
    ///
    /// ```
    /// use tokio::net::TcpStream;
    /// use tower_sluice::RedisStore;
    ///
    /// # fn main() -> Result<(), tower_sluice::store::RedisError> {
    /// let store = RedisStore::cluster_from_stream(&[("10.0.0.1", 7000)], |host, port| {
    ///     TcpStream::connect((host, port))
    /// })
    /// .lazy()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Both ends return an error if there is no seed.
    ///
    /// # Limitations
    ///
    /// As for [`from_stream`](RedisStore::from_stream).
    pub fn cluster_from_stream<F, Fut, S>(
        seeds: &[(&str, u16)],
        open: F,
    ) -> RedisBuilder<ClusterLink>
    where
        F: Fn(String, u16) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = io::Result<S>> + Send + 'static,
        S: Into<RedisStream> + 'static,
    {
        let open = Arc::new(open);
        Self::on_seeds(
            seeds,
            Arc::new(move |host, port| {
                let open = open.clone();
                let host = host.to_owned();
                Box::pin(log_in(move || open(host.clone(), port)))
            }),
            true,
        )
    }

    fn on_seeds(
        seeds: &[(&str, u16)],
        connect: Connect,
        is_judged: bool,
    ) -> RedisBuilder<ClusterLink> {
        let link = ClusterLink::new(seeds, connect, is_judged);
        RedisBuilder::or_error(match seeds {
            [] => Err(no_address()),
            _ => Ok(Self::sharded(link)),
        })
    }
}

async fn open(client: Client, lines: FirstLines) -> RedisResult<OpenConnection> {
    let servers = [client.get_connection_info().addr().clone()];
    lines.explain(&servers, dial(client)).await
}

/// Connects to the master of the sentinel that answers first. Others may be silent.
async fn open_master(
    clients: RedisResult<Vec<SentinelClient>>,
    servers: Arc<[ConnectionAddr]>,
    lines: FirstLines,
) -> RedisResult<OpenConnection> {
    let mut clients = clients?;
    let masters: Vec<_> = clients
        .iter_mut()
        .map(|client| Box::pin(client.async_get_client()))
        .collect();
    lines
        .explain(&servers, async {
            let master = select_ok(masters).await?.0;
            dial(master).await
        })
        .await
}

/// Opens a stream and logs in. If that fails, the first line on another stream may explain it.
async fn log_in<Fut, S>(open: impl Fn() -> Fut) -> RedisResult<OpenConnection>
where
    Fut: Future<Output = io::Result<S>>,
    S: Into<RedisStream>,
{
    let stream: RedisStream = open().await?.into();
    match stream.log_in().await {
        Err(error) => Err(of_stream(open()).await.unwrap_or(error)),
        dialed => dialed,
    }
}

/// Returns the settings of the connection to a master, with the login and the TLS of an address.
fn master_settings(first: &ConnectionInfo) -> SentinelNodeConnectionInfo {
    let node = SentinelNodeConnectionInfo::default()
        .set_redis_connection_info(first.redis_settings().clone())
        .set_tcp_settings(tcp());
    match first.addr() {
        TcpTls { insecure: true, .. } => node.set_tls_mode(TlsMode::Insecure),
        TcpTls { .. } => node.set_tls_mode(TlsMode::Secure),
        _ => node,
    }
}

fn tcp() -> TcpSettings {
    let keepalive = TcpKeepalive::new().with_time(TCP_KEEPALIVE);
    #[cfg(any(target_os = "linux", target_os = "android", target_os = "fuchsia"))]
    let keepalive = keepalive.with_interval(TCP_KEEPALIVE / 3);
    let settings = TcpSettings::default()
        .set_nodelay(true)
        .set_keepalive(keepalive);
    #[cfg(any(target_os = "linux", target_os = "android", target_os = "fuchsia"))]
    let settings = settings.set_user_timeout(TCP_USER_TIMEOUT);
    settings
}

const NO_TCP: &str = "a server of a cluster is reached by TCP; give redis://host:port";
const URL_FORM: &str = "give redis://[user:password@]host[:port][/db]";

fn no_address() -> RedisError {
    RedisError::new(
        RedisErrorKind::Config,
        format!("no address is given; {URL_FORM}"),
    )
}

/// Parses the addresses of a cluster or of sentinels.
fn addresses(urls: &[&str]) -> Result<Vec<ConnectionInfo>, RedisError> {
    if urls.is_empty() {
        return Err(no_address());
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
        RedisError::new(
            RedisErrorKind::Config,
            format!("an address is invalid: {error}; {fix}"),
        )
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
            "localhost:hunter2",
            "redis://",
            "redis://:hunter2@",
            "redis://:hunter2",
            "redis://app:hunter2/0",
            "redis://:hunter2@localhost:99999",
            "redis://:hunter2@local host",
            "",
        ] {
            let Err(error) = RedisStore::connect(url).lazy() else {
                panic!("{url} is an address")
            };
            let text = format!("{error} {error:?}");
            assert!(!text.contains("hunter2"), "{text}");
            assert!(
                text.ends_with("give redis://[user:password@]host[:port][/db]\" }"),
                "{text}"
            );
            assert_eq!(error.kind(), RedisErrorKind::Config);
        }
    }
}

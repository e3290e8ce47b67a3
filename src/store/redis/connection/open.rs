//! Constructors that connect to one server, to a cluster, or to the master that sentinels report.

use std::{sync::Arc, time::Duration};

use redis::{
    Client, ConnectionAddr, ConnectionInfo, ErrorKind as Raw, IntoConnectionInfo,
    RedisConnectionInfo, RedisResult, TlsMode,
    aio::MultiplexedConnection,
    io::tcp::{TcpSettings, socket2::TcpKeepalive},
    sentinel::{SentinelClient, SentinelNodeConnectionInfo, SentinelServerType},
};

use super::link::{Link, config, dial};
use crate::{
    log::warn,
    store::{
        BoxFuture,
        redis::{
            RedisStore,
            cluster::{ClusterLink, routes::no_seed},
            error::{RedisError, RedisErrorKind},
        },
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
        let store = Self::connect_lazy(url)?.probe_and_log().await;
        store.map_err(|error| match (error.kind(), address(url)) {
            (RedisErrorKind::Disconnected, Ok(at)) => {
                let at = at.addr();
                error.with_fix(&format!("is it at {at}? `connect_lazy` starts without it"))
            }
            _ => error,
        })
    }

    /// Like [`connect`](RedisStore::connect), but connects on the first request and does not probe.
    ///
    /// # Errors
    ///
    /// Fails if the address is invalid.
    pub fn connect_lazy(url: &str) -> Result<Self, RedisError> {
        Ok(Self::new(Link::new(dial(Client::open(address(url)?)?))))
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
        let store = Self::sentinel_lazy(urls, name)?.probe_and_log().await;
        store.map_err(|error| without(error, "`sentinel_lazy`"))
    }

    /// Like [`sentinel`](RedisStore::sentinel), but connects on the first request and does not
    /// probe.
    ///
    /// # Errors
    ///
    /// Returns an error if an address is invalid, or if there is no address.
    pub fn sentinel_lazy(urls: &[&str], name: &str) -> Result<Self, RedisError> {
        let mut sentinels = urls.iter().map(|url| address(url)).collect::<Result<Vec<_>, _>>()?;
        let Some(first) = sentinels.first_mut() else {
            let text = "no address of a sentinel is given";
            return Err(RedisError::new(RedisErrorKind::Config, text));
        };
        let (master, tls) = (first.redis_settings().clone(), tls_of(first.addr()));
        *first = first.clone().set_redis_settings(RedisConnectionInfo::default());
        let name = name.to_owned();
        Ok(Self::new(Link::new(Box::new(move || {
            let node = SentinelNodeConnectionInfo::default()
                .set_redis_connection_info(master.clone())
                .set_tcp_settings(tcp());
            let node = tls.into_iter().fold(node, SentinelNodeConnectionInfo::set_tls_mode);
            let kind = SentinelServerType::Master;
            let client = SentinelClient::build(sentinels.clone(), name.clone(), Some(node), kind);
            Box::pin(async move { client?.get_async_connection_with_config(&config()).await })
        }))))
    }
}

impl RedisStore<ClusterLink> {
    /// Connects to the cluster of the nodes at `urls`. These nodes report the other nodes.
    ///
    /// The store follows moved slots and failovers.
    ///
    /// To keep other shards available when one shard fails:
    ///
    /// - Set `cluster-require-full-coverage no` on the servers.
    /// - Apply [`timeout`](crate::StoreExt::timeout) directly to this store. After several failures
    ///   of a server, calls to that server then fail immediately, and a
    ///   [`breaker`](crate::StoreExt::breaker) has no effect.
    ///
    /// The constructor [probes](RedisStore::probe) each master and logs warnings. A master that
    /// cannot be reached is a warning.
    ///
    /// # Errors
    ///
    /// Fails if an address is invalid, no master can be reached, or the probe fails. To start
    /// without the cluster, use [`cluster_lazy`](RedisStore::cluster_lazy).
    pub async fn cluster(urls: &[&str]) -> Result<Self, RedisError> {
        let store = Self::cluster_lazy(urls)?.probe_and_log().await;
        store.map_err(|error| without(error, "`cluster_lazy`"))
    }

    /// Like [`cluster`](RedisStore::cluster), but connects on the first request and does not probe.
    ///
    /// # Errors
    ///
    /// Returns an error if an address is invalid, or if there is no address.
    pub fn cluster_lazy(urls: &[&str]) -> Result<Self, RedisError> {
        let infos = urls.iter().map(|url| address(url)).collect::<Result<Vec<_>, _>>()?;
        let seeds = infos.iter().map(|info| tcp_address(info.addr()));
        let seeds = seeds.collect::<Result<Vec<_>, _>>()?;
        Ok(Self::sharded(ClusterLink::new(&seeds, Arc::new(to_servers(infos.clone())))?))
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
        let connect =
            move |host: &str, port| -> BoxFuture<_> { Box::pin(connect(host.into(), port)) };
        Ok(Self::sharded(ClusterLink::new(seeds, Arc::new(connect))?))
    }
}

/// Returns a function that connects to any server of a cluster: with the settings of the seed at
/// that address, or else of the first seed.
fn to_servers(
    seeds: Vec<ConnectionInfo>,
) -> impl Fn(&str, u16) -> BoxFuture<RedisResult<MultiplexedConnection>> {
    move |host, port| {
        let is_this =
            |seed: &&ConnectionInfo| tcp_address(seed.addr()).is_ok_and(|at| at == (host, port));
        let seed = seeds.iter().find(is_this).or(seeds.first());
        let client = seed.ok_or_else(no_seed).and_then(|seed| server(seed, host, port));
        Box::pin(
            async move { client?.get_multiplexed_async_connection_with_config(&config()).await },
        )
    }
}

/// Returns a client of the server at an address, with the settings of `seed`.
fn server(seed: &ConnectionInfo, host: &str, port: u16) -> RedisResult<Client> {
    let mut addr = seed.addr().clone();
    if let ConnectionAddr::Tcp(name, number)
    | ConnectionAddr::TcpTls { host: name, port: number, .. } = &mut addr
    {
        (*name, *number) = (host.to_owned(), port);
    }
    let info = addr.into_connection_info()?.set_redis_settings(seed.redis_settings().clone());
    Client::open(info.set_tcp_settings(seed.tcp_settings().clone()))
}

fn tcp_address(addr: &ConnectionAddr) -> RedisResult<(&str, u16)> {
    match addr {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
            Ok((host, *port))
        }
        _ => Err((Raw::InvalidClientConfig, NO_TCP).into()),
    }
}

impl<C> RedisStore<C>
where
    C: redis::aio::ConnectionLike + Clone + Send + Sync + 'static,
{
    async fn probe_and_log(self) -> Result<Self, RedisError> {
        for warning in self.probe().await?.warnings {
            warn!("redis: {warning}");
        }
        Ok(self)
    }
}

/// Suggests `constructor`, which does not connect, if the servers cannot be reached.
fn without(error: RedisError, constructor: &str) -> RedisError {
    match error.kind() {
        RedisErrorKind::Disconnected => error.with_fix(&format!("{constructor} starts without it")),
        _ => error,
    }
}

fn tls_of(address: &ConnectionAddr) -> Option<TlsMode> {
    match address {
        ConnectionAddr::TcpTls { insecure: true, .. } => Some(TlsMode::Insecure),
        ConnectionAddr::TcpTls { .. } => Some(TlsMode::Secure),
        _ => None,
    }
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

/// Parses an address.
fn address(url: &str) -> Result<ConnectionInfo, RedisError> {
    let info = url.into_connection_info().map_err(|error| {
        let fix = fix(url, cfg!(feature = "redis-tls"));
        let text = match fix {
            Some(fix) => format!("{:?} is not an address: {fix}", redacted(url)),
            None => format!("{:?} is not an address: {error}; give {URL_FORM}", redacted(url)),
        };
        RedisError::new(RedisErrorKind::Config, text)
    })?;
    Ok(info.set_tcp_settings(tcp()))
}

const NO_TCP: &str = "a server of a cluster is reached by TCP; give redis://host:port";
const URL_FORM: &str = "redis://[user:password@]host[:port][/db]";

/// Returns the fix for an address with a known mistake.
fn fix(url: &str, has_tls: bool) -> Option<String> {
    let scheme = url.split_once("://").map(|(scheme, _)| scheme);
    match scheme {
        Some(tls @ ("rediss" | "valkeys")) if !has_tls => {
            Some(format!("{tls}:// needs the feature `redis-tls` of tower-sluice; enable it"))
        }
        None if is_host(url) => Some(format!("it lacks redis://; give redis://{url}")),
        None => Some(format!("it lacks redis://; give {URL_FORM}")),
        Some(_) => None,
    }
}

/// Returns the address for an error text, without a possible password.
fn redacted(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else {
        return if is_host(url) { url } else { "***" }.to_owned();
    };
    let (user, rest) = rest.rsplit_once('@').map_or(("", rest), |(_, rest)| ("***@", rest));
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (host, path) = rest.split_at(end);
    let (name, port) = host.split_once(':').unwrap_or((host, ""));
    if !is_plain(scheme) || !is_plain(name) || !port.bytes().all(|byte| byte.is_ascii_digit()) {
        return format!("{}://{user}***", if is_plain(scheme) { scheme } else { "***" });
    }
    // A password may contain a slash or an `@`, or be in the query.
    let path = match path.strip_prefix('/') {
        _ if !user.is_empty() || path.is_empty() => "",
        Some(plain) if is_plain(plain) => path,
        _ => &format!("{}***", &path[..1]),
    };
    format!("{scheme}://{user}{host}{path}")
}

/// Returns `true` if the text is a host and a port.
fn is_host(text: &str) -> bool {
    let (name, port) = text.split_once(':').unwrap_or((text, ""));
    let is_port = !port.is_empty() && port.parse::<u16>().is_ok();
    !name.is_empty() && is_plain(name) && (is_port || text == "localhost")
}

fn is_plain(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte))
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
            assert!(url == "hunter2://host" || !text.contains("hunter2"), "{text}");
            assert!(text.contains("give redis://"), "{text}");
            assert_eq!(error.kind(), RedisErrorKind::Config);
        }
    }

    #[test]
    fn an_address_without_a_password_is_shown_with_the_fix() {
        for (url, has_tls, redacted_url, text) in [
            ("localhost:6379", true, "localhost:6379", "give redis://localhost:6379"),
            ("10.0.0.7:6379", true, "10.0.0.7:6379", "give redis://10.0.0.7:6379"),
            ("localhost", true, "localhost", "give redis://localhost"),
            ("rediss://db.example:6380/0", false, "rediss://db.example:6380/0", "`redis-tls`"),
            ("rediss://me:pass@db.example", false, "rediss://***@db.example", "`redis-tls`"),
            ("redis.example", true, "***", "give redis://[user:password@]"),
        ] {
            assert_eq!(redacted(url), redacted_url);
            assert!(fix(url, has_tls).is_some_and(|fix| fix.contains(text)), "{url}");
        }
        assert_eq!(redacted("redis://localhost/x"), "redis://localhost/x");
        // a password in the place of a host, a port or a scheme
        assert_eq!(redacted("redis://pa$s"), "redis://***");
        assert_eq!(redacted("redis://localhost:pass"), "redis://***");
        assert_eq!(redacted("pa$s://localhost"), "***://***");
        assert_eq!(fix("rediss://db.example", true), None);
    }
}

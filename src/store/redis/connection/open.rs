//! Constructors that connect to one server, to a cluster, or to the master that sentinels report, and
//! probes, which check the permissions, the version and the settings of the server before the first
//! request.

use std::{
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::future::{join, join_all};
use redis::{
    Client, Cmd,
    ConnectionAddr::{self, Tcp, TcpTls},
    ConnectionInfo, InfoDict, IntoConnectionInfo, RedisConnectionInfo, RedisResult, TlsMode, Value,
    aio::{ConnectionLike, MultiplexedConnection},
    cmd, from_redis_value,
    io::tcp::{TcpSettings, socket2::TcpKeepalive},
    sentinel::{SentinelClient, SentinelNodeConnectionInfo, SentinelServerType},
};

use super::{
    Link,
    dial::{Dialed, dial},
    first_line::{FirstLines, of_stream},
    stream::RedisStream,
};
use crate::{
    key::Key,
    name::RuleName,
    quota::Quota,
    store::{
        Charge, Context, Health, Op, Store,
        redis::{
            RedisBuilder, RedisStore,
            cluster::{ClusterLink, Connect},
            error::{RedisError, RedisErrorKind},
            protocol::script::ScriptKind,
        },
    },
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
    /// take a second. If a server ends a stream at the start, the store opens another one without a
    /// login, to read the reason.
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
        let master = sentinels[0].redis_settings().clone();
        let address = sentinels[0].addr();
        let tls = match address {
            TcpTls { insecure: true, .. } => Some(TlsMode::Insecure),
            TcpTls { .. } => Some(TlsMode::Secure),
            _ => None,
        };
        sentinels[0] = sentinels[0]
            .clone()
            .set_redis_settings(RedisConnectionInfo::default());
        let node = SentinelNodeConnectionInfo::default()
            .set_redis_connection_info(master)
            .set_tcp_settings(tcp());
        let node = match tls {
            Some(tls) => node.set_tls_mode(tls),
            None => node,
        };
        let name = name.to_owned();
        let link = Link::new(
            Box::new(move || {
                let kind = SentinelServerType::Master;
                let node = Some(node.clone());
                let client = SentinelClient::build(sentinels.clone(), name.clone(), node, kind);
                Box::pin(open_master(client, servers.clone(), lines.clone()))
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
    /// slots and failovers.
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
        Ok(Self::sharded(link?))
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
        RedisBuilder::or_error(link.map(Self::sharded).map_err(RedisError::from))
    }
}

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
        let info = cmd("INFO");
        let key = [self.settings.addresses.account(rule(), &Key::everyone())];
        let script = async {
            let ran = self
                .run(self.script(ScriptKind::Probe, []), &key, Vec::new())
                .await;
            // Redis closes a connection without a login that sends 16 KiB or more.
            if ran.is_ok() {
                self.load_scripts().await;
            }
            ran
        };
        // A server that does not reply costs one timeout in all.
        let (infos, ran) = join(self.on_all(&info), script).await;
        let mut warnings = Vec::new();
        let servers = infos.len();
        let mut missing = 0;
        for (server, info) in infos {
            match info
                .and_then(|info| Ok(from_redis_value(info)?))
                .map_err(RedisError::from)
            {
                Ok(info) => add_warnings(&mut warnings, &info)?,
                Err(error) if error.kind().is_absence() => {
                    let warning = format!("{server}: {error}; the requests for its keys fail");
                    warnings.push(warning);
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
            _ => Ok(warnings),
        }
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
            Ok(_) if !failing.is_empty() => {
                Health::failing("redis", format!("failing servers: {}", failing.join(", ")))
            }
            Ok(_) => {
                let healed = match self.healed() {
                    0 => String::new(),
                    n => format!("; {n} accounts were invalid and have been replaced"),
                };
                Health::healthy(
                    "redis",
                    format!("answered in {:?}{healed}", started.elapsed()),
                )
            }
            Err(error) => Health::failing("redis", error.to_string()),
        }
    }
}

async fn open(client: Client, lines: FirstLines) -> RedisResult<Dialed> {
    let servers = [client.get_connection_info().addr().clone()];
    lines.explain(&servers, dial(client)).await
}

async fn open_master(
    client: RedisResult<SentinelClient>,
    servers: Arc<[ConnectionAddr]>,
    lines: FirstLines,
) -> RedisResult<Dialed> {
    let mut client = client?;
    lines
        .explain(&servers, async {
            dial(client.async_get_client().await?).await
        })
        .await
}

/// Opens a connection that does not note silence.
async fn unjudged(
    connection: impl Future<Output = RedisResult<MultiplexedConnection>>,
) -> RedisResult<Dialed> {
    Ok(Dialed {
        connection: connection.await?,
        silence: None,
    })
}

/// Opens a stream and logs in. If the server ends the stream, the first line on another one explains
/// it.
async fn log_in<Fut, S>(open: impl Fn() -> Fut) -> RedisResult<Dialed>
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
        RedisError::new(
            RedisErrorKind::Config,
            format!("an address is invalid: {error}; {fix}"),
        )
    })?;
    Ok(info.set_tcp_settings(tcp()))
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

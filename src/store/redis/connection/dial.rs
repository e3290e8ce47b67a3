//! Connections that note the silence of their server: TCP, TLS and Unix sockets.

use std::{io, sync::Arc};

use futures_util::future::select_ok;
#[cfg(feature = "redis-tls")]
use redis::ConnectionAddr::TcpTls;
#[cfg(unix)]
use redis::ConnectionAddr::Unix;
use redis::{
    AsyncConnectionConfig, Client,
    ConnectionAddr::Tcp,
    RedisConnectionInfo, RedisResult,
    aio::MultiplexedConnection,
    io::tcp::{TcpSettings, socket2::SockRef},
};
#[cfg(unix)]
use tokio::net::UnixStream;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, lookup_host},
    time::Instant,
};

use super::{
    TIMEOUT,
    silence::{Noted, Silence, in_kernel},
};
use crate::store::BoxFuture;

/// An open connection.
#[derive(Clone)]
pub(crate) struct OpenConnection {
    pub(super) connection: MultiplexedConnection,
    /// `None` if the connection of a connector notes nothing.
    pub(super) silence: Option<Arc<Silence>>,
    pub(super) since: Instant,
}

/// Connects to the server of a client, and logs in.
pub(crate) async fn dial(client: Client) -> RedisResult<OpenConnection> {
    let info = client.get_connection_info();
    let login = info.redis_settings();
    match info.addr() {
        Tcp(host, port) => {
            let stream = connect(host, *port, info.tcp_settings()).await?;
            let silence = silence_of(&SockRef::from(&stream))?;
            log_in_noted(login, stream, silence).await
        }
        #[cfg(feature = "redis-tls")]
        TcpTls {
            host,
            port,
            insecure: false,
            tls_params: None,
        } => {
            let stream = connect(host, *port, info.tcp_settings()).await?;
            let silence = silence_of(&SockRef::from(&stream))?;
            let stream = tls(host, Noted::new(stream, silence.clone())).await?;
            log_in(login, stream, silence, on_runtime).await
        }
        #[cfg(unix)]
        Unix(path) => {
            let stream = UnixStream::connect(path).await?;
            let silence = silence_of(&SockRef::from(&stream))?;
            log_in_noted(login, stream, silence).await
        }
        // With a certificate of the client, or without a check of the server's.
        _ => {
            let config = AsyncConnectionConfig::new().set_response_timeout(Some(TIMEOUT));
            unjudged(client.get_multiplexed_async_connection_with_config(&config)).await
        }
    }
}

/// Opens a connection that does not note silence.
pub(super) async fn unjudged(
    connection: impl Future<Output = RedisResult<MultiplexedConnection>>,
) -> RedisResult<OpenConnection> {
    Ok(OpenConnection {
        connection: connection.await?,
        silence: None,
        since: Instant::now(),
    })
}

/// Returns the notes of a socket, whose unread bytes wait in the kernel.
fn silence_of(socket: &SockRef<'_>) -> io::Result<Arc<Silence>> {
    Ok(Silence::new(in_kernel(socket.try_clone()?)))
}

async fn log_in_noted<S>(
    login: &RedisConnectionInfo,
    stream: S,
    silence: Arc<Silence>,
) -> RedisResult<OpenConnection>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let stream = Noted::new(stream, silence.clone());
    log_in(login, stream, silence, on_runtime).await
}

/// Starts the task of a connection on the current runtime.
pub(crate) fn on_runtime(task: BoxFuture<()>) {
    tokio::spawn(task);
}

/// Connects to the first address of a host that accepts.
async fn connect(host: &str, port: u16, settings: &TcpSettings) -> io::Result<TcpStream> {
    let addresses = lookup_host((host, port)).await?;
    let attempts: Vec<_> = addresses
        .map(|address| Box::pin(TcpStream::connect(address)))
        .collect();
    if attempts.is_empty() {
        return Err(io::Error::new(
            io::ErrorKind::NotFound,
            "the host has no address",
        ));
    }
    let stream = select_ok(attempts).await?.0;
    stream.set_nodelay(settings.nodelay())?;
    let socket = SockRef::from(&stream);
    if let Some(keepalive) = settings.keepalive() {
        socket.set_tcp_keepalive(keepalive)?;
    }
    #[cfg(any(target_os = "linux", target_os = "android", target_os = "fuchsia"))]
    socket.set_tcp_user_timeout(settings.user_timeout())?;
    Ok(stream)
}

/// Logs in, and starts the task of the connection by `spawn`.
pub(crate) async fn log_in<S>(
    login: &RedisConnectionInfo,
    stream: S,
    silence: Arc<Silence>,
    spawn: impl FnOnce(BoxFuture<()>),
) -> RedisResult<OpenConnection>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    // The silence of the server ends a call instead.
    let config = AsyncConnectionConfig::new().set_response_timeout(None);
    let opened = MultiplexedConnection::new_with_config(login, stream, config).await?;
    spawn(Box::pin(opened.1));
    Ok(OpenConnection {
        connection: opened.0,
        silence: Some(silence),
        since: Instant::now(),
    })
}

/// Starts TLS, with the certificates that the system trusts.
#[cfg(feature = "redis-tls")]
async fn tls(
    host: &str,
    stream: Noted<TcpStream>,
) -> RedisResult<tokio_rustls::client::TlsStream<Noted<TcpStream>>> {
    let trusted = rustls_native_certs::load_native_certs();
    if let Some(error) = trusted.errors.into_iter().next() {
        return Err(io::Error::other(error).into());
    }
    let mut roots = rustls::RootCertStore::empty();
    for certificate in trusted.certs {
        roots.add(certificate).map_err(io::Error::other)?;
    }
    let settings = rustls::ClientConfig::builder()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name =
        rustls::pki_types::ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    Ok(tokio_rustls::TlsConnector::from(Arc::new(settings))
        .connect(name, stream)
        .await?)
}

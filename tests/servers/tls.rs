//! Encrypted connections (`rediss://`), and errors for an untrusted certificate.

use std::{
    env, fs,
    path::Path,
    process::{Child, Command, Stdio},
};

use redis::aio::ConnectionLike;
use tokio::{
    io::AsyncReadExt,
    net::{TcpListener, TcpStream},
    runtime::Builder,
};
use tower_sluice::{Quota, RedisStore, store::RedisBuilder};

use crate::{
    accounts::Account,
    servers::{Flavour, Mode, Proxy, Sentinels, Server, eventually},
    streams::{Gate, to},
};

/// The environment variable with the address for a process that a test below starts.
const URL: &str = "SLUICE_URL";

/// A process of the tests below, because trusted certificates are read from the environment. Does
/// nothing by itself.
#[test]
fn client() {
    let Ok(url) = env::var(URL) else { return };
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        match url.split_once(' ') {
            Some(("stream", url)) => {
                uses(RedisStore::from_stream(to(url, true, &Gate::default()))).await;
            }
            Some(("sentinel", url)) => uses(RedisStore::sentinel(&[url], Sentinels::NAME)).await,
            Some((_, url)) => uses(RedisStore::cluster(&[url])).await,
            None => uses(RedisStore::connect(&url)).await,
        }
    });
}

async fn uses<C: ConnectionLike + Clone + Send + Sync + 'static>(builder: RedisBuilder<C>) {
    match builder.await {
        Ok(store) => {
            let account = Account::new("a", Quota::per_day(5));
            println!("\npassed {}", account.passed(&store, 7).await);
        }
        Err(error) => println!("\nfailed {:?}: {error}", error.kind()),
    }
}

/// Returns the output of a process that trusts the certificate in `trusted` and connects to `url`.
pub(crate) fn said(url: &str, trusted: &Path) -> String {
    let mut client = Command::new(env::current_exe().expect("a path"));
    client.args(["--exact", "tls::client", "--nocapture"]).env(URL, url);
    let output = client.env("SSL_CERT_FILE", trusted).output().expect("it runs");
    let output = String::from_utf8(output.stdout).expect("text");
    let line = output.lines().find(|line| line.starts_with("passed") || line.starts_with("failed"));
    line.unwrap_or_else(|| panic!("{output}")).to_owned()
}

fn openssl(folder: &Path, words: &str) {
    let mut openssl = Command::new("openssl");
    let output = openssl.args(words.split(' ')).current_dir(folder).output().expect("openssl");
    assert!(output.status.success(), "{words}: {}", String::from_utf8_lossy(&output.stderr));
}

const KEY: &str = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2";

/// Creates `<name>.pem`, a certificate authority.
pub(crate) fn authority(folder: &Path, name: &str) {
    openssl(folder, &format!("{KEY} -subj /CN={name} -keyout {name}.key -out {name}.pem"));
}

/// Starts a server with a certificate of the authority `ca` for these names. Returns it with its
/// TLS port.
pub(crate) async fn server(folder: &Path, names: &str) -> (Server, Proxy) {
    let extensions = format!("-addext subjectAltName={names} -addext basicConstraints=CA:FALSE");
    let signed = "-CA ca.pem -CAkey ca.key -subj /CN=server -keyout server.key -out server.pem";
    openssl(folder, &format!("{KEY} {signed} {extensions}"));
    // A port that no other test gets while the proxy lives.
    let mut port = Proxy::start(([127, 0, 0, 1], 1).into()).await;
    port.set(Mode::Refuse).await;
    let number = port.addr().port().to_string();
    let file = |name: &str| folder.join(name).display().to_string();
    let (pem, key, ca) = (file("server.pem"), file("server.key"), file("ca.pem"));
    let files = ["--tls-cert-file", &pem, "--tls-key-file", &key, "--tls-ca-cert-file", &ca];
    let tls = ["--tls-port", &number, "--tls-auth-clients", "no"];
    (Server::start(Flavour::Redis, &[&tls[..], &files].concat()).await, port)
}

#[tokio::test]
async fn a_trusted_server_is_used() {
    // The folder is removed with the server.
    let home = Server::redis().await;
    authority(home.path(), "ca");
    let trusted = home.path().join("ca.pem");
    for names in ["IP:127.0.0.1,DNS:localhost", "DNS:localhost"] {
        let (server, port) = server(home.path(), names).await;
        let url = format!("rediss://localhost:{}", port.addr().port());
        assert_eq!(said(&url, &trusted), "passed 5");
        let () = server.command("FLUSHALL").await;
        assert_eq!(said(&format!("{url}?protocol=resp3"), &trusted), "passed 5");
        assert_eq!(server.command::<u32>("DBSIZE").await, 1);
    }
}

#[tokio::test]
async fn an_untrusted_server_is_an_error_with_the_reason() {
    let home = Server::redis().await;
    authority(home.path(), "ca");
    authority(home.path(), "other");
    let (server, port) = server(home.path(), "DNS:example.org").await;
    let url = format!("rediss://:hunter2@localhost:{}", port.addr().port());
    let ca = |name: &str| home.path().join(name);
    let unknown = said(&url, &ca("other.pem"));
    assert!(unknown.contains("invalid peer certificate: UnknownIssuer"), "{unknown}");
    let renamed = said(&url, &ca("ca.pem"));
    assert!(renamed.contains("not valid for name \"localhost\""), "{renamed}");
    assert!(renamed.contains("example.org"), "{renamed}");
    for said in [unknown, renamed] {
        assert!(said.starts_with("failed Disconnected") && !said.contains("hunter2"), "{said}");
    }
    assert_eq!(server.command::<u32>("DBSIZE").await, 0);
}

/// A process that is killed on drop.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.kill().expect("the process is killed");
        self.0.wait().expect("it ends");
    }
}

#[tokio::test]
async fn a_sentinel_over_tls_leads_to_a_master_over_tls() {
    let home = Server::redis().await;
    authority(home.path(), "ca");
    let (_server, port) = server(home.path(), "DNS:localhost").await;
    let master = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let (sentinel, mut free) = (home.path().join("sentinel.conf"), Proxy::start(port.addr()).await);
    free.set(Mode::Refuse).await;
    let (number, master_port) = (free.addr().port(), master.local_addr().expect("a port").port());
    let text = format!(
        "port 0\ntls-port {number}\ntls-cert-file server.pem\ntls-key-file server.key\n\
         tls-ca-cert-file ca.pem\ntls-auth-clients no\n\
         sentinel monitor {name} 127.0.0.1 {master_port} 1\n\
         sentinel down-after-milliseconds {name} 600000\n",
        name = Sentinels::NAME
    );
    fs::write(sentinel, text).expect("a file");
    let mut command = Command::new(env::var("REDIS_SERVER").unwrap_or("redis-server".to_owned()));
    command.args(["sentinel.conf", "--sentinel"]).current_dir(home.path());
    let _sentinel = Ended(command.stdout(Stdio::null()).spawn().expect("starts"));
    let up = async || TcpStream::connect(free.addr()).await.ok();
    eventually("the sentinel is up", up).await;

    let (url, ca) = (format!("sentinel rediss://localhost:{number}"), home.path().join("ca.pem"));
    let client = tokio::task::spawn_blocking(move || said(&url, &ca));
    // A plain connection of the sentinel itself starts with an array. A TLS handshake starts with
    // 22.
    let encrypted = async || {
        let (mut stream, _) = master.accept().await.expect("a connection");
        (stream.read_u8().await.is_ok_and(|byte| byte == 22)).then_some(())
    };
    eventually("a handshake", encrypted).await;
    drop(master);
    assert!(client.await.expect("no panic").starts_with("failed"));
}

//! Every way in which a server ends a connection at the start, and the error that names it.

use std::path::Path;

use futures::{StreamExt, future::ready, stream};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::spawn_blocking,
};

use crate::{
    accounts::raw,
    servers::{FakeServer, Flavour, Server},
    tls::{authority, said, server},
};

const MAX_CLIENTS: &str = "the server ended the connection and said \"ERR max number of clients \
                           reached\"";
const PROTECTED: &str = "-DENIED Redis is running in protected mode because protected mode is \
                         enabled and no password is set for the default user.\r\n";
const HTTP: &str = "HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n";
const NO_WORD: &str = "the server ended the connection without a word";
const LOGIN: &str = "; check the user and password";

/// A program that is not a Redis server, or one that admits no connection.
#[derive(Clone, Copy)]
enum Peer {
    /// Sends a line at once, and closes the connection.
    Says(&'static str),
    /// Sends a line after the first bytes, and closes the connection.
    Answers(&'static str),
    /// Waits for a whole line, as Redis does in a TLS handshake.
    WaitsForLine,
}

impl Peer {
    /// Returns the address.
    async fn start(self) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(self.serve(stream));
            }
        });
        address
    }

    async fn serve(self, mut stream: TcpStream) -> std::io::Result<()> {
        let mut bytes = [0; 1_024];
        match self {
            Self::Says(line) => stream.write_all(line.as_bytes()).await?,
            Self::Answers(line) => {
                // Any first bytes, or the end.
                let _ = stream.read(&mut bytes).await?;
                stream.write_all(line.as_bytes()).await?;
            }
            Self::WaitsForLine => {
                while let read @ 1.. = stream.read(&mut bytes).await? {
                    if bytes[..read] == *b"PING\r\n" {
                        stream.write_all(b"-NOAUTH Authentication required.\r\n").await?;
                    }
                }
            }
        }
        Ok(())
    }
}

struct Case {
    name: String,
    url: String,
    /// Parts of the error.
    said: Vec<&'static str>,
    /// The kinds of stores. All have the same words if those are of one connection.
    kinds: &'static [&'static str],
}

impl Case {
    fn ended(name: &str, url: String, said: &'static str) -> Self {
        let said = vec!["Disconnected: redis: ", said, "`.lazy()` starts without it"];
        // A stream begins no TLS by itself.
        let kinds: &[&str] = match url.starts_with("rediss:") {
            true => &["", "cluster ", "sentinel "],
            false => &["", "cluster ", "sentinel ", "stream "],
        };
        Self { name: name.to_owned(), url, said, kinds }
    }

    fn replied(name: &str, url: String, said: [&'static str; 2]) -> Self {
        Self { name: name.to_owned(), url, said: said.into(), kinds: &["", "stream "] }
    }

    /// Returns the error of a store of this kind if it is wrong several times, because a busy
    /// machine may need more than the second of an attempt.
    async fn run(&self, kind: &str, trusted: &Path) -> Option<String> {
        let url = format!("{kind}{}", self.url);
        let mut error = String::new();
        for _ in 0..5 {
            let url = url.clone();
            let trusted = trusted.to_owned();
            error = spawn_blocking(move || said(&url, &trusted)).await.expect("no panic");
            assert!(!error.contains("hunter2") && !error.contains("secret"), "{error}");
            if self.said.iter().all(|part| error.contains(part)) {
                return None;
            }
        }
        Some(format!("{}, {url}: {error}\n", self.name))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_end_at_the_start_is_an_error_with_the_words_of_the_server() {
    let home = Server::redis().await;
    authority(home.path(), "ca");
    let (plain, tls_port) = server(home.path(), "DNS:localhost").await;
    let tls = tls_port.addr();
    let mut cases = vec![
        Case::ended("TLS to a plain port", format!("rediss://{}", plain.address()), "uses no TLS"),
        Case {
            kinds: &["", "cluster ", "sentinel "],
            ..Case::ended("plain to a TLS port", format!("redis://{tls}"), "give rediss://")
        },
        Case {
            kinds: &["stream "],
            ..Case::ended("a stream to a TLS port", format!("redis://{tls}"), "uses TLS, open")
        },
    ];
    let mut servers = Vec::new();
    let mut first_clients = Vec::new();
    for flavour in Flavour::ALL {
        let server = Server::start(flavour, &["--requirepass", "secret"]).await;
        let address = server.address();
        for url in [
            format!("redis://{address}"),
            format!("redis://:hunter2@{address}"),
            format!("redis://a:hunter2@{address}?protocol=resp3"),
        ] {
            cases.push(Case::replied("a wrong login", url, ["Denied: redis: ", LOGIN]));
        }
        servers.push(server);
        let server = Server::start(flavour, &[]).await;
        let mut first = raw(&server.url()).await;
        let mut set = redis::cmd("CONFIG");
        set.arg("SET").arg("maxclients").arg(1);
        let () = set.query_async(&mut first).await.expect("set");
        let address = server.address();
        cases.push(Case::ended("maxclients", format!("redis://{address}"), MAX_CLIENTS));
        let url = format!("redis://:secret@{address}");
        cases.push(Case::ended("maxclients, password", url, MAX_CLIENTS));
        let url = format!("redis://a:secret@{address}?protocol=resp3");
        cases.push(Case::ended("maxclients, RESP3", url, MAX_CLIENTS));
        let url = format!("rediss://{address}");
        cases.push(Case::ended(
            "maxclients, TLS",
            url,
            "said \"ERR max number of clients reached\"",
        ));
        servers.push(server);
        first_clients.push(first);
    }
    let loading =
        FakeServer::answering("-LOADING Redis is loading the dataset in memory\r\n").await;
    cases.push(Case::replied(
        "loading",
        loading.url(),
        ["Busy: redis: ", "Redis is loading the dataset"],
    ));
    for (name, peer, said) in [
        (
            "protected mode",
            Peer::Says(PROTECTED),
            "said \"DENIED Redis is running in protected mode",
        ),
        (
            "HTTP",
            Peer::Answers(HTTP),
            "the server is not Redis, and said \"HTTP/1.1 400 Bad Request\"",
        ),
        ("another greeting", Peer::Says("220 mail ESMTP\r\n"), "is not Redis, and said \"220 mail"),
        ("closed at once", Peer::Says(""), NO_WORD),
    ] {
        let address = peer.start().await;
        cases.push(Case::ended(name, format!("redis://{address}"), said));
        cases.push(Case::ended(name, format!("rediss://{address}"), said));
    }
    let waits = Peer::WaitsForLine.start().await;
    cases.push(Case::ended(
        "waits for a line",
        format!("rediss://{waits}"),
        "no TLS, and the server \
        said \"NOAUTH Authentication required.\"; give redis://",
    ));

    let trusted = home.path().join("ca.pem");
    let mut runs = Vec::new();
    for case in &cases {
        runs.extend(case.kinds.iter().map(|kind| case.run(kind, &trusted)));
    }
    let wrong: Vec<_> = stream::iter(runs).buffer_unordered(4).filter_map(ready).collect().await;
    assert!(wrong.is_empty(), "{}", wrong.concat());
}

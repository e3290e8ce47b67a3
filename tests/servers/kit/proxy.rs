//! The proxy that other tests use: each mode has its documented effect.

use std::{io::ErrorKind, net::SocketAddr, time::Duration};

use redis::{Client, cmd};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{Instant, timeout},
};

use crate::servers::{FakeServer, Mode, PATIENCE, Proxy, Server};

const ASK: &[u8] = b"*1\r\n$3\r\nASK\r\n";
const REPLY: &[u8] = b"$10\r\n0123456789\r\n";
const MOMENT: Duration = Duration::from_millis(200);

/// A server that answers [`REPLY`] to every request, behind a proxy.
async fn proxied() -> (Proxy, FakeServer) {
    let server = FakeServer::answering(REPLY).await;
    (Proxy::start(server.addr()).await, server)
}

async fn ask(stream: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    stream.write_all(ASK).await?;
    let mut reply = vec![0; REPLY.len()];
    let mut count = 0;
    while count < reply.len() {
        match timeout(PATIENCE, stream.read(&mut reply[count..])).await?? {
            0 => break,
            more => count += more,
        }
    }
    reply.truncate(count);
    Ok(reply)
}

async fn connect(address: SocketAddr) -> TcpStream {
    TcpStream::connect(address).await.expect("connects")
}

#[tokio::test]
async fn a_proxy_passes_everything_to_a_real_server() {
    let server = Server::redis().await;
    let proxy = Proxy::start(server.address()).await;
    let client = Client::open(server.url_at(proxy.addr())).expect("a URL");
    let mut connection = client.get_multiplexed_async_connection().await.expect("connects");
    let long = "x".repeat(1 << 20);
    let () = cmd("SET").arg("a").arg(&long).query_async(&mut connection).await.expect("set");
    let back: String = cmd("GET").arg("a").query_async(&mut connection).await.expect("got");
    assert!(back == long);
    let replica = Server::redis().await;
    replica.replica_of(proxy.addr()).await;
    assert_eq!(replica.command::<usize>("STRLEN a").await, long.len());
    assert_eq!(proxy.accepted().len(), 2);
    assert!(proxy.accepted().is_sorted());
}

#[tokio::test]
async fn each_reply_is_delayed_separately() {
    let (mut proxy, server) = proxied().await;
    proxy.set(Mode::Delay(MOMENT)).await;
    let mut stream = connect(proxy.addr()).await;
    let start = Instant::now();
    let mut reply = vec![0; 20 * REPLY.len()];
    for n in 1..=20 {
        stream.write_all(ASK).await.expect("sends");
        // The next request follows the answer to this one, so that there are twenty replies.
        while server.asked().len() < n {
            tokio::task::yield_now().await;
        }
    }
    stream.read_exact(&mut reply).await.expect("replies");
    let took = start.elapsed();
    assert!(took >= MOMENT && took < 10 * MOMENT, "{took:?}");
}

#[tokio::test]
async fn a_black_hole_holds_replies_until_it_ends() {
    let (mut proxy, server) = proxied().await;
    let mut old = connect(proxy.addr()).await;
    assert_eq!(ask(&mut old).await.expect("passes"), REPLY);
    proxy.set(Mode::BlackHole).await;
    let mut new = connect(proxy.addr()).await;
    for stream in [&mut old, &mut new] {
        stream.write_all(ASK).await.expect("sends");
        let mut byte = [0];
        assert!(timeout(MOMENT, stream.read(&mut byte)).await.is_err());
    }
    assert_eq!((server.asked().len(), proxy.accepted().len()), (1, 2));
    proxy.set(Mode::Pass).await;
    for stream in [&mut old, &mut new] {
        let mut reply = vec![0; REPLY.len()];
        stream.read_exact(&mut reply).await.expect("the held reply");
        assert_eq!(reply, REPLY);
    }
}

#[tokio::test]
async fn connections_are_dropped() {
    let (mut proxy, server) = proxied().await;
    let mut old = connect(proxy.addr()).await;
    assert_eq!(ask(&mut old).await.expect("passes"), REPLY);
    proxy.set(Mode::Drop).await;
    let reset = timeout(PATIENCE, old.read(&mut [0])).await.expect("at once");
    assert_eq!(reset.expect_err("a reset").kind(), ErrorKind::ConnectionReset);
    let mut new = connect(proxy.addr()).await;
    let reset = timeout(PATIENCE, new.read(&mut [0])).await.expect("at once");
    assert_eq!(reset.expect_err("a reset").kind(), ErrorKind::ConnectionReset);
    assert_eq!((proxy.accepted().len(), server.accepted()), (2, 1));
    proxy.set(Mode::Pass).await;
    assert_eq!(ask(&mut connect(proxy.addr()).await).await.expect("passes"), REPLY);
}

#[tokio::test]
async fn connections_fail() {
    let (mut proxy, _server) = proxied().await;
    let mut old = connect(proxy.addr()).await;
    assert_eq!(ask(&mut old).await.expect("passes"), REPLY);
    for _ in 0..3 {
        proxy.set(Mode::Refuse).await;
        let _ = timeout(PATIENCE, old.read(&mut [0])).await.expect("the connection was closed");
        let failed = TcpStream::connect(proxy.addr()).await.expect_err("no server listens");
        assert_eq!(failed.kind(), ErrorKind::ConnectionRefused);
        proxy.set(Mode::Pass).await;
        old = connect(proxy.addr()).await;
        assert_eq!(ask(&mut old).await.expect("passes"), REPLY);
    }
    assert_eq!(proxy.accepted().len(), 4);
}

#[tokio::test]
async fn one_reply_is_truncated() {
    let (mut proxy, _server) = proxied().await;
    let (mut one, mut other) = (connect(proxy.addr()).await, connect(proxy.addr()).await);
    proxy.set(Mode::Truncate(7)).await;
    assert_eq!(ask(&mut one).await.expect("a part"), REPLY[..7]);
    assert_eq!(ask(&mut other).await.expect("passes"), REPLY);
}

#[tokio::test]
async fn equal_seeds_flip_equal_bytes() {
    let mut seen = Vec::new();
    for (seed, one_in) in [(1, 4), (1, 4), (2, 4), (1, 1)] {
        let (mut proxy, _server) = proxied().await;
        proxy.set(Mode::Flip { seed, one_in }).await;
        let mut stream = connect(proxy.addr()).await;
        let replies = [ask(&mut stream).await, ask(&mut stream).await].map(|r| r.expect("bytes"));
        assert_ne!(replies[0], replies[1]);
        seen.push(replies.concat());
    }
    let same =
        |reply: &[u8]| reply.iter().zip(REPLY.iter().cycle()).filter(|(a, b)| a == b).count();
    assert_eq!(seen[0], seen[1]);
    assert_ne!(seen[0], seen[2]);
    assert!(same(&seen[0]) > 16 && same(&seen[0]) < 32, "{:?}", seen[0]);
    assert_eq!(same(&seen[3]), 0);
}

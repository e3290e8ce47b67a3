//! The fake server that other tests use. It sends the given bytes.

use std::time::Duration;

use redis::{Client, ErrorKind, RedisResult, Value, aio::MultiplexedConnection, cmd};
use tokio::time::timeout;

use crate::servers::{FakeServer, Reply, name};

async fn connection(server: &FakeServer, options: &str) -> MultiplexedConnection {
    let client = Client::open(format!("{}/3{options}", server.url())).expect("a URL");
    client.get_multiplexed_async_connection().await.expect("connects")
}

#[tokio::test]
async fn a_fake_server_sends_its_bytes() {
    let server = FakeServer::answering("$-1\r\n").await;
    let replies = [
        ("$-1\r\n", Value::Nil),
        (":9223372036854775807\r\n", Value::Int(i64::MAX)),
        (
            "*2\r\n:1\r\n*1\r\n$0\r\n\r\n",
            Value::Array(vec![Value::Int(1), Value::Array(vec![Value::BulkString(vec![])])]),
        ),
    ];
    for options in ["", "?protocol=resp3"] {
        let mut connection = connection(&server, options).await;
        for (bytes, value) in &replies {
            server.answer(bytes);
            let reply: RedisResult<Value> = cmd("GET").arg("a").query_async(&mut connection).await;
            assert_eq!(reply.expect("a reply"), *value);
        }
        for error in ["LOADING", "BUSY", "MASTERDOWN", "OOM", "WHATEVER"] {
            server.answer(format!("-{error} is the reason\r\n"));
            let reply: RedisResult<Value> = cmd("GET").arg("a").query_async(&mut connection).await;
            assert_eq!(reply.expect_err("an error").code(), Some(error));
        }
    }
    assert_eq!(server.accepted(), 2);
    let names: Vec<_> = server.asked().iter().map(|words| name(words)).collect();
    assert!(names.iter().any(|name| name == "HELLO") && names.iter().any(|name| name == "SELECT"));
    assert_eq!(names.iter().filter(|name| *name == "GET").count(), 2 * (3 + 5));
}

#[tokio::test]
async fn a_fake_server_sends_half_a_reply_or_none() {
    let mut count = 0;
    let server = FakeServer::start(move |words| {
        assert_eq!(words[1], [0, 255], "the words arrive unchanged");
        count += 1;
        if count == 1 { Reply::Silence } else { Reply::Close(b"$10\r\nabc".to_vec()) }
    });
    let server = server.await;
    let mut connection = connection(&server, "").await;
    let mut ask = cmd("EVALSHA");
    ask.arg(&[0_u8, 255]);
    assert!(
        timeout(Duration::from_millis(200), ask.query_async::<Value>(&mut connection))
            .await
            .is_err()
    );
    let half =
        ask.query_async::<Value>(&mut connection).await.expect_err("the reply was truncated");
    assert!(half.is_io_error() || half.kind() == ErrorKind::Parse, "{half:?}");
}

#[tokio::test]
async fn a_raw_fake_server_answers_the_handshake_too() {
    let server = FakeServer::raw(|_| "-NOAUTH Authentication required.\r\n".into()).await;
    let client = Client::open(format!("{}/3", server.url())).expect("a URL");
    let error = client.get_multiplexed_async_connection().await.expect_err("no SELECT");
    assert!(error.to_string().contains("Authentication required"), "{error}");
}

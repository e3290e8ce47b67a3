//! Slots behind a real HTTP/2 server, whose client resets streams and leaves.

use std::{convert::Infallible, io, time::Duration};

use axum::body::Body;
use bytes::Bytes;
use futures::stream;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty, StreamBody};
use hyper::{
    body::Frame,
    client::conn::http2::{SendRequest, handshake},
    server::conn::http2,
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tower::{Layer, ServiceExt};
use tower_sluice::{LocalStore, Quota, RateLimitLayer, key::Everyone};

/// Starts a server with two slots, whose responses never end. Returns a client.
async fn serve(store: &LocalStore) -> SendRequest<Empty<Bytes>> {
    let layer = RateLimitLayer::new(Everyone, Quota::concurrent(2), store.clone());
    let endless = tower::service_fn(async |_: Request<hyper::body::Incoming>| {
        let frame = || Ok::<_, io::Error>(Frame::data(Bytes::from_static(b"tick")));
        Ok::<_, Infallible>(Response::new(Body::new(StreamBody::new(stream::repeat_with(frame)))))
    });
    let service = layer.layer(endless);
    let (near, far) = tokio::io::duplex(1_024);
    let serve = service_fn(move |request| service.clone().oneshot(request));
    let server =
        http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(far), serve);
    drop(tokio::spawn(server));
    let connection = handshake(TokioExecutor::new(), TokioIo::new(near)).await;
    let (client, connection) = connection.expect("a connection");
    drop(tokio::spawn(connection));
    client
}

/// Waits until the store holds this number of slots.
async fn held(store: &LocalStore, slots: u64) {
    let held = async {
        while store.stats().held != slots {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), held).await.expect("the slots change");
}

#[tokio::test]
async fn a_reset_stream_and_a_lost_connection_free_their_slots() {
    let store = LocalStore::with_capacity(64);
    let mut client = serve(&store).await;
    let get = || Request::get("http://localhost/").body(Empty::new()).expect("a request");
    let mut first = client.send_request(get()).await.expect("served");
    let second = client.send_request(get()).await.expect("served");
    assert!(first.body_mut().frame().await.expect("a frame").is_ok());
    held(&store, 2).await;
    let denied = client.send_request(get()).await.expect("served");
    assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);

    // A dropped response body resets its stream.
    drop(first);
    held(&store, 1).await;
    let third = client.send_request(get()).await.expect("served");
    assert_eq!(third.status(), StatusCode::OK);
    held(&store, 2).await;
    drop((client, second, third));
    held(&store, 0).await;
}

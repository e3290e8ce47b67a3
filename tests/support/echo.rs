//! A gRPC service without generated code, and clients for it.

use std::{
    convert::Infallible,
    future::ready,
    net::SocketAddr,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::{Buf, BufMut, Bytes};
use http::{Request, Response, uri::PathAndQuery};
use tonic::{
    Status, Streaming,
    body::Body,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    transport::{Channel, server::TcpIncoming},
};
use tower::{Service, service_fn};

pub(crate) const GATHER: &str = "/test.Echo/Gather";

/// Passes messages unchanged.
#[derive(Clone, Copy)]
struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, message: Bytes, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        out.put(message);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, message: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(message.copy_to_bytes(message.remaining())))
    }
}

/// A service that returns its request. `Gather`, a client-streaming method, returns the number of
/// messages.
#[derive(Clone, Debug)]
pub(crate) struct Echo;

impl Service<Request<Body>> for Echo {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let echo = service_fn(|request: tonic::Request<Bytes>| {
            ready(Ok::<_, Status>(tonic::Response::new(request.into_inner())))
        });
        let gather = service_fn(async |request: tonic::Request<Streaming<Bytes>>| {
            let (mut messages, mut count) = (request.into_inner(), 0_u64);
            while messages.message().await?.is_some() {
                count += 1;
            }
            Ok::<_, Status>(tonic::Response::new(Bytes::from(count.to_string())))
        });
        Box::pin(async move {
            let mut grpc = tonic::server::Grpc::new(Raw);
            Ok(match request.uri().path() {
                GATHER => grpc.client_streaming(gather, request).await,
                _ => grpc.unary(echo, request).await,
            })
        })
    }
}

pub(crate) fn incoming() -> (TcpIncoming, SocketAddr) {
    let incoming = TcpIncoming::bind("127.0.0.1:0".parse().expect("an address")).expect("a port");
    let address = incoming.local_addr().expect("an address");
    (incoming, address)
}

pub(crate) async fn channel(address: SocketAddr) -> Channel {
    let channel = Channel::from_shared(format!("http://{address}")).expect("a uri");
    channel.connect().await.expect("a connection")
}

pub(crate) async fn connect(address: SocketAddr) -> tonic::client::Grpc<Channel> {
    tonic::client::Grpc::new(channel(address).await)
}

pub(crate) async fn echo(client: &mut tonic::client::Grpc<Channel>) -> Result<Bytes, Status> {
    client.ready().await.expect("ready");
    let path = PathAndQuery::from_static("/test.Echo/Echo");
    let request = tonic::Request::new(Bytes::from_static(b"hello"));
    client.unary(request, path, Raw).await.map(tonic::Response::into_inner)
}

/// Streams `messages` to a service that counts them.
pub(crate) async fn gather(
    client: &mut tonic::client::Grpc<Channel>,
    messages: impl futures::Stream<Item = Bytes> + Send + 'static,
) -> Result<Bytes, Status> {
    client.ready().await.expect("ready");
    let path = PathAndQuery::from_static(GATHER);
    let answer = client.client_streaming(tonic::Request::new(messages), path, Raw).await;
    answer.map(tonic::Response::into_inner)
}

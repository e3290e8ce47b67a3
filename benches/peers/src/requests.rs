//! Requests as a server passes them to a layer, and the count of allowed ones.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use axum::{body::Body, extract::ConnectInfo};
use http::{Request, Response};
use tower::{Service, ServiceExt};

use crate::apps::App;

/// The trusted proxy in front.
pub const PROXY: &str = "10.0.0.1";
/// The trusted proxy's address, as a socket on `[::]` reports it.
pub const MAPPED: &str = "::ffff:10.0.0.1";
/// The attacker's address, as the proxy sees it.
pub const ATTACKER: &str = "203.0.113.9";

/// Returns a GET from this peer, with these header lines.
pub fn from(peer: impl Into<IpAddr>, lines: &[(&str, &str)]) -> Request<Body> {
    let request = lines.iter().fold(Request::get("/"), |request, (k, v)| request.header(*k, *v));
    let mut request = request.body(Body::empty()).expect("a request");
    request.extensions_mut().insert(ConnectInfo(SocketAddr::new(peer.into(), 4711)));
    request
}

/// Returns a GET that the proxy forwards.
pub fn proxied(lines: &[(&str, &str)]) -> Request<Body> {
    from(ip(PROXY), lines)
}

pub fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

/// Returns one of many public addresses.
pub fn v4(number: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits((11 << 24) + number)
}

/// Returns one of many addresses of one customer's /64.
pub fn v6(number: u32) -> Ipv6Addr {
    Ipv6Addr::from_bits((0x2001_0db8_u128 << 96) + u128::from(number))
}

pub async fn ask(app: &mut App, request: Request<Body>) -> Response<Body> {
    app.ready().await.expect("ready").call(request).await.expect("an answer")
}

/// Counts the requests that reach the service.
pub async fn admitted(app: &mut App, requests: impl IntoIterator<Item = Request<Body>>) -> usize {
    let mut admitted = 0;
    for request in requests {
        admitted += usize::from(ask(app, request).await.status().is_success());
    }
    admitted
}

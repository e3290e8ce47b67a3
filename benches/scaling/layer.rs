//! Keys and rules through the whole service.

use std::{
    convert::Infallible,
    hint::black_box,
    net::SocketAddr,
    pin::pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use http::{Request, Response};
use tower::{Layer, Service};
use tower_sluice::{Headers, LocalStore, PeerIp, RateLimitLayer, Rule, rule::Rules};

use crate::{
    accounts::{BATCH, DEEP, address, names, put_in_debt},
    hello::{Body, Hello},
    rounds::{Case, each, many, random, table},
};

pub(crate) fn tables(time: Duration) {
    let known = |keys| {
        let store = LocalStore::with_capacity(keys as usize);
        put_in_debt(&store, keys, DEEP);
        let (rule, before) = (Rule::new("default", PeerIp::new(), DEEP), store.stats());
        let mut run = serve_many(limited(rule, store.clone(), Headers::None), keys);
        run();
        assert_eq!(store.stats().active, before.active, "the layer's accounts are those");
        Case::new(format!("{keys} keys"), run)
    };
    table("layer, keys, no fields", time, [1_000, 10_000, 100_000, 1_000_000].map(known).into());
    for (title, headers) in [
        ("layer, rules, no fields", Headers::None),
        ("layer, rules, with fields", Headers::default()),
    ] {
        let rules = [1, 2, 4, 8].map(|count| {
            let rules = names(count).iter().map(|name| Rule::new(name, PeerIp::new(), DEEP));
            let rules: Vec<_> = rules.collect();
            let service = limited(rules, LocalStore::new(), headers);
            Case::new(many(count, "rule"), serve_many(service, 1))
        });
        let mut cases = Vec::from(rules);
        cases.push(Case::new("no layer", serve_many(Hello, 1)));
        table(title, time, cases);
    }
}

pub(crate) fn limited<R>(rules: R, store: LocalStore, headers: Headers) -> impl Limited
where
    R: Rules + Clone + Send + Sync + 'static,
{
    RateLimitLayer::rules(rules, store).headers(headers).layer(Hello)
}

/// A service of which each thread has a clone.
pub(crate) trait Limited:
    Service<Request<Body>, Response = Response<Body>, Error = Infallible> + Clone + Send + 'static
{
}

impl<S> Limited for S where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>
        + Clone
        + Send
        + 'static
{
}

pub(crate) fn request(key: u32) -> Request<Body> {
    let mut request = Request::new(Body::default());
    request.extensions_mut().insert(SocketAddr::new(address(key), 4000));
    request
}

/// Serves requests created in advance; dropping responses is included.
pub(crate) fn serve(service: &mut impl Limited, requests: Vec<Request<Body>>) {
    for request in requests {
        let mut cx = Context::from_waker(Waker::noop());
        assert!(service.poll_ready(&mut cx).is_ready());
        match pin!(service.call(black_box(request))).poll(&mut cx) {
            Poll::Ready(Ok(response)) => assert!(response.status().is_success()),
            Poll::Pending => unreachable!("an embedded store answers at once"),
        }
    }
}

/// Returns batches of requests for random keys.
fn serve_many(mut service: impl Limited, keys: u32) -> impl FnMut() -> f64 {
    let mut next = random(keys);
    move || {
        let batch: Vec<_> = (0..BATCH).map(|_| request(next())).collect();
        each(BATCH, || serve(&mut service, batch))
    }
}

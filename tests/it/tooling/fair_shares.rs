//! The simulation of fair shares, and the layer under the same load.

use std::{net::Ipv4Addr, time::Duration};

use tower::{Layer, Service};
use tower_sluice::{
    Cost, Quota, RateLimitLayer, Rule,
    key::{Everyone, key_fn},
    testing::FakeClock,
};

use self::example::{Arrival, Case, Tally, cases, check, kinds, play};

#[path = "../../../examples/fair_shares.rs"]
#[expect(dead_code, reason = "the example prints")]
mod example;

/// The client of a request, and its weight.
#[derive(Clone, Copy)]
struct Client(u32, u32);

/// Sends the requests of a case to layers on one embedded store: one for each process.
fn by_the_layer(case: &Case, seconds: f64) -> Tally {
    let clock = FakeClock::new();
    let store = clock.store(65_536);
    let layer = || {
        let key = key_fn(|head| {
            head.extensions.get::<Client>().map(|client| Ipv4Addr::from_bits(client.0))
        });
        let weight = Cost::from_fn(|head| head.extensions.get::<Client>().map_or(1, |it| it.1));
        let site = Rule::new("site", Everyone, Quota::per_second(1_000).with_burst(200));
        let site =
            clock.fair(site.fair_by(key).weight(weight).max_clients(case.tracked.min(1_024)));
        let inner = tower::service_fn(async |_: http::Request<()>| {
            Ok::<_, std::convert::Infallible>(http::Response::new(()))
        });
        RateLimitLayer::rules(site, store.clone()).layer(inner)
    };
    let mut services: Vec<_> = (0..case.processes).map(|_| layer()).collect();
    let mut now = Duration::ZERO;
    let mut admit = |(at, client, process): Arrival| {
        let at = Duration::from_secs_f64(at);
        clock.advance(at.saturating_sub(now));
        now = at;
        let mut request = http::Request::new(());
        let weight = f64::to_string(&case.clients[client].weight).parse().expect("a whole number");
        let id = u32::try_from(client).expect("few");
        request.extensions_mut().insert(Client(id, weight));
        let answer = futures::executor::block_on(services[process].call(request));
        answer.expect("infallible").status() == 200
    };
    if case.tracked < case.clients.len() {
        // The clients that are no invented keys come first.
        let honest = case.clients.iter().filter(|it| it.rate == case.clients[0].rate).count();
        (0..honest).for_each(|client| assert!(admit((0.0, client, 0)), "the pool is full"));
    }
    play(case, seconds, admit)
}

#[test]
#[allow(clippy::print_stdout, reason = "the figures are published")]
fn the_layer_keeps_the_promises_of_the_simulation() {
    for case in cases() {
        // A build without optimizations plays the cases that promise something, in part.
        let seconds = match case.name {
            _ if !cfg!(debug_assertions) => 60.0,
            name if name.contains("weights") => 20.0,
            name if ["3 processes", "invented", "on and off"]
                .iter()
                .any(|it| name.contains(it)) =>
            {
                continue;
            }
            _ => 10.0,
        };
        let tally = by_the_layer(&case, seconds);
        for kind in kinds(&case, &tally) {
            let (got, asked, part) = (kind.got, kind.asked, kind.got / kind.asked * 100.0);
            println!(
                "{}: {got:.1}/s of {asked:.0} ({part:.1} %, Jain {:.2})",
                case.name, kind.jain
            );
        }
        check(&case, &tally);
    }
}

//! The toggle of a layer is switched under load.

use std::{
    convert::Infallible,
    time::{Duration, Instant},
};

use http::{Request, Response, StatusCode};
use tokio::time::sleep;
use tower::{Layer, ServiceExt, service_fn};
use tower_sluice::{RateLimitLayer, RedisStore, Rule, StoreExt, key::Everyone, middleware::Toggle};

use crate::{
    fault::Fault,
    options::Options,
    row::Row,
    stack::{BUDGET, QUOTA},
};

/// The time for which the layer receives requests while it is on, each time.
const WHILE: Duration = Duration::from_secs(1);
/// The requests that pass in that time: a burst, and returning units.
const LIMIT: u32 = QUOTA.limit() + 10;
/// The requests while it is off.
const OFF: u32 = 1_000;

pub(crate) fn faults() -> Vec<Fault> {
    let holds = "the next request passes, and limits apply again when the toggle is on";
    vec![Fault::other("switch turned", holds, turn)]
}

async fn turn(options: &Options, mut row: Row) -> Row {
    let server = options.server().await;
    let store = RedisStore::connect(&server.url()).await.expect("connects");
    let store = store.timeout(BUDGET).breaker().fail_closed();
    let switch = Toggle::on();
    let layer = RateLimitLayer::rules(Rule::new("api", Everyone, QUOTA), store).enabled(&switch);
    let service = layer.layer(service_fn(async |_: Request<()>| {
        Ok::<_, Infallible>(Response::new(String::new()))
    }));
    let passes = async || {
        let response = service.clone().oneshot(Request::new(())).await;
        response.expect("an answer").status() == StatusCode::OK
    };
    let count_for_a_while = async || {
        let (start, mut passed) = (Instant::now(), 0);
        while start.elapsed() < WHILE {
            passed += u32::from(passes().await);
            sleep(Duration::from_millis(1)).await;
        }
        passed
    };

    let before = count_for_a_while().await;
    switch.set(false);
    let mut off = 0;
    for _ in 0..OFF {
        off += u32::from(passes().await);
    }
    switch.set(true);
    let after = count_for_a_while().await;

    row.notes.push(format!(
        "{before} passed in {WHILE:?}, then {off} of {OFF} while it was off, then {after} in {WHILE:?}"
    ));
    row.demand(off == OFF, || format!("{} rejected while it was off", OFF - off));
    row.demand(before.max(after) <= LIMIT, || format!("more than {LIMIT} passed while it was on"));
    row
}

//! Decisions as header fields: the fields are valid, and read back as the decision's numbers.

use std::{convert::Infallible, future::ready};

use futures::executor::block_on;
use http::{HeaderValue, Request, Response};
use tower::{Layer, ServiceExt, service_fn};
use tower_sluice::{
    Cost, Decision, Headers, Key, Limiter, Quota, RateLimitLayer, Rule, headers::exposed_headers,
    key::Everyone, rule::RuleName, testing::FakeClock,
};

use super::{fields::Fields, input::Input};

const FAMILIES: [Headers; 6] = [
    Headers::RateLimit,
    Headers::Draft07,
    Headers::Draft06,
    Headers::XRateLimit,
    Headers::XRateLimitDelta,
    Headers::None,
];
/// The letters of names. Interned names are never freed, so there must be few of them.
const LETTERS: &[u8] = b"ab\\\" ;=,~\x7f";
const QUOTA_NAMES: [Option<&str>; 5] = [None, None, Some("a"), Some("\\\"; r=0"), Some("~")];

/// Reads the family, a field of the handler, and up to three rules.
pub(crate) fn check(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let family = input.one_of(&FAMILIES);
    let field = &exposed_headers()[usize::from(input.byte()) % exposed_headers().len()];
    let Ok(value) = HeaderValue::from_bytes(input.line()) else { return };
    let store = FakeClock::new().store(64);
    let mut rules = Vec::new();
    for _ in 0..=input.byte() % 3 {
        let Some((name, quotas)) = rule(&mut input) else { return };
        let owed = u32::try_from(input.number()).unwrap_or(u32::MAX);
        drop(
            Limiter::named(name.as_str(), store.clone())
                .charge(Key::everyone(), &quotas, owed)
                .now(),
        );
        let cost = u32::try_from(input.number()).unwrap_or(1);
        rules.push(Rule::new(name.as_str(), Everyone, quotas).cost(Cost::from_fn(move |_| cost)));
    }
    let Ok(layer) = RateLimitLayer::try_rules(rules, store) else { return };
    let layer = layer.headers(family).expose_decision();
    let handler = service_fn(|_: Request<()>| {
        let mut response = Response::new(String::new());
        response.headers_mut().append(field, value.clone());
        ready(Ok::<_, Infallible>(response))
    });
    let answered = block_on(layer.layer(handler).oneshot(Request::new(())));
    let (parts, _) = answered.expect("infallible").into_parts();
    let decision = parts.extensions.get::<Decision>().expect("exposed");
    let there = decision.is_allowed().then_some((field, &value));
    Fields { headers: &parts.headers, decision, there }.check(family);
}

/// Reads a name, and one or two quotas: a line of text each, its soft units and its name.
fn rule(input: &mut Input<'_>) -> Option<(RuleName, Vec<Quota>)> {
    let name: Vec<_> = (0..input.byte() % 6).map(|_| input.one_of(LETTERS)).collect();
    let name = RuleName::new(str::from_utf8(&name).ok()?).ok()?;
    let mut quotas = Vec::new();
    for _ in 0..=input.byte() % 2 {
        let quota: Quota = input.text().parse().ok()?;
        let soft = u32::try_from(input.number()).unwrap_or(0);
        let quota = quota.try_with_soft(soft).unwrap_or(quota);
        quotas.push(input.one_of(&QUOTA_NAMES).map_or(quota, |name| quota.with_name(name)));
    }
    Some((name, quotas))
}

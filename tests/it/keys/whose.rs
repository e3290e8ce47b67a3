//! Keys of every kind under each mechanism that punishes or favours a key.

use std::{
    net::SocketAddr,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use http::{Request, StatusCode};
use tower::{Layer, Service};
use tower_sluice::{
    ClientIp, Decision, Key, PeerIp, Quota, RateLimitLayer, RequestHead, Rule,
    key::{
        Everyone, ExtensionKey, HeaderKey, KeyError, KeyExtractor, MethodKey, RouteKey, Unreadable,
    },
    key_fn,
    middleware::{Adjustment, ChargeHandle, Penalty},
    rule::OnMissingKey,
    testing::FakeClock,
};

use crate::support::{ask, driven::handler, with};

const MINUTE: Duration = Duration::from_secs(60);
const ONE: Quota = Quota::per_hour(1);

type Extractor = Arc<dyn KeyExtractor + Send + Sync>;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Mechanism {
    /// A penalty whose strikes are denials.
    Denials,
    /// A penalty whose strikes are responses.
    Responses,
    /// A block by the handler.
    Block,
    /// A reset by the handler.
    Reset,
    /// A fair share of its own.
    Share,
    /// A part of the queue of its own.
    Queue,
}

const MECHANISMS: [Mechanism; 6] = [
    Mechanism::Denials,
    Mechanism::Responses,
    Mechanism::Block,
    Mechanism::Reset,
    Mechanism::Share,
    Mechanism::Queue,
];

#[derive(Clone, Copy, Debug)]
enum Whose {
    Client,
    /// That of several clients, or of some that are not known.
    Others,
    /// That of all clients, for each key of the extractor.
    All,
    /// That of any client that uses one thing, for each key of the extractor.
    Any,
}

/// An extractor, and a request in which it finds a key of this kind.
struct Kind {
    name: &'static str,
    extractor: Extractor,
    request: Request<()>,
    whose: Whose,
}

fn kind(
    whose: Whose,
    name: &'static str,
    extractor: impl KeyExtractor + Send + Sync + 'static,
    headers: &[(&str, &str)],
) -> Kind {
    let mut request = with(headers);
    request.extensions_mut().insert(SocketAddr::from(([10, 0, 0, 1], 80)));
    request.extensions_mut().insert(Key::from("alice"));
    Kind { name, extractor: Arc::new(extractor), request, whose }
}

fn client_ip() -> ClientIp {
    ClientIp::behind(["10.0.0.0/8"]).expect("networks")
}

/// An extractor of another crate, behind proxies of its own.
struct OwnProxies;

impl KeyExtractor for OwnProxies {
    fn extract(&self, head: &RequestHead<'_>) -> Result<Option<Key>, KeyError> {
        Ok(Some(match head.headers.get("x-client") {
            Some(client) => client.into(),
            None => Key::from("proxy").of_proxy(),
        }))
    }
}

/// An extractor of another crate, which finds no clients.
struct Region;

impl KeyExtractor for Region {
    fn extract(&self, _: &RequestHead<'_>) -> Result<Option<Key>, KeyError> {
        Ok(Some("eu".into()))
    }

    fn can_be_client(&self) -> bool {
        false
    }
}

fn kinds() -> Vec<Kind> {
    let header = || HeaderKey::new("x-client");
    let unreadable = || client_ip().unreadable(Unreadable::Share);
    let alice = [("x-client", "alice")];
    let address = [("x-forwarded-for", "203.0.113.9")];
    let proxy = [("x-forwarded-for", "10.0.0.2")];
    let garbage = [("x-forwarded-for", "garbage")];
    let any_peer = ClientIp::behind_any_peer_dangerous;
    let boxed: Box<dyn KeyExtractor + Send + Sync> = Box::new(Everyone);
    vec![
        kind(Whose::Client, "a peer", PeerIp::new(), &[]),
        kind(Whose::Client, "a client behind a proxy", client_ip(), &address),
        kind(Whose::Client, "a client by hops", ClientIp::hops(1), &address),
        kind(Whose::Client, "a client of any peer", any_peer(), &address),
        kind(Whose::Client, "a header", header(), &alice),
        kind(Whose::Client, "an extension", ExtensionKey::<Key>::new(), &[]),
        kind(Whose::Client, "a closure", key_fn(|_| Some("alice")), &[]),
        kind(Whose::Client, "a route and a client", (RouteKey, client_ip()), &address),
        kind(Whose::Client, "all and a client", (Everyone, PeerIp::new()), &[]),
        kind(Whose::Client, "a region and a client", (Region, header()), &alice),
        kind(Whose::Client, "the first of two", header().or(Everyone), &alice),
        kind(Whose::Client, "a client of another crate", OwnProxies, &alice),
        kind(Whose::Others, "the second of two", header().or(Everyone), &[]),
        kind(Whose::Others, "no header of a proxy", client_ip(), &[]),
        kind(Whose::Others, "a header of proxies", client_ip(), &proxy),
        kind(Whose::Others, "no header of any peer", any_peer(), &[]),
        kind(Whose::Others, "a route and a proxy", (RouteKey, client_ip()), &[]),
        kind(Whose::Others, "a header and a proxy", (header(), client_ip()), &alice),
        kind(Whose::Others, "an unreadable header", unreadable(), &garbage),
        kind(Whose::Others, "a route and an unreadable header", (RouteKey, unreadable()), &garbage),
        kind(Whose::Others, "no key", header(), &[]),
        kind(Whose::Others, "a proxy of another crate", OwnProxies, &[]),
        kind(Whose::Others, "all, by a closure", key_fn(|_| Some(Key::everyone())), &[]),
        kind(Whose::All, "all", Everyone, &[]),
        kind(Whose::All, "all, in a box", boxed, &[]),
        kind(Whose::Any, "a method", MethodKey, &[]),
        kind(Whose::Any, "a route", RouteKey, &[]),
        kind(Whose::Any, "a method and all", (MethodKey, Everyone), &[]),
        kind(Whose::Any, "a method or a route", MethodKey.or(RouteKey), &[]),
        kind(Whose::Any, "a region", Region, &[]),
    ]
}

fn rule(kind: &Kind, quota: Quota) -> Rule<Extractor> {
    Rule::new("own", kind.extractor.clone(), quota).on_missing_key(OnMissingKey::Share)
}

/// Returns `None` if the layer is not built.
fn built<T>(build: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(build)).ok()
}

fn decision<B>(response: &http::Response<B>) -> Decision {
    response.extensions().get::<Decision>().expect("exposed").clone()
}

/// Returns `true` if the mechanism acts on keys of this kind, or `None` if the layer is not built.
async fn acts(mechanism: Mechanism, kind: &Kind) -> Option<bool> {
    match mechanism {
        Mechanism::Denials => {
            let penalty = Penalty::after(Quota::per_minute(3));
            is_penalized(kind, ONE, penalty).await
        }
        Mechanism::Responses => {
            let penalty = Penalty::after(Quota::per_minute(3)).by_response(|_| true);
            is_penalized(kind, Quota::per_hour(1_000), penalty).await
        }
        Mechanism::Block => {
            let block = |handle: &ChargeHandle| handle.block(MINUTE).expect("blocked");
            Some(after_handler(kind, block).await.is_blocked())
        }
        Mechanism::Reset => Some(after_handler(kind, ChargeHandle::reset).await.is_allowed()),
        Mechanism::Share => has_share(kind).await,
        Mechanism::Queue => Some(has_own_queue(kind)),
    }
}

async fn is_penalized(kind: &Kind, quota: Quota, penalty: Penalty) -> Option<bool> {
    let layer = built(|| {
        let layer = RateLimitLayer::rules(rule(kind, quota), FakeClock::new().store(64));
        layer.expose_decision().penalty("own", penalty)
    })?;
    let mut service = layer.layer(handler(|_| 200));
    let mut blocked = false;
    for _ in 0..20 {
        blocked |= decision(&ask(&mut service, kind.request.clone()).await).is_blocked();
    }
    Some(blocked)
}

/// Returns the decision about the second request, after a call by the handler of the first.
async fn after_handler(kind: &Kind, call: fn(&ChargeHandle)) -> Decision {
    let layer = RateLimitLayer::rules(rule(kind, ONE), FakeClock::new().store(64));
    let layer = layer.expose_decision().expose_charge(Adjustment::Keep);
    let mut service = layer.layer(handler(move |request| {
        call(request.extensions().get().expect("a handle"));
        200
    }));
    assert_eq!(ask(&mut service, kind.request.clone()).await.status(), StatusCode::OK);
    decision(&ask(&mut service, kind.request.clone()).await)
}

/// An extractor beside which there is another client.
struct Beside(Extractor);

impl KeyExtractor for Beside {
    fn extract(&self, head: &RequestHead<'_>) -> Result<Option<Key>, KeyError> {
        match head.headers.get("x-other") {
            Some(other) => Ok(Some(other.into())),
            None => self.0.extract(head),
        }
    }

    fn can_be_client(&self) -> bool {
        self.0.can_be_client()
    }
}

/// A client has the weight 3 of 6, and all others together 1 of 4.
async fn has_share(kind: &Kind) -> Option<bool> {
    let clock = FakeClock::new();
    let site = Rule::new("site", Everyone, Quota::per_second(100));
    let site = site.on_missing_key(OnMissingKey::Share);
    let site = built(|| clock.fair(site.fair_by(Beside(kind.extractor.clone())).weight(3)))?;
    let layer = RateLimitLayer::rules(site, clock.store(64)).expose_decision();
    let mut service = layer.layer(handler(|_| 200));
    ask(&mut service, with(&[("x-other", "other")])).await;
    let decision = decision(&ask(&mut service, kind.request.clone()).await);
    let burst = decision.outcomes()[0].limit();
    assert!([25, 13].contains(&burst), "{}: {burst}", kind.name);
    Some(burst == 25)
}

/// A client has one place in the queue.
fn has_own_queue(kind: &Kind) -> bool {
    let rule = rule(kind, Quota::per_second(1)).max_wait(MINUTE);
    // A key has a 64th of the places.
    let layer = RateLimitLayer::rules(rule, FakeClock::new().store(64)).max_waiters(64);
    let mut service = layer.layer(handler(|_| 200));
    let calls = [(); 3].map(|()| service.call(kind.request.clone()));
    let [mut first, mut second, mut third] = calls.map(tokio_test::task::spawn);
    assert!(first.poll().is_ready() && second.poll().is_pending(), "{}", kind.name);
    third.poll().is_ready()
}

#[tokio::test(start_paused = true)]
async fn mechanisms_that_punish_or_favour_act_on_keys_of_clients_only() {
    let mut wrong = Vec::new();
    for kind in kinds() {
        for mechanism in MECHANISMS {
            let is_setting =
                matches!(mechanism, Mechanism::Denials | Mechanism::Responses | Mechanism::Share);
            let expected = match kind.whose {
                Whose::Client => Some(true),
                Whose::Others => Some(false),
                Whose::All => (!is_setting).then_some(false),
                // A route cannot take the places of others.
                Whose::Any => (!is_setting).then_some(mechanism == Mechanism::Queue),
            };
            let found = acts(mechanism, &kind).await;
            if found != expected {
                wrong.push((kind.name, mechanism, found));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}

#[test]
fn a_penalty_of_all_clients_is_not_built() {
    let error = |of: fn()| {
        let panic = catch_unwind(of).expect_err("a panic");
        panic.downcast::<String>().map_or_else(|_| "no text".to_owned(), |text| *text)
    };
    let penalty = error(|| {
        let layer =
            RateLimitLayer::rules(Rule::new("all", Everyone, ONE), FakeClock::new().store(64));
        drop(layer.penalty("all", Penalty::after(ONE)));
    });
    assert_eq!(
        penalty,
        "penalty: the key of rule all is never that of one client, so a block would be one of all \
         clients; give the penalty to a rule with a key such as PeerIp or ClientIp"
    );
    let share = error(|| {
        drop(Rule::new("site", Everyone, Quota::per_second(9)).fair_by(MethodKey));
    });
    assert!(
        share.starts_with("rule site: fair_by a key that is never that of one client"),
        "{share}"
    );
}

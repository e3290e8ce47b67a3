//! Fair shares under a flood of the keys of one network.

use std::{
    collections::BTreeSet,
    net::{Ipv6Addr, SocketAddr},
    time::Duration,
};

use http::{Request, StatusCode};
use tower::Layer;
use tower_sluice::{
    AccessList, Cost, Key, LocalStore, PeerIp, Quota, RateLimitLayer, RequestHead, Rule, StoreExt,
    key::Everyone,
    rule::{Applies, FairRule, RuleName, Rules},
    store::Charge,
    testing::FakeClock,
};

use crate::support::{ask, driven::handler, get};

const SECOND: Duration = Duration::from_secs(1);
const RATE: u32 = 100;
/// The invented keys: networks of /64 in one /48.
const INVENTED: u16 = 500;
const OTHERS: u8 = 10;

type Limit = RateLimitLayer<Vec<Box<dyn Rules + Send + Sync>>, LocalStore>;

/// A way in which a request of an invented key uses nothing of the limit.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Useless {
    AnotherRule,
    Never,
    Headroom,
    Free,
    Blocked,
    Allowed,
    Explained,
}

const ALL: [Useless; 7] = [
    Useless::AnotherRule,
    Useless::Never,
    Useless::Headroom,
    Useless::Free,
    Useless::Blocked,
    Useless::Allowed,
    Useless::Explained,
];

fn invented(network: u16) -> SocketAddr {
    SocketAddr::from(([0x2001, 0xdb8, 1, network, 0, 0, 0, 1], 1))
}

fn other(number: u8) -> SocketAddr {
    SocketAddr::from(([203, 0, 113, number], 1))
}

fn from(address: SocketAddr) -> Request<()> {
    let mut request = get("/");
    request.extensions_mut().insert(address);
    request
}

fn is_invented(head: &RequestHead<'_>) -> bool {
    head.extensions.get::<SocketAddr>().is_some_and(SocketAddr::is_ipv6)
}

fn site(useless: Option<Useless>) -> FairRule<PeerIp> {
    let units = move |usual: u32, invented: u32| {
        Cost::from_fn(move |head| if is_invented(head) { invented } else { usual })
    };
    let cost = match useless {
        Some(Useless::Never) => units(1, RATE + 1),
        Some(Useless::Free) => units(1, 0),
        _ => Cost::from(1),
    };
    let headroom = if useless == Some(Useless::Headroom) { RATE } else { 0 };
    let site = Rule::new("site", Everyone, Quota::per_second(RATE));
    site.cost(cost).headroom(units(0, headroom)).fair_by(PeerIp::new())
}

fn layer(clock: &FakeClock, useless: Useless) -> Limit {
    let store = clock.store(65_536);
    let none = Rule::new("none", Everyone, Quota::blocked());
    let none = none.applies(|head| match is_invented(head) {
        true => Applies::Charge,
        false => Applies::Skip,
    });
    let mut rules: Vec<Box<dyn Rules + Send + Sync>> =
        vec![Box::new(clock.fair(site(Some(useless))))];
    if useless == Useless::AnotherRule {
        rules.push(Box::new(none));
    }
    if useless == Useless::Blocked {
        let rule = RuleName::new("site.share").expect("a name");
        for network in 0..INVENTED {
            let key = Key::from(Ipv6Addr::from([0x2001, 0xdb8, 1, network, 0, 0, 0, 0]));
            assert!(store.block(&Charge::new(rule, &key, &[]), 60 * SECOND).now().is_allowed());
        }
    }
    let layer = RateLimitLayer::rules(rules, store);
    match useless {
        Useless::Allowed => layer.allow(AccessList::from_fn(is_invented)),
        _ => layer,
    }
}

/// The requests of ten clients, and the part that was admitted.
struct Part {
    sent: u32,
    admitted: u32,
}

impl Part {
    fn percent(&self) -> u32 {
        self.admitted * 100 / self.sent
    }
}

/// Sends requests for six seconds, and counts from the second on, when the burst is spent: ten clients, each
/// five a second, one client that asks for ten times the limit, and each invented key two a second.
async fn flood<R: Rules + Send + Sync + 'static>(
    clock: &FakeClock,
    layer: &RateLimitLayer<R, LocalStore>,
    explain: bool,
) -> Part {
    let mut service = layer.clone().layer(handler(|_| 200));
    let mut part = Part { sent: 0, admitted: 0 };
    for tick in 0..600_u16 {
        clock.advance(SECOND / 100);
        let mut clients: Vec<_> = (0..10).map(|at| invented(tick % 50 * 10 + at)).collect();
        clients.extend([other(200); 10]);
        let due = (0..OTHERS).filter(|number| tick % 20 == u16::from(*number) * 2);
        clients.extend(due.map(other));
        // Another one comes first in each tick.
        let first = usize::from(tick) * 7 % clients.len();
        clients.rotate_left(first);
        for client in clients {
            if explain && client.is_ipv6() {
                drop(layer.explain(&from(client)).await);
                continue;
            }
            let answer = ask(&mut service, from(client)).await;
            if tick >= 100 && client.is_ipv4() && client != other(200) {
                part.sent += 1;
                part.admitted += u32::from(answer.status() == StatusCode::OK);
            }
        }
    }
    assert_eq!(part.sent, 250);
    part
}

#[tokio::test]
async fn keys_that_use_nothing_of_the_limit_take_no_shares() {
    let mut percent = Vec::new();
    for useless in ALL {
        let clock = FakeClock::new();
        let layer = layer(&clock, useless);
        let part = flood(&clock, &layer, useless == Useless::Explained).await;
        percent.push((useless, part.percent()));
    }
    assert!(percent.iter().all(|(_, percent)| *percent >= 98), "{percent:?} %");
}

/// The documented limitation, and its cure: one share for the network.
#[tokio::test]
async fn admitted_keys_of_a_network_have_a_share_each_unless_the_key_is_the_network() {
    let mut percent = Vec::new();
    for bits in [64, 48] {
        let clock = FakeClock::new();
        let rule = Rule::new("site", Everyone, Quota::per_second(RATE));
        let rule = clock.fair(rule.fair_by(PeerIp::new().ipv6_prefix(bits)));
        let layer = RateLimitLayer::rules(rule, clock.store(4_096));
        percent.push(flood(&clock, &layer, false).await.percent());
    }
    assert!(percent[0] < 50 && percent[1] >= 98, "{percent:?} %");
}

/// Returns how many of 50 new clients are admitted in the first and in the first two seconds, each with
/// two requests a second, while other clients that came before ask for ten times the limit together.
async fn admitted_new_clients(clients: u16) -> [usize; 2] {
    let clock = FakeClock::new();
    let layer = RateLimitLayer::rules(clock.fair(site(None)), clock.store(4_096));
    let mut service = layer.layer(handler(|_| 200));
    let (mut admitted, mut next) = (BTreeSet::new(), 0);
    let mut after_a_second = 0;
    for tick in 0..700_u16 {
        clock.advance(SECOND / 100);
        let mut asking = Vec::new();
        for _ in 0..10 {
            asking.push(invented(next % clients));
            next = next.wrapping_add(1);
        }
        if tick >= 500 {
            asking.push(other(u8::try_from(tick % 50).expect("a number")));
        }
        // Another one comes first in each tick.
        let first = usize::from(tick) * 7 % asking.len();
        asking.rotate_left(first);
        for client in asking {
            let answer = ask(&mut service, from(client)).await;
            if client.is_ipv4() && answer.status() == StatusCode::OK {
                admitted.insert(client);
            }
        }
        if tick == 599 {
            after_a_second = admitted.len();
        }
    }
    [after_a_second, admitted.len()]
}

/// A new client has its share at once, but needs a unit that the flood has left in the pool. With many
/// more clients than units, an equal division has a unit for 9 of the 50 in each second as well.
#[tokio::test]
async fn new_clients_enter_a_flood_of_few_at_once_and_a_flood_of_many_as_units_allow() {
    assert_eq!(admitted_new_clients(1).await, [50, 50]);
    assert_eq!(admitted_new_clients(10).await, [50, 50]);
    let by_units = admitted_new_clients(100).await;
    assert!((15..=25).contains(&by_units[0]) && by_units[1] >= 25, "{by_units:?}");
    let by_many = admitted_new_clients(500).await;
    assert!((7..=13).contains(&by_many[0]) && by_many[1] >= 14, "{by_many:?}");
}

//! Simulates fair shares of one global limit: `cargo run -p dev --release --example fair_shares`
//!
//! A pool admits 1,000 requests per second with a burst of 200. Each client has a share of the rate
//! by its weight among the clients that were admitted in the last second, with a burst of half a second. A request is
//! admitted by
//!
//! 1. the share of its client and the pool, or
//! 2. the pool alone, if 30 % of the burst remain for clients within their shares.
//!
//! [`Rule::fair_by`] does this; `tests/it/tooling/fair_shares.rs` sends the same requests to the layer.
//!
//! All clients send at random (Poisson) for a minute. Each process knows only its own clients' last
//! admitted requests. Nothing here calls a store: the program measured the design before it was built.
//!
//! | load | share of what each asked for: pool alone → fair | |
//! |---|---|---|
//! | one client at 10 000/s, 99 at 5/s | 9.6 and 9.4 % → 5.2 and **99.8 %** | 100.0 and 99.7 % with 3 and 9 processes |
//! | five at 3 000/s, 99 at 5/s | 6.5 and 6.7 % → 3.4 and **99.5 %** | |
//! | 3 000, 250 and 250/s | 859, 72 and 72/s → **498, 252 and 252/s** | max–min |
//! | weights 1, 2, 4, each at 2 000/s | 332, 337, 334/s → **144, 288, 571/s** | within 1.2 % of the weights, also with 9 processes |
//! | one at 3 000/s, ten at 400/s in every other second | 605 and 40/s → 248 and 75/s | what the ten leave while they pause goes to the first |
//! | 99 at 5/s, 10 000 invented keys at 1/s | 9.0 and 9.6 % → **6.7** and 9.7 % | invented keys buy shares |
//! | the same, but only the first 128 clients have a share, and all others together one | 9.0 and 9.6 % → **98.6** and 5.1 % | if the 99 came first |
//!
//! The layer, which counts in half seconds and whole units, has the same numbers, except for 195 and 81/s
//! in the row of pauses, and 16.4 and 9.2 % beside 10,000 invented keys, because 1,024 clients have a
//! share.
//!
//! Jain's index of equal demand is 0.99 or more, and the pool never exceeds its burst of 200. Two more
//! ideas were measured. *Demerit*: who is denied more often than admitted borrows nothing. It leaves
//! half of the pool unused. *Calm*: nobody borrows for a second after a client within its share was
//! denied. It changes next to nothing, because the reserve prevents such denials. A burst of the share of a
//! fifth of a second instead of a half gives the 99 clients of the first row 91 %.
#![allow(
    clippy::print_stdout,
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss
)]

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
};

const RATE: f64 = 1_000.0;
const BURST: f64 = 200.0;
const SECONDS: f64 = 60.0;
/// The part of the burst that borrowers leave.
const RESERVE: f64 = 0.3;
/// The seconds of its rate that the burst of a share has.
const SHARE_BURST: f64 = 0.5;
/// The time after which a client that sends nothing has no weight.
const SEEN: f64 = 1.0;

/// `SplitMix64` (Steele, Lea and Flood, 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn below(&mut self, most: usize) -> usize {
        (self.next() * most as f64) as usize
    }

    /// The time until the next request.
    fn gap(&mut self, rate: f64) -> f64 {
        -(1.0 - self.next()).ln() / rate
    }
}

/// A GCRA account: the instant at which it is full. Its quota is an argument of each call.
#[derive(Clone, Copy, Default)]
struct Account(f64);

impl Account {
    /// Returns the instant after a request, if it fits with `headroom` units left.
    fn fits(self, now: f64, rate: f64, burst: f64, headroom: f64) -> Option<Self> {
        let full = self.0.max(now) + 1.0 / rate;
        (full + headroom / rate <= now + burst / rate + 1e-9).then_some(Self(full))
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Policy {
    /// The pool alone.
    Pool,
    /// Shares, and a reserve.
    Fair,
    /// A client with more recent denials than admissions borrows nothing.
    Demerit,
    /// Nobody borrows for a second after a client within its share was denied.
    Calm,
}

#[derive(Clone, Copy, PartialEq)]
pub(crate) struct Client {
    pub(crate) rate: f64,
    pub(crate) weight: f64,
    /// If not 0, the client sends in every other second, from this one on.
    phase: f64,
}

pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) clients: Vec<Client>,
    pub(crate) processes: usize,
    /// The number of clients with a share of their own. All others have one share together.
    pub(crate) tracked: usize,
}

/// The clients that a process admitted in the last second.
#[derive(Clone, Default)]
struct Process {
    /// The last admitted request of each account, and its weight.
    last: HashMap<usize, (f64, f64)>,
    weights: f64,
    swept: f64,
}

impl Process {
    /// Returns the part of an account whose client asks.
    fn part(&mut self, account: usize, weight: f64, now: f64) -> f64 {
        if now - self.swept > 0.01 {
            self.swept = now;
            self.last.retain(|_, (last, _)| now - *last <= SEEN);
            self.weights = self.last.values().map(|(_, weight)| weight).sum();
        }
        let counted = self.last.get(&account).map_or(0.0, |(_, weight)| *weight);
        weight / (self.weights - counted + weight).max(weight)
    }

    fn admit(&mut self, account: usize, weight: f64, now: f64) {
        let before = self.last.insert(account, (now, weight));
        self.weights += weight - before.map_or(0.0, |(_, weight)| weight);
    }
}

/// The account of a client, with its recent admissions and denials.
#[derive(Clone, Copy, Default)]
struct Share {
    account: Account,
    admitted: f64,
    denied: f64,
}

pub(crate) struct Tally {
    sent: Vec<u32>,
    pub(crate) admitted: Vec<u32>,
    /// The most requests that the pool admitted beyond its rate, in any time.
    pub(crate) most: f64,
    seconds: f64,
}

/// A request: its instant, the index of its client, and that of the process.
pub(crate) type Arrival = (f64, usize, usize);

/// Sends the requests of a case for some seconds. `admit` decides about each.
pub(crate) fn play(case: &Case, seconds: f64, mut admit: impl FnMut(Arrival) -> bool) -> Tally {
    let (mut random, count) = (Random(7), case.clients.len());
    let mut due = BinaryHeap::new();
    for (at, client) in case.clients.iter().enumerate() {
        due.push(Reverse((random.gap(client.rate).to_bits(), at)));
    }
    let mut tally = Tally { sent: vec![0; count], admitted: vec![0; count], most: 0.0, seconds };
    let (mut all, mut lowest) = (0.0, f64::MAX);
    while let Some(Reverse((bits, client))) = due.pop() {
        let now = f64::from_bits(bits);
        if now > seconds {
            break;
        }
        let Client { rate, phase, .. } = case.clients[client];
        due.push(Reverse(((now + random.gap(rate)).to_bits(), client)));
        if phase > 0.0 && (now + phase) % 2.0 < 1.0 {
            continue;
        }
        let process = random.below(case.processes);
        tally.sent[client] += 1;
        if !admit((now, client, process)) {
            continue;
        }
        all += 1.0;
        tally.admitted[client] += 1;
        let above = all - now * RATE;
        lowest = above.min(lowest + 1.0) - 1.0;
        tally.most = tally.most.max(above - lowest);
    }
    tally
}

fn run(case: &Case, policy: Policy) -> Tally {
    let mut pool = Account::default();
    let mut shares = vec![Share::default(); case.tracked.min(case.clients.len()) + 1];
    let mut processes = vec![Process::default(); case.processes];
    let mut denied_at = -SEEN;
    play(case, SECONDS, |(now, client, process)| {
        let weight = case.clients[client].weight;
        let (at, weight) =
            if client < case.tracked { (client, weight) } else { (case.tracked, 1.0) };
        let part = processes[process].part(at, weight, now);
        let share = &mut shares[at];
        let burst = (RATE * part * SHARE_BURST).max(1.0);
        let own = share.account.fits(now, RATE * part, burst, 0.0);
        let whole = pool.fits(now, RATE, BURST, 0.0);
        let spare = pool.fits(now, RATE, BURST, RESERVE * BURST);
        let borrows = match policy {
            Policy::Demerit => share.denied <= share.admitted,
            Policy::Calm => now - denied_at > SEEN,
            Policy::Pool | Policy::Fair => true,
        };
        let taken = match own {
            _ if policy == Policy::Pool => whole,
            Some(own) if whole.is_some() => {
                share.account = own;
                whole
            }
            _ => spare.filter(|_| borrows),
        };
        (share.admitted, share.denied) = (share.admitted * 0.999, share.denied * 0.999);
        let Some(after) = taken else {
            share.denied += 1.0;
            denied_at = if own.is_some() { now } else { denied_at };
            return false;
        };
        pool = after;
        share.admitted += 1.0;
        processes[process].admit(at, weight, now);
        true
    })
}

/// Jain's index (Jain, Chiu and Hawe, 1984): 1 if all are equal.
fn jain(got: &[f64]) -> f64 {
    let (sum, squares) = (got.iter().sum::<f64>(), got.iter().map(|it| it * it).sum::<f64>());
    sum * sum / (got.len() as f64 * squares)
}

/// A kind of equal clients: what each asked for and got per second, and Jain's index.
pub(crate) struct Kind {
    pub(crate) asked: f64,
    pub(crate) got: f64,
    pub(crate) jain: f64,
}

pub(crate) fn kinds(case: &Case, tally: &Tally) -> Vec<Kind> {
    let is_equal =
        |one: &Client, other: &Client| (one.rate, one.weight) == (other.rate, other.weight);
    let mut at = 0;
    let kinds = case.clients.chunk_by(is_equal).map(|clients| {
        let range = at..at + clients.len();
        at = range.end;
        let sum = |all: &[u32]| all[range.clone()].iter().map(|it| f64::from(*it)).sum::<f64>();
        let each = tally.seconds * clients.len() as f64;
        let got: Vec<_> = tally.admitted[range.clone()].iter().map(|it| f64::from(*it)).collect();
        let (asked, jain) = (sum(&tally.sent) / each, jain(&got));
        Kind { asked, got: sum(&tally.admitted) / each, jain }
    });
    kinds.collect()
}

pub(crate) fn cases() -> Vec<Case> {
    let clients = |kinds: &[(usize, f64, f64)]| -> Vec<Client> {
        let client = |(_, rate, weight)| Client { rate, weight, phase: 0.0 };
        kinds.iter().flat_map(|kind| vec![client(*kind); kind.0]).collect()
    };
    let case = |name, kinds: &[_], processes| Case {
        name,
        clients: clients(kinds),
        processes,
        tracked: usize::MAX,
    };
    let (large, small) = ((1, 10_000.0, 1.0), (99, 5.0, 1.0));
    let weights = [(1, 2e3, 1.0), (1, 2e3, 2.0), (1, 2e3, 4.0)];
    let mut on_off = case("3000, ten at 400 on and off", &[(1, 3e3, 1.0), (10, 400.0, 1.0)], 1);
    let pausing = on_off.clients.iter_mut().skip(1);
    pausing.zip(1..).for_each(|(client, at)| client.phase = 0.19 * f64::from(at));
    let invented = [small, (10_000, 1.0, 1.0)];
    vec![
        case("10000, 99 at 5", &[large, small], 1),
        case("the same, 3 processes", &[large, small], 3),
        case("the same, 9 processes", &[large, small], 9),
        case("5 at 3000, 99 at 5", &[(5, 3e3, 1.0), small], 1),
        case("3000, 250, 250", &[(1, 3e3, 1.0), (2, 250.0, 1.0)], 1),
        case("20 at 200, 9 processes", &[(20, 200.0, 1.0)], 9),
        case("weights 1, 2, 4", &weights, 1),
        case("weights, 9 processes", &weights, 9),
        on_off,
        case("99 at 5, 10000 invented at 1", &invented, 1),
        Case { tracked: 128, ..case("the same, 128 tracked", &invented, 1) },
    ]
}

fn main() {
    for case in cases() {
        for policy in [Policy::Pool, Policy::Fair, Policy::Demerit, Policy::Calm] {
            let tally = run(&case, policy);
            let kinds = kinds(&case, &tally).into_iter().map(|Kind { asked, got, jain }| {
                format!("{got:.1}/s of {asked:.0} ({:.1} %, Jain {jain:.2})", got / asked * 100.0)
            });
            let used = tally.admitted.iter().map(|it| f64::from(*it)).sum::<f64>();
            let used = used / (RATE * SECONDS + BURST) * 100.0;
            let (name, kinds) = (case.name, kinds.collect::<Vec<_>>().join(", "));
            println!("{name}, {policy:?}: {kinds}; {used:.0} % used, burst {:.0}", tally.most);
        }
    }
}

/// Fails if a case does not keep its promises.
#[cfg(test)]
pub(crate) fn check(case: &Case, tally: &Tally) {
    assert!(tally.most <= BURST + 1e-6, "{}: {}", case.name, tally.most);
    let kinds = kinds(case, tally);
    let part = |at: usize| kinds[at].got / kinds[at].asked;
    match case.name {
        name if name.contains("weights") => {
            let each = [0, 1, 2].map(|at: usize| kinds[at].got / f64::from(1 << at));
            assert!(each.iter().all(|it| (it / each[0] - 1.0).abs() < 0.05), "{each:?}");
        }
        name if name.contains("invented") || name.contains("on and off") => {}
        // One run of a million leaves ten of the 99 clients without a place.
        name if name.contains("tracked") => assert!(part(0) > 0.88, "{name}: {}", part(0)),
        name => assert!(kinds.len() == 1 || part(1) > 0.98, "{name}: {}", part(1)),
    }
    let least = if case.name.contains("tracked") { 0.85 } else { 0.95 };
    assert!(kinds.iter().all(|it| it.jain > least || it.got < 1.0), "{}", case.name);
}

#[test]
fn fair_shares_keep_their_promises() {
    for case in cases() {
        check(&case, &run(&case, Policy::Fair));
    }
}

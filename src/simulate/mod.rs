//! Rules played over a trace, on a clock of its own: whom would they have limited, and when?
//!
//! Limits are chosen by guess, tried on users, and corrected after complaints. What users did is in
//! a log, so they can be tried on that first. A trace is any sequence of [`Call`]s, instants with
//! heads of requests; each gets a [`Verdict`], the decision that a layer over an embedded store would
//! have made at that instant. A week is played in seconds, and no more of it is kept than the
//! accounts.
//!
//! ```
//! use std::{net::SocketAddr, time::Duration};
//! use tower_sluice::{PeerIp, Quota, Rule, simulate::{Call, simulate}};
//!
//! let call = |second, address: &str| {
//!     let address: SocketAddr = address.parse().unwrap();
//!     let (parts, ()) = http::Request::get("/").extension(address).body(()).unwrap().into_parts();
//!     Call::new(Duration::from_secs(second), parts)
//! };
//! let trace = [
//!     call(1_000, "203.0.113.9:1"),
//!     call(1_001, "203.0.113.9:2"),
//!     call(1_002, "198.51.100.7:1"),
//!     call(1_061, "203.0.113.9:3"),
//! ];
//! let rule = Rule::new("ip", PeerIp::new(), Quota::per_minute(1));
//!
//! let passed: Vec<_> = simulate(rule, trace).map(|verdict| verdict.passes()).collect();
//! assert_eq!(passed, [true, false, true, true]);
//! ```
//!
//! The other way round, [`least`] asks the trace for the numbers: with which burst would nobody have
//! been limited? A [`Simulator`] does both at once, and can be told how many keys it has room for:
//!
//! ```
//! use std::time::Duration;
//! use tower_sluice::{Quota, Rule, key::Everyone, simulate::{Call, Simulator}};
//!
//! let call = |millis| {
//!     let (parts, ()) = http::Request::new(()).into_parts();
//!     Call::new(Duration::from_millis(millis), parts)
//! };
//! let rule = Rule::new("site", Everyone, Quota::per_second(5).burst(2));
//! let mut simulator = Simulator::new(rule).capacity(1_000).measure();
//!
//! // four in 200 ms, in which one unit comes back
//! let limited = [0, 0, 100, 200].iter().filter(|at| simulator.decide(&call(**at)).is_limited());
//! assert_eq!(limited.count(), 1);
//! assert_eq!(simulator.least()[0].quota(), Some(Quota::per_second(5).burst(3)));
//! ```
//!
//! The example `replay` does this with the access log of a web server.
//!
//! # What it does not protect against
//!
//! - A trace is the past. Who is refused does something else next: waits, tries again, goes away.
//!   The calls that follow are those of clients who were not.
//! - It plays rules. What else a layer may do (lists, switches, exempt preflights, elastic limits,
//!   settling after the response) it does not.
//! - A trace that is coarser than the traffic, as a log in whole seconds, makes one burst of what
//!   came within a second: more is refused, and [`least`] says more, than was needed.
//! - With more keys in debt at a time than [`Simulator::capacity`] newcomers share accounts, here as
//!   there; what is decided then depends on which keys meet. [`Simulator::stats`] says whether any
//!   did. What [`least`] says is then too large, if anything; that runs out of room sooner, which
//!   [`Simulator::least_stats`] says.

mod least;
mod measure;
mod simulator;
mod verdict;

use std::time::Duration;

use http::request::Parts;

pub use self::{
    least::Least,
    simulator::{Simulation, Simulator},
    verdict::Verdict,
};
use crate::rule::Rules;

/// One request of a trace: when it came, and its head.
///
/// The head is what extractors and costs read. [`PeerIp`](crate::PeerIp) and
/// [`ClientIp`](crate::ClientIp) take the peer from a [`SocketAddr`](std::net::SocketAddr) in its
/// extensions.
///
/// ```
/// use std::{net::SocketAddr, time::Duration};
/// use tower_sluice::simulate::Call;
///
/// let peer = SocketAddr::from(([203, 0, 113, 9], 0));
/// let request = http::Request::get("/").extension(peer).body(()).unwrap();
/// let call = Call::new(Duration::from_secs(971_211_336), request.into_parts().0);
/// assert_eq!(call.at().as_secs(), 971_211_336);
/// ```
#[derive(Clone, Debug)]
pub struct Call {
    at: Duration,
    parts: Parts,
}

impl Call {
    /// A request with this head that came so long after the Unix epoch. What is past the year 2100
    /// counts as then.
    #[must_use]
    pub fn new(at: Duration, parts: Parts) -> Self {
        Self { at, parts }
    }

    /// When it came, since the Unix epoch.
    #[must_use]
    pub fn at(&self) -> Duration {
        self.at
    }

    /// Its head.
    #[must_use]
    pub fn parts(&self) -> &Parts {
        &self.parts
    }
}

/// Plays `rules` over `trace`: an iterator of one [`Verdict`] for each call, which holds no more than
/// the accounts. See the [module](self) for an example.
///
/// # Panics
///
/// Where [`Simulator::try_new`] gives an error.
#[track_caller]
pub fn simulate<R, T>(rules: R, trace: T) -> Simulation<R, T::IntoIter>
where
    R: Rules,
    T: IntoIterator<Item = Call>,
{
    Simulator::new(rules).play(trace)
}

/// The smallest limit of each quota with which `trace` [limits](Verdict::is_limited) nobody, found
/// in one pass: see [`Least`].
///
/// ```
/// use std::time::Duration;
/// use tower_sluice::{Quota, Rule, key::Everyone, simulate::{Call, least}};
///
/// let calls = [0, 0, 0, 12, 60].map(|second| {
///     let (parts, ()) = http::Request::new(()).into_parts();
///     Call::new(Duration::from_secs(second), parts)
/// });
/// let quotas = [Quota::per_minute(5), Quota::per_hour(60).burst(1)];
/// let found = least(Rule::new("site", Everyone, quotas), calls);
/// assert_eq!(found[0].quota(), Some(Quota::per_minute(5).burst(3)));
/// assert_eq!(found[1].quota(), Some(Quota::per_hour(60).burst(4)));
/// ```
///
/// # Panics
///
/// Where [`Simulator::try_new`] gives an error.
#[track_caller]
pub fn least<R: Rules>(rules: R, trace: impl IntoIterator<Item = Call>) -> Vec<Least> {
    let mut played = Simulator::new(rules).measure().play(trace);
    played.by_ref().for_each(drop);
    played.simulator().least()
}

//! Replays a trace of requests against rules, to find the requests that would have been limited.
//!
//! Limits are often guessed, tried on users, and corrected after complaints. With a log of past
//! requests, you can test limits before you use them. A trace is any sequence of [`Call`]s. Each
//! call has an instant and a request head. For each call, the result is a [`SimulatedDecision`],
//! which is the decision of a layer with an embedded store at that instant. The clock follows the
//! trace, so the replay of a week takes seconds. Only the accounts are kept in memory.
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
//! Conversely, [`least`] derives the limits from the trace. It returns the smallest burst with
//! which no request would have been limited. A [`Simulator`] does both in one pass, and has a
//! setting for the number of keys:
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
//! // Four requests in 200 ms, in which one unit comes back.
//! let limited = [0, 0, 100, 200].iter().filter(|at| simulator.decide(&call(**at)).is_limited());
//! assert_eq!(limited.count(), 1);
//! assert_eq!(simulator.least()[0].quota(), Some(Quota::per_second(5).burst(3)));
//! ```
//!
//! The example `replay` replays the access log of a web server.
//!
//! # Limitations
//!
//! - A trace does not show the effect of denials. A denied client changes its behavior: it waits,
//!   retries or leaves. The later calls of the trace are from clients that were not denied.
//! - A simulation covers only rules. It does not cover access lists, toggles, exempt preflights,
//!   overcommit and charges that are adjusted after the response.
//! - A trace with coarse time stamps, such as whole seconds, turns each second into a burst.
//!   Therefore more requests are denied than with exact times, and [`least`] returns larger limits.
//! - If more keys than [`Simulator::capacity`] are in debt at the same time, new keys share
//!   accounts, as in a layer. Decisions then depend on the keys that share an account.
//!   [`Simulator::stats`] reports if this happened. The limits that [`least`] returns can then be
//!   too large, but never too small. The accounts of [`least`] run out of room earlier; see
//!   [`Simulator::least_stats`].

mod least;
mod measure;
mod simulator;
mod verdict;

use std::time::Duration;

use http::request::Parts;

pub use self::{
    least::SmallestBurst,
    simulator::{Simulation, Simulator},
    verdict::SimulatedDecision,
};
use crate::{key::RequestHead, rule::Rules};

/// A request of a trace: its time and its head.
///
/// Extractors and costs read the head. [`PeerIp`](crate::PeerIp) and [`ClientIp`](crate::ClientIp)
/// take the peer from a [`SocketAddr`](std::net::SocketAddr) in its extensions.
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
    /// Creates a call with this head. `at` is the time since the Unix epoch. A time after the start
    /// of the year 2100 is clamped.
    #[must_use]
    pub fn new(at: Duration, parts: Parts) -> Self {
        Self { at, parts }
    }

    /// Returns the time of the call, since the Unix epoch.
    #[must_use]
    pub fn at(&self) -> Duration {
        self.at
    }

    /// Returns the head of the call.
    #[must_use]
    pub fn head(&self) -> RequestHead<'_> {
        RequestHead::from(&self.parts)
    }
}

/// Replays `trace` against `rules`. Returns an iterator with one [`SimulatedDecision`] per call.
/// Only the accounts are kept in memory. See the [module](self) for an example.
///
/// # Panics
///
/// Panics if [`Simulator::try_new`] returns an error.
#[track_caller]
pub fn simulate<R, T>(rules: R, trace: T) -> Simulation<R, T::IntoIter>
where
    R: Rules,
    T: IntoIterator<Item = Call>,
{
    Simulator::new(rules).play(trace)
}

/// Returns, for each quota, the smallest limit with which no request of `trace` is
/// [limited](SimulatedDecision::is_limited). The trace is read once; see [`SmallestBurst`].
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
/// Panics if [`Simulator::try_new`] returns an error.
#[track_caller]
pub fn least<R: Rules>(rules: R, trace: impl IntoIterator<Item = Call>) -> Vec<SmallestBurst> {
    let mut played = Simulator::new(rules).measure().play(trace);
    played.by_ref().for_each(drop);
    played.simulator().least()
}

//! Replays past requests against rules, to find the requests that would have been limited.
//!
//! A log of past requests lets you test limits before you use them. A trace is any sequence of
//! [`Call`]s. A call has a time and a request head. For each call, the simulator returns a
//! [`SimulatedDecision`]: the decision that a layer with an embedded store would have made.
//!
//! A trace has no durations. [Concurrent](crate::Quota::concurrent) quotas therefore never deny in a
//! replay.
//!
//! The clock follows the trace, so the replay of a week takes seconds. Only the accounts are kept
//! in memory.
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
//! [`least`] derives limits from the trace: for each quota, the smallest burst with which no
//! request is limited. A [`Simulator`] returns the decisions and the limits in one pass. Its
//! [`capacity`](Simulator::capacity) is the number of keys:
//!
//! ```
//! use std::time::Duration;
//! use tower_sluice::{Quota, Rule, key::Everyone, simulate::{Call, Simulator}};
//!
//! let call = |millis| {
//!     let (parts, ()) = http::Request::new(()).into_parts();
//!     Call::new(Duration::from_millis(millis), parts)
//! };
//! let rule = Rule::new("site", Everyone, Quota::per_second(5).with_burst(2));
//! let mut simulator = Simulator::new(rule).capacity(1_000).measure();
//!
//! // Four requests in 200 ms, in which one unit comes back.
//! let limited = [0, 0, 100, 200].iter().filter(|at| simulator.decide(&call(**at)).is_limited());
//! assert_eq!(limited.count(), 1);
//! assert_eq!(simulator.least()[0].quota(), Some(Quota::per_second(5).with_burst(3)));
//! ```
//!
//! The example `replay` replays the access log of a web server.
//!
//! # Limitations
//!
//! - A trace does not show the effect of denials: a denied client waits, retries or leaves.
//! - A simulation covers only rules. Access lists, toggles, exempt preflights, overcommit and
//!   adjusted charges are not simulated.
//! - If the times of a trace are whole seconds, each second becomes a burst. More requests are then
//!   denied, and [`least`] returns larger limits.
//! - Up to [`Simulator::capacity`] keys can have used units at once. Beyond that number, new keys
//!   share accounts, as in a layer. [`Simulator::stats`] counts the decisions about shared
//!   accounts. With shared accounts, the limits of [`least`] can be too large, but never too small;
//!   see [`Simulator::least_stats`].

mod measure;
mod simulator;

use std::time::Duration;

use http::request::Parts;

pub use self::{
    measure::SmallestBurst,
    simulator::{SimulatedDecision, Simulation, Simulator},
};
use crate::{key::RequestHead, rule::Rules};

/// Request of a trace: its time and its head.
///
/// [`PeerIp`](crate::PeerIp) and [`ClientIp`](crate::ClientIp) read the peer from a
/// [`SocketAddr`](std::net::SocketAddr) in the extensions.
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
    /// Creates a call. `at` is the time since the Unix epoch.
    ///
    /// Times after the start of the year 2100 are clamped.
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

/// Replays `trace` against `rules`, with one [`SimulatedDecision`] per call.
///
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

/// Returns, for each quota, the smallest limit with which no request is limited.
///
/// The trace is read once. See [`SmallestBurst`] and [`is_limited`](SimulatedDecision::is_limited).
///
/// ```
/// use std::time::Duration;
/// use tower_sluice::{Quota, Rule, key::Everyone, simulate::{Call, least}};
///
/// let calls = [0, 0, 0, 12, 60].map(|second| {
///     let (parts, ()) = http::Request::new(()).into_parts();
///     Call::new(Duration::from_secs(second), parts)
/// });
/// let quotas = [Quota::per_minute(5), Quota::per_hour(60).with_burst(1)];
/// let found = least(Rule::new("site", Everyone, quotas), calls);
/// assert_eq!(found[0].quota(), Some(Quota::per_minute(5).with_burst(3)));
/// assert_eq!(found[1].quota(), Some(Quota::per_hour(60).with_burst(4)));
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

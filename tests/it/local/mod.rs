//! Stores inside the process: the local store and `governor`.

mod capacity;
#[cfg(feature = "testing")]
mod concurrency;
#[cfg(feature = "testing")]
mod flood;
#[cfg(feature = "testing")]
mod flood_capacity;
#[cfg(all(feature = "governor", feature = "testing"))]
mod governor;
#[cfg(feature = "testing")]
mod lanes;
#[cfg(feature = "testing")]
mod max_debt;
#[cfg(feature = "testing")]
mod properties;
#[cfg(feature = "testing")]
mod refunds;
#[cfg(feature = "testing")]
mod stale_clock;
#[cfg(feature = "testing")]
mod table;

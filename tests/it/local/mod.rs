//! Stores inside the process: the local store and `governor`.

mod capacity;
#[cfg(feature = "testing")]
mod concurrency;
#[cfg(feature = "testing")]
mod flood;
#[cfg(feature = "testing")]
mod flood_capacity;
#[cfg(feature = "testing")]
mod flood_layer;
#[cfg(all(feature = "governor", feature = "testing"))]
mod governor;
#[cfg(feature = "testing")]
mod lanes;
#[cfg(feature = "testing")]
mod linearizable;
#[cfg(feature = "testing")]
mod max_debt;
#[cfg(feature = "testing")]
mod peek;
#[cfg(feature = "testing")]
mod properties;
#[cfg(feature = "testing")]
mod refunds;
#[cfg(feature = "testing")]
mod report_only;
#[cfg(feature = "testing")]
mod serial;
#[cfg(feature = "testing")]
mod sliding;
#[cfg(feature = "testing")]
mod stale_clock;
#[cfg(feature = "testing")]
mod table;
#[cfg(feature = "testing")]
mod windows;

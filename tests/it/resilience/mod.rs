//! Store wrappers: timeouts, breakers, fallbacks, deny caches and leases.

#[cfg(feature = "testing")]
mod after_outage;
#[cfg(feature = "testing")]
mod breaker;
#[cfg(feature = "testing")]
mod deny_cache;
#[cfg(feature = "testing")]
mod deny_cache_model;
#[cfg(feature = "testing")]
mod deny_cache_threads;
#[cfg(feature = "testing")]
mod fallback;
#[cfg(feature = "testing")]
mod fallback_bound;
mod isolated;
#[cfg(feature = "testing")]
mod leased;
#[cfg(feature = "testing")]
mod leased_model;
#[cfg(feature = "testing")]
mod leased_threads;
#[cfg(feature = "testing")]
mod leased_trips;
mod outage;
#[cfg(feature = "testing")]
mod whole_time;

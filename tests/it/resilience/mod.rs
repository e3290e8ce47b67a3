//! Store wrappers: timeouts, breakers, fallbacks, deny caches and leases.

mod after_outage;
mod breaker;
mod deny_cache;
mod deny_cache_model;
mod fallback;
mod fallback_bound;
mod hot_keys;
mod isolated;
mod leased;
mod leased_model;
mod leased_threads;
mod leased_trips;
mod outage;
mod whole_time;

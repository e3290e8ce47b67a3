//! Stores inside the process: the local store and `governor`.

mod capacity;
mod concurrency;
mod flood;
mod flood_capacity;
mod governor;
mod lanes;
mod max_debt;
mod properties;
mod refunds;
mod stale_clock;
mod table;

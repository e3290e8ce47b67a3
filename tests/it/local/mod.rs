//! Stores inside the process: the local store and `governor`.

mod concurrency;
mod flood;
mod flood_capacity;
mod governor;
mod lanes;
mod max_debt;
mod properties;
mod refunds;
mod table;

//! Wrappers that decide about hot keys without calling their store.

mod deny_cache;
mod leases;
mod table;

pub use self::{
    deny_cache::DenyCache,
    leases::{Leased, LeasedFuture},
};

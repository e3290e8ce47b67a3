//! The tests that need Redis or Valkey servers, which they start on the loopback interface.
#![cfg(feature = "redis")]
#![allow(clippy::print_stdout, reason = "figures of tests")]

#[path = "../support/accounts.rs"]
mod accounts;
mod alternatives;
mod bursts;
mod calls;
mod changing;
mod clock;
mod closing;
mod cluster;
mod cluster_calls;
mod cluster_replies;
mod coalesce;
mod coalesce_faults;
mod conformance;
mod corrupt;
mod denial_floods;
mod deny_cache;
mod exact;
mod examples;
mod failover;
mod fated;
mod first_line;
mod format;
mod found;
mod instances;
mod keys;
mod leased;
mod link;
#[path = "../support/log.rs"]
mod log;
mod lost_shard;
mod lua54;
mod outages;
mod parity;
#[cfg(feature = "calendar")]
mod periods;
mod permissions;
#[cfg(unix)]
mod postgres;
mod probe;
mod reconnect;
mod replies;
#[path = "../support/rule_kinds.rs"]
mod rule_kinds;
mod sentinel;
#[path = "../support/servers/mod.rs"]
mod servers;
mod shares;
mod silence;
mod slots;
mod slots_cluster;
mod slots_ends;
mod slots_failover;
mod slots_faults;
mod slots_shares;
mod slots_tables;
mod slots_waiting;
mod states;
mod streams;
#[path = "../support/mod.rs"]
mod support;
#[cfg(feature = "redis-tls")]
mod tls;
mod worker;

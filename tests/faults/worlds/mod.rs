//! All faults.

mod access;
mod accounts;
mod bursts;
mod cancel;
mod cluster;
mod garbage;
mod loading;
mod memory;
mod process;
mod replica;
mod replication;
mod sentinel;
mod server;
mod slots;
mod slow;
mod split_brain;
mod storm;
mod switch;
mod wire;

use std::collections::BTreeMap;

use crate::{fault::Fault, log::Entry, stage::Ran};

pub(crate) fn all() -> Vec<Fault> {
    [
        server::faults(),
        slow::faults(),
        memory::faults(),
        replica::faults(),
        loading::faults(),
        access::faults(),
        accounts::faults(),
        wire::faults(),
        garbage::faults(),
        cluster::faults().into_iter().map(Fault::alone).collect(),
        sentinel::faults(),
        replication::faults(),
        split_brain::faults(),
        storm::faults().into_iter().map(Fault::alone).collect(),
        bursts::faults().into_iter().map(Fault::alone).collect(),
        slots::faults().into_iter().map(Fault::alone).collect(),
        cancel::faults().into_iter().map(Fault::alone).collect(),
        process::faults(),
        switch::faults(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Returns the number of the key whose account is at this address: `sluice:4:{default:...k007}`.
fn key_at(address: &str) -> Option<u16> {
    address.strip_suffix('}')?.rsplit_once('k')?.1.parse().ok()
}

/// Returns the number of entries of each key that `wanted` selects.
fn count_by_key(ran: &Ran, wanted: impl Fn(&Entry) -> bool) -> BTreeMap<u16, u64> {
    let mut counts = BTreeMap::new();
    for (_, entry) in ran.entries().filter(|(_, entry)| wanted(entry)) {
        *counts.entry(entry.key).or_default() += 1;
    }
    counts
}

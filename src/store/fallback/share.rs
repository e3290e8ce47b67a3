//! This process's share of quotas.

use std::num::NonZeroU32;

use smallvec::SmallVec;

use crate::{quota::Quota, store::Charge};

/// Replaces each quota by the share of one of `instances` processes, and calls `read`.
pub(super) fn with_shares<T>(
    charges: &[Charge<'_>],
    instances: NonZeroU32,
    read: impl FnOnce(&[Charge<'_>]) -> T,
) -> T {
    let mut quotas = SmallVec::<[Quota; 8]>::new();
    for charge in charges {
        let need = need(charge, charges);
        quotas.extend(charge.quotas().iter().map(|quota| quota.share(instances, need)));
    }
    let mut rest = quotas.as_slice();
    let shared = charges.iter().map(|charge| {
        let (quotas, others) = rest.split_at(charge.quotas().len());
        rest = others;
        Charge { quotas, ..*charge }
    });
    read(&shared.collect::<SmallVec<[Charge<'_>; 4]>>())
}

/// Returns the units that all charges of the call need from the account of `charge`.
fn need(charge: &Charge<'_>, charges: &[Charge<'_>]) -> u64 {
    let same = |other: &&Charge<'_>| other.rule() == charge.rule() && other.key() == charge.key();
    let demands = || charges.iter().filter(same).map(Charge::demand);
    let cost: u64 = demands().map(|demand| u64::from(demand.cost)).sum();
    let headroom = demands().map(|demand| u64::from(demand.headroom)).max().unwrap_or(0);
    if cost == 0 { 0 } else { cost + headroom }
}

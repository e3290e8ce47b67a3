//! Charges under this process's share of their quotas.

use std::num::NonZeroU32;

use smallvec::SmallVec;

use crate::{quota::Quota, store::Charge};

/// Lends the charges to `read`, each under its share of one of `processes`.
pub(super) fn shares<T>(
    charges: &[Charge<'_>],
    processes: NonZeroU32,
    read: impl FnOnce(&[Charge<'_>]) -> T,
) -> T {
    let mut quotas = SmallVec::<[Quota; 8]>::new();
    for charge in charges {
        let need = need(charge, charges);
        quotas.extend(charge.quotas().iter().map(|quota| quota.share(processes, need)));
    }
    let mut rest = quotas.as_slice();
    let shared = charges.iter().map(|charge| {
        let (quotas, others) = rest.split_at(charge.quotas().len());
        rest = others;
        Charge { quotas, ..*charge }
    });
    read(&shared.collect::<SmallVec<[Charge<'_>; 4]>>())
}

/// What the charge's account needs at once: one that is named twice counts as one, costs added.
fn need(charge: &Charge<'_>, charges: &[Charge<'_>]) -> u64 {
    let same = |other: &&Charge<'_>| other.rule() == charge.rule() && other.key() == charge.key();
    let asks = || charges.iter().filter(same).map(Charge::ask);
    let cost: u64 = asks().map(|ask| u64::from(ask.cost)).sum();
    let headroom = asks().map(|ask| u64::from(ask.headroom)).max().unwrap_or(0);
    if cost == 0 { 0 } else { cost + headroom }
}

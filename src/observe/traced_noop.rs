//! No-op tracing, used without the `tracing` feature.

use super::Verdict;
use crate::{decision::Decision, fingerprint::Fingerprint, name::RuleName, quota::Quota};

#[inline]
pub(super) fn trace(_: &Decision, _: Verdict, _: impl Fn(RuleName) -> Option<Fingerprint>) {}

pub(crate) fn late_charge_cut(_: &Quota) {}

//! No-op metrics, used without the `metrics` feature.

use super::{DenialLog, Verdict};
use crate::{
    decision::{Decision, Outcome},
    name::RuleName,
};

#[derive(Clone, Debug)]
pub(crate) struct Meter(DenialLog);

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Started;

impl Started {
    #[inline]
    pub(crate) fn now() -> Self {
        Self
    }
}

impl Meter {
    pub(super) const COUNTS: bool = false;

    pub(crate) fn new(_: impl IntoIterator<Item = RuleName>) -> Self {
        Self(DenialLog::default())
    }

    pub(crate) fn denial_log(&self) -> &DenialLog {
        &self.0
    }

    #[cfg(feature = "admin")]
    #[expect(clippy::unused_self, reason = "matches the `metrics` version")]
    pub(crate) fn with_denial_log(self, denial_log: DenialLog) -> Self {
        Self(denial_log)
    }

    /// Does nothing.
    #[inline]
    pub(crate) fn answered(&self, _: &Decision, _: Started) {}

    pub(super) fn count(&self, _: RuleName, _: Verdict) {}

    pub(super) fn count_all(&self, _: Verdict) {}

    pub(super) fn count_near(&self, _: RuleName) {}

    pub(super) fn is_near(&self, _: &Outcome) -> bool {
        false
    }
}

pub(crate) fn unidentified() {}

pub(crate) fn store_failed(_: &'static str) {}

pub(crate) fn circuit(_: Option<&str>, _: u8) {}

pub(crate) fn overflowed() {}

pub(crate) fn block_denied() {}

pub(crate) fn set_keys(_: usize, _: usize, _: u64) {}

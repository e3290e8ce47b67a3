//! No-op denial records, used without the `admin` feature.

use std::time::Duration;

use super::Verdict;
use crate::{fingerprint::Fingerprint, rule::RuleName};

#[derive(Clone, Debug, Default)]
pub(crate) struct DenialLog(());

impl DenialLog {
    #[expect(clippy::unused_self, reason = "matches the `admin` version")]
    pub(super) fn is_enabled(&self) -> bool {
        false
    }

    pub(super) fn record(
        &self,
        _: RuleName,
        _: Verdict,
        _: impl FnOnce() -> (Option<Fingerprint>, Option<Duration>),
    ) {
    }

    pub(super) fn record_all(&self, _: Verdict, _: Option<Duration>) {}
}

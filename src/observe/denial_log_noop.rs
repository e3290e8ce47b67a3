//! No-op records of denials, used without the `admin` feature.

use std::time::Duration;

use super::Verdict;
use crate::{fingerprint::Fingerprint, rule::RuleName};

#[derive(Clone, Debug, Default)]
pub(crate) struct Noted(());

impl Noted {
    #[expect(clippy::unused_self, reason = "matches the `admin` version")]
    pub(super) fn watches(&self) -> bool {
        false
    }

    pub(super) fn note(
        &self,
        _: RuleName,
        _: Verdict,
        _: impl FnOnce() -> (Option<Fingerprint>, Option<Duration>),
    ) {
    }

    pub(super) fn note_all(&self, _: Verdict, _: Option<Duration>) {}
}

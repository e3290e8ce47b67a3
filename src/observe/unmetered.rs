//! No numbers.

use super::Verdict;
use crate::{
    decision::{Decision, Outcome},
    name::RuleName,
};

#[derive(Clone, Debug)]
pub(crate) struct Meter;

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
        Self
    }

    /// The store has answered.
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

pub(crate) fn circuit(_: u8) {}

pub(crate) fn overflowed() {}

pub(crate) fn set_keys(_: usize, _: usize) {}

//! Quotas whose windows are days, weeks, months or years of a calendar.
//!
//! A store sees only the instants at which periods start and end.

#[cfg(any(not(feature = "calendar"), feature = "redis"))]
use super::Edges;
use super::Quota;
#[cfg(feature = "calendar")]
pub(super) use super::anchor::Anchor;

impl Quota {
    /// Returns `true` if the windows of the quota are calendar periods.
    pub(crate) const fn is_calendar(&self) -> bool {
        self.anchor.is_some()
    }

    /// Returns the end of the calendar period that contains `instant`, or `None` without a calendar.
    #[inline]
    pub(crate) fn calendar_end(&self, instant: u64) -> Option<u64> {
        let edges = self.anchor.map(|anchor| anchor.edges(instant))?;
        Some(edges.into_iter().find(|edge| *edge > instant).unwrap_or(u64::MAX))
    }

    /// Returns the edges of the calendar period that contains `now`, and of its two neighbours.
    #[cfg(feature = "redis")]
    pub(crate) fn calendar_edges(&self, now: u64) -> Option<Edges> {
        self.anchor.map(|anchor| anchor.edges_around(now))
    }

    /// Returns the unit of the calendar periods, and their anchor in the text form.
    pub(crate) fn calendar_text(&self) -> Option<(&'static str, String)> {
        self.anchor.map(Anchor::text)
    }
}

/// An anchor without the feature `calendar`, which no quota has.
#[cfg(not(feature = "calendar"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Anchor {}

#[cfg(not(feature = "calendar"))]
impl Anchor {
    pub(super) const fn letter(self) -> u8 {
        match self {}
    }

    fn edges(self, _: u64) -> Edges {
        match self {}
    }

    #[cfg(feature = "redis")]
    fn edges_around(self, _: u64) -> Edges {
        match self {}
    }

    fn text(self) -> (&'static str, String) {
        match self {}
    }
}

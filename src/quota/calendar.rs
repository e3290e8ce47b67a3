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
        Some(
            edges
                .into_iter()
                .find(|edge| *edge > instant)
                .unwrap_or(u64::MAX),
        )
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

/// The feature `calendar`, which no type has without it. The compiler then names the feature, and
/// not a similar method with a shorter period.
#[cfg(not(feature = "calendar"))]
#[diagnostic::on_unimplemented(
    message = "quotas of calendar periods need the feature `calendar` of tower-sluice",
    label = "needs the feature `calendar`",
    note = "enable it by `cargo add tower-sluice --features calendar`"
)]
#[doc(hidden)]
pub trait Calendar: Copy {}

/// The methods that the feature `calendar` adds, for the message of the compiler.
#[cfg(not(feature = "calendar"))]
impl Quota {
    #[doc(hidden)]
    pub const fn per_month(units: impl Calendar) -> Self {
        Self::without_calendar(units)
    }

    #[doc(hidden)]
    pub const fn per_year(units: impl Calendar) -> Self {
        Self::without_calendar(units)
    }

    #[doc(hidden)]
    pub const fn anchored_at(self, start: impl Calendar) -> Self {
        Self::without_calendar(start)
    }

    /// No program calls this, because no type is a [`Calendar`].
    const fn without_calendar(_: impl Calendar) -> Self {
        Self::blocked()
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

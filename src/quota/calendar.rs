//! Quotas whose windows are days, weeks, months or years of a calendar.
//!
//! A store sees only the instants at which periods start and end.

use super::Quota;
#[cfg(feature = "calendar")]
use super::anchor::Anchor;

/// The edges of three consecutive periods: the one of a decision, and its neighbours. In
/// nanoseconds of Unix time.
pub(crate) type Edges = [u64; 4];

/// The periods of a quota, if they follow a calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Calendar {
    None,
    #[cfg(feature = "calendar")]
    Anchored(Anchor),
}

impl Quota {
    /// Returns `true` if the windows of the quota are calendar periods.
    pub(crate) const fn is_calendar(&self) -> bool {
        !matches!(self.calendar, Calendar::None)
    }

    /// Returns the end of the calendar period that contains `instant`, or `None` without a calendar.
    #[inline]
    pub(crate) fn calendar_end(&self, instant: u64) -> Option<u64> {
        let edges = match self.calendar {
            Calendar::None => None,
            #[cfg(feature = "calendar")]
            Calendar::Anchored(anchor) => Some(anchor.edges(instant)),
        };
        let end = |edges: Edges| edges.into_iter().find(|edge| *edge > instant);
        edges.map(|edges| end(edges).unwrap_or(u64::MAX))
    }
}

impl Quota {
    /// Returns the unit of the calendar periods, and their anchor in the text form.
    pub(crate) fn calendar_text(&self) -> Option<(&'static str, String)> {
        match self.calendar {
            #[cfg(feature = "calendar")]
            Calendar::Anchored(anchor) => Some(anchor.text()),
            _ => None,
        }
    }
}

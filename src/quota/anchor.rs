//! Anchors of calendar periods. `jiff` computes all dates.

use std::{cell::Cell, ops::Range, sync::LazyLock};

use jiff::{Error, Span, Timestamp, Unit, ZonedDateTime, tz::TimeZone};
use parking_lot::RwLock;

use super::{Algorithm, Edges, Invalid, Quota, QuotaError, SECOND, text::TextForm, unwrap};

const DAY: u64 = 86_400 * SECOND;
/// The units of a calendar, with their names in the text form and the longest period.
const UNITS: [(&str, Unit, u64); 4] = [
    ("day", Unit::Day, DAY),
    ("week", Unit::Week, 7 * DAY),
    ("month", Unit::Month, 31 * DAY),
    ("year", Unit::Year, 366 * DAY),
];
/// The maximum number of time zones. The database of IANA has 600, and there are 3,119 fixed offsets of
/// whole minutes, so that no client who chooses offsets fills the table.
const MAX_ZONES: usize = 4_096;
/// The time zones of all anchors, which stay in memory until the process ends. The first is UTC.
static ZONES: LazyLock<RwLock<Vec<TimeZone>>> = LazyLock::new(|| RwLock::new(vec![TimeZone::UTC]));

/// The start of a period, and the unit of all periods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Anchor {
    /// Seconds of Unix time.
    start: i64,
    /// An index into [`ZONES`].
    zone: u16,
    unit: Unit,
}

/// Returns the index of a time zone, or `None` for a zone that has no text form.
fn index(zone: &TimeZone) -> Option<u16> {
    let known = position(&ZONES.read(), zone);
    let at = known.or_else(|| add(zone))?;
    u16::try_from(at).ok()
}

fn position(zones: &[TimeZone], zone: &TimeZone) -> Option<usize> {
    zones.iter().position(|known| known == zone)
}

/// Adds a time zone, if it has a text form and there is room.
fn add(zone: &TimeZone) -> Option<usize> {
    let has_text = zone.iana_name().is_some()
        || zone
            .to_fixed_offset()
            .is_ok_and(|offset| offset.seconds() % 60 == 0);
    let mut zones = ZONES.write();
    let known = position(&zones, zone);
    if known.is_some() || zones.len() >= MAX_ZONES || !has_text || zone.is_unknown() {
        return known;
    }
    zones.push(zone.clone());
    Some(zones.len() - 1)
}

impl Anchor {
    const fn in_utc(unit: Unit) -> Self {
        Self {
            start: 0,
            zone: 0,
            unit,
        }
    }

    /// Returns the letter of the unit in the address of an account.
    pub(super) const fn letter(self) -> u8 {
        match self.unit {
            Unit::Day => b'd',
            Unit::Week => b'w',
            Unit::Month => b'm',
            _ => b'y',
        }
    }

    /// Returns an instant in the time zone of the anchor.
    fn local(self, instant: Result<Timestamp, Error>) -> ZonedDateTime {
        let zone = ZONES.read()[usize::from(self.zone)].clone();
        instant.unwrap_or(Timestamp::MAX).to_zoned_datetime(zone)
    }

    fn start(self) -> ZonedDateTime {
        self.local(Timestamp::from_second(self.start))
    }

    /// Returns the unit, and the anchor in the text form unless it is the start of 1970 in UTC.
    pub(super) fn text(self) -> (&'static str, String) {
        let name = UNITS
            .into_iter()
            .find(|known| known.1 == self.unit)
            .map_or("", |known| known.0);
        let is_short = matches!(name, "month" | "year") && self == Self::in_utc(self.unit);
        (
            name,
            if is_short {
                String::new()
            } else {
                format!(" from {}", self.start())
            },
        )
    }

    /// Returns the edges of periods near `instant`, which is in one of them.
    ///
    /// Each thread keeps the last result, because a decision asks several times.
    #[inline(never)]
    pub(super) fn edges(self, instant: u64) -> Edges {
        thread_local!(static LAST: Cell<Option<(Anchor, Edges)>> = const { Cell::new(None) });
        if let Some((anchor, edges)) = LAST.get()
            && anchor == self
            && (edges[0]..edges[3]).contains(&instant)
        {
            return edges;
        }
        let edges = self.edges_around(instant);
        LAST.set(Some((self, edges)));
        edges
    }

    /// Returns the edges of the period that contains `instant`, and of its two neighbours.
    pub(super) fn edges_around(self, instant: u64) -> Edges {
        let start = self.start();
        let now = self.local(Timestamp::from_nanosecond(instant.into()));
        let span = start
            .datetime()
            .until((self.unit, now.datetime()))
            .unwrap_or_default();
        let near = match self.unit {
            Unit::Day => span.get_days().into(),
            Unit::Week => span.get_weeks().into(),
            Unit::Month => span.get_months().into(),
            _ => i64::from(span.get_years()),
        };
        // Shorter months and changes of the offset move an edge by less than a period.
        let current = (near - 2..=near + 2)
            .rev()
            .find(|n| self.edge(&start, *n) <= instant);
        let n = current.unwrap_or(near - 2);
        [n - 1, n, n + 1, n + 2].map(|n| self.edge(&start, n))
    }

    /// Returns the edge that is `n` units after the start.
    ///
    /// A day that a month lacks does not change later months, because all are counted from the start.
    fn edge(self, start: &ZonedDateTime, n: i64) -> u64 {
        let span = match self.unit {
            Unit::Day => Span::new().try_days(n),
            Unit::Week => Span::new().try_weeks(n),
            Unit::Month => Span::new().try_months(n),
            _ => Span::new().try_years(n),
        };
        let edge = span.and_then(|span| start.checked_add(span));
        // Beyond the years of the calendar, an edge is far away.
        let nanos = edge.map_or(i128::from(n) << 64, |edge| edge.timestamp().as_nanosecond());
        u64::try_from(nanos.max(0)).unwrap_or(u64::MAX)
    }
}

impl Quota {
    /// Creates a quota of `units` per calendar month, which starts on the first in UTC.
    ///
    /// [`anchored_at`](Quota::anchored_at) starts the months on another day, and in another time
    /// zone. Units that are left at the end of a month are lost. See the
    /// [guide](crate::guide::plans#billing-periods).
    ///
    /// ```
    /// use tower_sluice::Quota;
    ///
    /// const FREE: Quota = Quota::per_month(5_000);
    /// assert_eq!(FREE, "5000/month".parse()?);
    /// # Ok::<(), tower_sluice::quota::QuotaError>(())
    /// ```
    ///
    /// # Panics
    ///
    /// Panics if `units` is 0. In a constant, this is a compile error.
    #[track_caller]
    pub const fn per_month(units: u32) -> Self {
        unwrap(Self::in_utc(units, Unit::Month, 31 * DAY))
    }

    /// Creates a quota of `units` per calendar year, which starts on the first of January in UTC.
    ///
    /// # Panics
    ///
    /// Panics if `units` is 0.
    #[track_caller]
    pub const fn per_year(units: u32) -> Self {
        unwrap(Self::in_utc(units, Unit::Year, 366 * DAY))
    }

    #[allow(
        clippy::result_large_err,
        reason = "a constant function cannot allocate"
    )]
    const fn in_utc(units: u32, unit: Unit, longest: u64) -> Result<Self, Invalid> {
        let anchor = Some(Anchor::in_utc(unit));
        match Self::rate(units, longest) {
            Ok(rate) => Self {
                anchor,
                algorithm: Algorithm::fixed_window(),
                ..rate
            }
            .checked(),
            invalid => invalid,
        }
    }

    /// Starts the periods at `start`, such as the start of a subscription.
    ///
    /// The quota is [per day](Quota::per_day), per seven days, [per month](Quota::per_month) or
    /// [per year](Quota::per_year). It becomes a fixed window. Its edges are the anchor plus whole
    /// days, weeks, months or years of the calendar in the time zone of the anchor. A day may
    /// therefore have 23 or 25 hours. The anchor may be in the future.
    ///
    /// In a month without the day of the anchor, the period starts on the last day: 31 January, 28
    /// February, 31 March. Fractions of a second are dropped.
    ///
    /// ```
    /// use jiff::civil::date;
    /// use tower_sluice::Quota;
    ///
    /// let start = date(2024, 1, 31).at(9, 0, 0, 0).in_tz("Europe/Berlin")?;
    /// let quota = Quota::per_month(5_000).anchored_at(&start);
    ///
    /// let now = date(2024, 3, 15).at(12, 0, 0, 0).in_tz("UTC")?;
    /// let period = quota.calendar_period(now.timestamp()).expect("a calendar period");
    /// assert_eq!(period.start.to_string(), "2024-02-29T08:00:00Z");
    /// assert_eq!(period.end.to_string(), "2024-03-31T07:00:00Z"); // daylight saving time
    /// # Ok::<(), jiff::Error>(())
    /// ```
    ///
    /// # Panics
    ///
    /// Panics if [`try_anchored_at`](Quota::try_anchored_at) would fail.
    #[track_caller]
    pub fn anchored_at(self, start: &ZonedDateTime) -> Self {
        self.try_anchored_at(start)
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// Fallible form of [`anchored_at`](Quota::anchored_at), for an anchor from a database.
    ///
    /// # Errors
    ///
    /// Fails in these cases:
    ///
    /// - The period is not a day, seven days, a calendar month or a calendar year.
    /// - The quota has a burst, an algorithm or [`initial`](Quota::with_initial) units.
    /// - The time zone has neither an IANA name nor a fixed offset of whole minutes, or the process
    ///   has used 4 096 other zones.
    pub fn try_anchored_at(self, start: &ZonedDateTime) -> Result<Self, QuotaError> {
        let unit = self.anchor_unit().ok_or(Invalid(
            "quota: only days, weeks, months and years have an anchor; use Quota::per_day, \
             Quota::per_month or Quota::per_year",
            self,
        ))?;
        let zone = index(start.time_zone()).ok_or(Invalid(
            "quota: the time zone of the anchor has no name and no offset of whole minutes, or is one \
             of more than 4096; use a zone with a name",
            self,
        ))?;
        let anchor = Anchor {
            unit,
            start: start.timestamp().as_second(),
            zone,
        };
        let quota = Self {
            anchor: Some(anchor),
            ..self
        };
        if self.is_gcra() {
            return quota.try_with_algorithm(Algorithm::fixed_window());
        }
        Ok(quota.checked()?)
    }

    /// Returns the unit of a period that may have an anchor.
    fn anchor_unit(&self) -> Option<Unit> {
        if let Some(anchor) = self.anchor {
            return Some(anchor.unit);
        }
        let known = UNITS[..2].iter().find(|known| known.2 == self.period)?;
        Some(known.1)
    }

    /// Returns the start and the end of the calendar period that contains `now`.
    ///
    /// Returns `None` if the quota does not count in [calendar periods](Quota::anchored_at), and for times
    /// that no store counts: before 1970, or after 2554.
    #[must_use]
    pub fn calendar_period(&self, now: Timestamp) -> Option<Range<Timestamp>> {
        let anchor = self.anchor?;
        let now = u64::try_from(now.as_nanosecond()).ok()?;
        let [_, start, end, _] = anchor
            .edges_around(now)
            .map(|nanos| Timestamp::from_nanosecond(nanos.into()).unwrap_or(Timestamp::MAX));
        Some(start..end)
    }
}

impl TextForm<'_> {
    /// Reads `month`, `year`, or a unit with an anchor. Returns `None` for a time.
    pub(super) fn calendar(&self, units: u32, period: &str) -> Result<Option<Quota>, QuotaError> {
        let (name, start) = match period.split_once(" from ") {
            Some((name, start)) => (name.trim_end(), Some(start.trim_start())),
            None => (period, None),
        };
        let singular = name.strip_suffix('s').unwrap_or(name);
        let unit = UNITS.into_iter().find(|known| known.0 == singular);
        // Without an anchor, a day has 24 hours.
        let unit = unit.filter(|known| start.is_some() || known.2 >= 31 * DAY);
        let Some((_, unit, longest)) = unit else {
            return Ok(None);
        };
        let quota = Quota::in_utc(units, unit, longest)?;
        let Some(start) = start else {
            return Ok(Some(quota));
        };
        let form = "write the anchor as 2024-01-31T09:00[Europe/Berlin]";
        let parsed = start
            .parse()
            .map_err(|error: Error| format!("{form} ({error})"));
        let start = parsed.map_err(|fix| self.error("period", period, &fix))?;
        quota.try_anchored_at(&start).map(Some)
    }
}

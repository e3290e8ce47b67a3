//! A slow model of calendar windows, whose anchor may change with each operation.

use jiff::{
    Span,
    civil::{DateTime, date},
    tz::TimeZone,
};
use proptest::prelude::*;

use super::{
    super::tests::{Account, Row},
    *,
};
use crate::quota::Quota;

const DAY: u64 = 86_400 * SECOND;
const ZONES: [&str; 6] = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",
    "Pacific/Apia",
    "Africa/Casablanca",
];

/// Periods of one unit.
#[derive(Clone, Copy, Debug)]
struct Periods {
    unit: &'static str,
    start: DateTime,
    zone: &'static str,
}

impl Periods {
    /// Returns the start of period `n`, by plain arithmetic on years and months.
    fn edge(&self, n: i32) -> i128 {
        let months = match self.unit {
            "month" => 1,
            "year" => 12,
            _ => 0,
        };
        let local = if months > 0 {
            let month = i32::from(self.start.month()) - 1 + n * months;
            let year = month.div_euclid(12);
            let month = month.rem_euclid(12) + 1;
            let year = i16::try_from(i32::from(self.start.year()) + year).expect("a year");
            let month = i8::try_from(month).expect("a month");
            let day = self.start.day().min(date(year, month, 1).days_in_month());
            date(year, month, day).to_datetime(self.start.time())
        } else {
            let days = if self.unit == "week" { 7 } else { 1 };
            let epoch = date(1970, 1, 1);
            let day = (self.start.date() - epoch).get_days() + n * days;
            let day = Span::new().days(day);
            epoch
                .checked_add(day)
                .expect("a day")
                .to_datetime(self.start.time())
        };
        let zone = TimeZone::get(self.zone).expect("a zone");
        zone.to_timestamp(local).expect("in range").as_nanosecond()
    }

    /// Returns the end of the period that contains an instant.
    fn end(&self, instant: u64) -> u64 {
        let length = match self.unit {
            "day" => 86_400,
            "week" => 7 * 86_400,
            "month" => 2_629_746,
            _ => 31_556_952,
        };
        let since = i128::from(instant) - self.edge(0);
        let near = i32::try_from(since.div_euclid(length * i128::from(SECOND))).expect("few");
        let later = (near - 5..)
            .map(|n| self.edge(n))
            .find(|edge| *edge > instant.into());
        u64::try_from(later.expect("an edge")).expect("after 1970")
    }

    fn quota(&self, units: u32) -> Quota {
        let Self { unit, start, zone } = self;
        let text = format!("{units}/{unit} from {start}[{zone}]");
        text.parse().unwrap_or_else(|error| panic!("{error}"))
    }
}

fn periods() -> impl Strategy<Value = Periods> {
    let unit = prop::sample::select(&["day", "week", "month", "year"]);
    let day = (
        1960_i16..2040,
        1_i8..13,
        prop_oneof![2 => 28_i8..32, 1 => 1_i8..32],
    );
    let time = prop_oneof![Just((0, 0)), Just((2, 30)), (0_i8..24, 0_i8..60)];
    (unit, day, time, prop::sample::select(&ZONES)).prop_map(|(unit, day, time, zone)| {
        let (year, month, day) = day;
        let day = day.min(date(year, month, 1).days_in_month());
        let start = date(year, month, day).at(time.0, time.1, 0, 0);
        // An anchor is an instant, so its local time exists.
        let start = start.in_tz(zone).expect("a zone").datetime();
        Periods { unit, start, zone }
    })
}

#[derive(Clone, Copy, Debug)]
enum Action {
    Take(u32),
    Adjust(i64),
    /// Undoes the last charge but this number.
    Undo(usize),
}

/// The units that count, and the instant of the last charge.
#[derive(Clone, Debug, Default)]
struct Slow {
    used: u64,
    last: Option<u64>,
}

impl Slow {
    fn used(&self, periods: &Periods, now: u64) -> u64 {
        match self.last {
            Some(last) if periods.end(last) > now => self.used,
            _ => 0,
        }
    }

    fn charge(&mut self, periods: &Periods, now: u64, units: u64) {
        *self = Self {
            used: self.used(periods, now) + units,
            last: Some(now),
        };
    }

    fn row(&self, periods: &Periods, units: u32, now: u64, retry: u64) -> Row {
        let used = self.used(periods, now);
        let left = periods.end(now) - now;
        let remaining = u32::try_from(u64::from(units).saturating_sub(used)).expect("few");
        let [full, next] = [used > 0, remaining < units].map(|is| if is { left } else { 0 });
        Row {
            remaining,
            full,
            next,
            retry,
        }
    }
}

fn steps() -> impl Strategy<Value = Vec<(u64, usize, Action)>> {
    let jump = prop_oneof![
        4 => Just(0),
        2 => 0..DAY,
        2 => 0..40 * DAY,
        1 => 0..400 * DAY,
        // To the next edge, or a nanosecond before it.
        4 => prop_oneof![Just(u64::MAX), Just(u64::MAX - 1)],
    ];
    let action = prop_oneof![
        5 => (0_u32..8).prop_map(Action::Take),
        1 => (-5_i64..8).prop_map(Action::Adjust),
        1 => (0_usize..3).prop_map(Action::Undo),
    ];
    let plan = prop_oneof![5 => Just(0_usize), 1 => 0_usize..3];
    prop::collection::vec((jump, plan, action), 1..24)
}

proptest! {
    #![proptest_config(sequences())]

    #[test]
    fn calendar_windows_equal_the_model(
        plans in prop::array::uniform3(periods()),
        start in (0_u64..40 * 366).prop_map(|day| day * DAY),
        steps in steps(),
    ) {
        const UNITS: u32 = 5;
        let mut account = Account::new();
        let mut slow = Slow::default();
        let mut now = start;
        let mut taken: Vec<(u64, u64, Receipt)> = Vec::new();
        for (jump, plan, action) in steps {
            let periods = plans[plan];
            let quota = plans[plan].quota(UNITS);
            now = match u64::MAX - jump {
                before @ 0..2 => periods.end(now) - before,
                _ => now + jump,
            };
            if account.expires_at(&quota) <= now {
                account = Account::new();
                slow = Slow::default();
            }
            let row = match action {
                Action::Take(cost) => {
                    let before = slow.used(&periods, now);
                    let fits = cost == 0 || before + u64::from(cost) <= UNITS.into();
                    let retry = match cost {
                        _ if fits => 0,
                        cost if cost > UNITS => NEVER,
                        _ => periods.end(now) - now,
                    };
                    if fits && cost > 0 {
                        slow.charge(&periods, now, cost.into());
                    }
                    let (by, receipt) = account.take(&quota, now, Demand::units(cost));
                    prop_assert_eq!(by.allowed, fits);
                    if fits && cost > 0 {
                        taken.push((now, cost.into(), receipt));
                    }
                    prop_assert_eq!(Row::from(by.snapshot), slow.row(&periods, UNITS, now, retry));
                    continue;
                }
                Action::Adjust(units) => {
                    let used = slow.used(&periods, now);
                    if units > 0 {
                        let room = (2 * u64::from(UNITS)).saturating_sub(used);
                        slow.charge(&periods, now, units.unsigned_abs().min(room));
                    } else {
                        slow.used = used.saturating_sub(units.unsigned_abs());
                    }
                    account.adjust(&quota, now, units)
                }
                Action::Undo(nth) => {
                    let Some(at) = taken.len().checked_sub(nth + 1) else { continue };
                    let (charged, units, receipt) = taken.remove(at);
                    if periods.end(charged) > now {
                        slow.used = slow.used(&periods, now).saturating_sub(units);
                    }
                    account.undo(&quota, now, receipt);
                    account.look(&quota, now, Demand::units(0)).snapshot
                }
            };
            prop_assert_eq!(Row::from(row), slow.row(&periods, UNITS, now, 0));
        }
    }
}

//! Quotas of calendar periods as text and in files.
//!
//! The table `periods.json` has the decisions, and `messages.txt` the errors.

use std::time::Duration;

use jiff::{
    Timestamp, ZonedDateTime,
    tz::{Offset, TimeZone},
};
use proptest::prelude::*;
use tower_sluice::Quota;

use crate::support::regressions::keeping;

/// In a constant, as any quota.
const MONTHLY: Quota = Quota::per_month(5);
const DAY: u64 = 86_400;

#[test]
fn a_time_that_no_store_counts_has_no_calendar_period() {
    for time in ["1969-12-31T23:59:59Z", "2600-01-01T00:00:00Z"] {
        assert_eq!(MONTHLY.calendar_period(time.parse().expect("a time")), None, "{time}");
    }
}

fn zoned(text: &str) -> ZonedDateTime {
    text.parse().expect("an anchor")
}

#[test]
fn text_and_files_have_the_anchor() {
    let start = zoned("2024-01-31T09:00:00+01:00[Europe/Berlin]");
    for (quota, text) in [
        (MONTHLY, "5/month"),
        (Quota::per_year(5), "5/year"),
        (MONTHLY.anchored_at(&start), "5/month from 2024-01-31T09:00:00+01:00[Europe/Berlin]"),
        (
            Quota::per_day(5).anchored_at(&start),
            "5/day from 2024-01-31T09:00:00+01:00[Europe/Berlin]",
        ),
        (
            Quota::per(5, Duration::from_secs(7 * DAY)).anchored_at(&zoned("2024-01-01[UTC]")),
            "5/week from 2024-01-01T00:00:00+00:00[UTC]",
        ),
        (
            Quota::per_year(5).anchored_at(&zoned("2024-02-29[+05:45]")),
            "5/year from 2024-02-29T00:00:00+05:45[+05:45]",
        ),
    ] {
        assert_eq!(quota.to_string(), text);
        assert_eq!(text.parse(), Ok(quota));
        let file = serde_json::to_value(quota).expect("JSON");
        assert_eq!(file, text);
        let named = quota.with_name("billing").with_soft(2);
        let file = serde_json::to_value(named).expect("JSON");
        assert_eq!(file["period"], text.strip_prefix("5/").expect("a period"));
        assert_eq!(serde_json::from_value::<Quota>(file).expect("a quota"), named);
    }
    let short: Quota = "5/month from 2024-01-31T09:00[Europe/Berlin]".parse().expect("a quota");
    assert_eq!(short, MONTHLY.anchored_at(&start));
    assert_eq!("5/months".parse(), Ok(MONTHLY));
    assert_eq!("5/years".parse(), Ok(Quota::per_year(5)));
    let error = "5/month from now".parse::<Quota>().expect_err("no anchor").to_string();
    assert!(error.contains("write the anchor as 2024-01-31T09:00[Europe/Berlin]"), "{error}");
}

proptest! {
    #![proptest_config(keeping(file!()))]

    #[test]
    fn every_anchor_reads_back(
        nanosecond in -3_000_000_000_000_000_000_i128..20_000_000_000_000_000_000,
        zone in prop::sample::select(&["UTC", "Etc/GMT+5", "Europe/Amsterdam", "Africa/Monrovia"]),
        offset in prop::option::of(-1_559_i32..1_560),
        unit in prop::sample::select(vec![Quota::per_day(5), MONTHLY, Quota::per_year(5)]),
    ) {
        let zone = match offset {
            Some(minutes) => TimeZone::fixed(Offset::from_seconds(60 * minutes).expect("an offset")),
            None => TimeZone::get(zone).expect("a zone"),
        };
        let start = Timestamp::from_nanosecond(nanosecond).expect("an instant");
        let quota = unit.anchored_at(&start.to_zoned_datetime(zone));
        prop_assert_eq!(quota.to_string().parse(), Ok(quota), "{}", quota);
    }
}

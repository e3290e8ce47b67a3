//! Quotas of calendar periods: settings, text, files, and the layer.
//!
//! The table `periods.json` has the decisions.

use std::time::Duration;

use jiff::{
    Timestamp, ZonedDateTime,
    tz::{Offset, TimeZone},
};
use proptest::prelude::*;
use tower_sluice::{Algorithm, Quota};

use crate::support::regressions::keeping;

/// In a constant, as any quota.
const MONTHLY: Quota = Quota::per_month(5);
const DAY: u64 = 86_400;

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
}

#[test]
fn a_wrong_setting_is_an_error_with_the_fix() {
    let start = zoned("2024-01-31[UTC]");
    let posix = TimeZone::posix("EST5EDT,M3.2.0,M11.1.0").expect("a zone");
    let posix = start.timestamp().to_zoned_datetime(posix);
    let unknown = start.timestamp().to_zoned_datetime(TimeZone::unknown());
    let odd = TimeZone::fixed(Offset::from_seconds(3_601).expect("an offset"));
    let odd = start.timestamp().to_zoned_datetime(odd);
    let errors = [
        Quota::per_hour(5).try_anchored_at(&start),
        Quota::concurrent(5).try_anchored_at(&start),
        Quota::blocked().try_anchored_at(&start),
        MONTHLY.try_anchored_at(&posix),
        MONTHLY.try_anchored_at(&unknown),
        MONTHLY.try_anchored_at(&odd),
        Quota::per_day(5).with_burst(9).try_anchored_at(&start),
        Quota::per_day(5).with_initial(2).try_anchored_at(&start),
        Quota::per_day(5).with_algorithm(Algorithm::SlidingLog).try_anchored_at(&start),
        MONTHLY.try_with_algorithm(Algorithm::Gcra),
        MONTHLY.try_with_burst(9),
        "5/month from now".parse(),
        "5/fortnight".parse(),
    ];
    let fixes = [
        "use Quota::per_day, Quota::per_month or Quota::per_year",
        "use Quota::per_day",
        "use Quota::per_day",
        "use a zone with a name",
        "use a zone with a name",
        "use a zone with a name",
        "burst is set on a window",
        "initial is set on a window",
        "algorithm is set on calendar periods, which are fixed windows; drop it",
        "algorithm is set on calendar periods",
        "burst is set on a window",
        "write the anchor as 2024-01-31T09:00[Europe/Berlin]",
        "end it with one of",
    ];
    for (error, fix) in errors.into_iter().zip(fixes) {
        let error = error.expect_err(fix).to_string();
        assert!(error.contains(fix), "{error}");
    }
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

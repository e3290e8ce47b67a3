//! Quotas to and from text, quotas to and from JSON, and quotas from numbers compared with those of
//! an equivalent text.

use std::time::Duration;

use tower_sluice::Quota;

use super::input::Input;

const TEN_YEARS: u128 = 10 * 365 * 86_400 * 1_000_000_000;

/// Reads any text. The same bytes also serve as numbers.
pub(crate) fn check(bytes: &[u8]) {
    reads_back(&String::from_utf8_lossy(bytes));
    reads_back_from_json(bytes);
    same_as_its_text(&mut Input::new(bytes));
}

fn reads_back(text: &str) {
    match text.parse::<Quota>() {
        Ok(quota) => {
            is_sound(&quota);
            assert_eq!(quota.to_string().parse(), Ok(quota), "{text:?} was shown as {quota}");
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

fn reads_back_from_json(bytes: &[u8]) {
    match serde_json::from_slice::<Quota>(bytes) {
        Ok(quota) => {
            is_sound(&quota);
            let written = serde_json::to_vec(&quota).expect("JSON");
            let read = serde_json::from_slice::<Quota>(&written).expect("the written text");
            assert_eq!(read, quota, "{}", written.escape_ascii());
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

fn same_as_its_text(input: &mut Input<'_>) {
    let (unit, nanos) = input.one_of(&[
        ("ns", 1_u64),
        ("us", 1_000),
        ("ms", 1_000_000),
        ("s", 1_000_000_000),
        ("min", 60_000_000_000),
        ("h", 3_600_000_000_000),
        ("day", 86_400_000_000_000),
        ("week", 604_800_000_000_000),
    ]);
    let [Ok(units), Ok(burst)] = [input.number(), input.number()].map(u32::try_from) else {
        return;
    };
    let n = input.number();
    let period = Duration::from_nanos(n.saturating_mul(nanos));
    let built = Quota::new(units, period).and_then(|quota| quota.try_with_burst(burst));
    let read = format!("{units}/{n}{unit} burst {burst}").parse::<Quota>();
    assert_eq!(built.as_ref().ok(), read.as_ref().ok(), "{units}/{n}{unit} burst {burst}");

    let allowed = units > 0
        && burst > 0
        && (1..=TEN_YEARS).contains(&period.as_nanos())
        && u128::from(units) <= period.as_nanos()
        && period.as_nanos().div_ceil(units.into()) * u128::from(burst) <= TEN_YEARS
        // As the quota is before its burst is set.
        && period.as_nanos().div_ceil(units.into()) * u128::from(units) <= TEN_YEARS;
    assert_eq!(built.is_ok(), allowed, "{built:?}");
    built.iter().for_each(is_sound);
}

fn is_sound(quota: &Quota) {
    if quota.limit() == 0 {
        return;
    }
    // Slots are not refilled.
    let has_slots = quota.to_string().contains("concurrent");
    assert_eq!(quota.period().is_zero(), has_slots, "{quota}");
    if has_slots {
        return;
    }
    let (interval, burst) = (quota.interval().as_nanos(), u128::from(quota.limit()));
    assert_eq!(interval, quota.period().as_nanos().div_ceil(quota.units().into()));
    assert!(interval > 0 && burst > 0 && interval * burst <= TEN_YEARS, "{quota}");
}

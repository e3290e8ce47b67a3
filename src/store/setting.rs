//! Settings of wrappers.

use std::{error::Error, fmt, time::Duration};

/// Error for an invalid setting.
///
/// The text contains the field, the value and the fix.
///
/// See [troubleshooting](crate::guide::troubleshooting#errors).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingError {
    field: &'static str,
    value: String,
    fix: &'static str,
}

impl SettingError {
    pub(super) fn new(field: &'static str, value: impl fmt::Display, fix: &'static str) -> Self {
        Self { field, value: value.to_string(), fix }
    }
}

impl fmt::Display for SettingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {}; {}", self.field, self.value, self.fix)
    }
}

impl Error for SettingError {}

/// Returns a valid setting, and panics with the error of an invalid one.
#[track_caller]
pub(crate) fn literal<T>(setting: Result<T, impl fmt::Display>) -> T {
    match setting {
        Ok(value) => value,
        Err(error) => panic!("{error}"),
    }
}

/// The default time for which a wrapper may answer without calling the store, in nanoseconds.
pub(super) const MAX_AGE: u64 = 1_000_000_000;
/// The longest time for which a wrapper may answer without calling the store.
const LONGEST: Duration = Duration::from_secs(60);

/// Checks the time for which a wrapper may answer without calling the store. Returns nanoseconds.
pub(super) fn max_age(field: &'static str, time: Duration) -> Result<u64, SettingError> {
    if time.is_zero() {
        const FIX: &str = "give a time such as 1 s, or remove this wrapper";
        return Err(SettingError::new(field, "0 s", FIX));
    }
    if time > LONGEST {
        const FIX: &str =
            "give at most 60 s: until then, a reset by another process has no effect here";
        return Err(SettingError::new(field, format_args!("{time:?}"), FIX));
    }
    Ok(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

/// Checks that `number` is from 1 to `most`. The texts are the fixes for zero and for a number above
/// `most`.
pub(super) fn capacity(
    field: &'static str,
    number: usize,
    most: usize,
    [lower, higher]: [&'static str; 2],
) -> Result<usize, SettingError> {
    match number {
        0 => Err(SettingError::new(field, number, lower)),
        _ if number > most => Err(SettingError::new(field, number, higher)),
        _ => Ok(number),
    }
}

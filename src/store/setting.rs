//! Settings of wrappers.

use std::{error::Error, fmt, time::Duration};

/// Error for an invalid setting.
///
/// The text contains the field, the value and the fix.
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

/// The longest time for which a wrapper may answer without calling the store.
const LONGEST: Duration = Duration::from_secs(60);

/// Checks the time for which a wrapper may answer without calling the store.
pub(super) fn at_most(field: &'static str, time: Duration) -> Result<Duration, SettingError> {
    if time.is_zero() {
        const FIX: &str = "give a time such as 1 s, or remove this wrapper";
        return Err(SettingError::new(field, "0 s", FIX));
    }
    if time > LONGEST {
        const FIX: &str =
            "give at most 60 s: until then, a reset by another process has no effect here";
        return Err(SettingError::new(field, format_args!("{time:?}"), FIX));
    }
    Ok(time)
}

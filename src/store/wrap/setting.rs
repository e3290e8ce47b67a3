//! What is wrong with a wrapper's setting.

use std::{error::Error, fmt, time::Duration};

/// Why a setting was refused: the field, its value and the fix are in the text.
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

/// What the programmer wrote, which is right or a panic.
#[track_caller]
pub(super) fn literal<T>(checked: Result<T, SettingError>) -> T {
    match checked {
        Ok(value) => value,
        Err(wrong) => panic!("{wrong}"),
    }
}

/// The longest time for which this process may go by what it knows.
const LONGEST: Duration = Duration::from_secs(60);

/// How long this process may go by what it knows, before the store is asked again.
pub(super) fn at_most(field: &'static str, time: Duration) -> Result<Duration, SettingError> {
    if time.is_zero() {
        const FIX: &str = "give it time to spare the store anything, as 1 s, or leave it out";
        return Err(SettingError::new(field, "0 s", FIX));
    }
    if time > LONGEST {
        const FIX: &str = "give at most 60 s: so long a reset by another process is not seen";
        return Err(SettingError::new(field, format_args!("{time:?}"), FIX));
    }
    Ok(time)
}

//! What is wrong with a wrapper's setting.

use std::{error::Error, fmt};

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

//! A measurement and its verdict.

use std::fmt;

/// The result of one subject under one attack.
#[derive(Clone, Debug)]
pub struct Cell {
    text: String,
    pub holds: bool,
}

impl Cell {
    pub fn new(text: impl Into<String>, holds: bool) -> Self {
        Self { text: text.into(), holds }
    }

    /// Returns the cell of a subject that is not comparable.
    pub fn none() -> Self {
        Self::new("–", true)
    }

    /// Returns the cell of an attacker's requests, of which at most `most` should be allowed.
    pub fn at_most(most: usize, admitted: usize, of: usize) -> Self {
        Self::admitted(admitted, of, admitted <= most)
    }

    /// Returns the cell of honest requests, which should all be allowed.
    pub fn all(admitted: usize, of: usize) -> Self {
        Self::admitted(admitted, of, admitted == of)
    }

    fn admitted(admitted: usize, of: usize, holds: bool) -> Self {
        Self::new(format!("{} of {}", grouped(admitted), grouped(of)), holds)
    }
}

/// Bold marks a wrong result.
impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.holds { f.write_str(&self.text) } else { write!(f, "**{}**", self.text) }
    }
}

/// Formats 10000 as 10 000.
pub fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

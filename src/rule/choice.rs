//! Charges of a request, and choices between lists of them.

use std::ops::Range;

use smallvec::SmallVec;

use crate::store::{Charge, OwnedCharges};

/// Charges of a request, and the choices between them, for `testing::take`.
///
/// All charges must fit, except for those that a [`Choice`] passes over.
#[derive(Clone, Copy, Debug)]
pub struct Candidates<'c, 'a> {
    /// The charges, in the order of the rules.
    pub charges: &'c [Charge<'a>],
    /// The choices, in the order of their charges. They do not overlap.
    pub choices: &'c [Choice],
}

/// Choice between lists of neighboring charges: the first list that fits is charged.
///
/// For example, [`Rule::or`](crate::Rule::or) chooses between lists of one charge.
#[derive(Clone, Debug)]
pub struct Choice {
    pub(super) start: usize,
    /// The end of each list. The next list begins there.
    ends: SmallVec<[usize; 3]>,
}

impl Choice {
    /// Creates a choice between lists of these lengths. The first one begins at the charge with the
    /// index `start`, and each further one where the list before it ends.
    ///
    /// # Panics
    ///
    /// Panics if there is no list.
    #[track_caller]
    pub fn new(start: usize, lengths: impl IntoIterator<Item = usize>) -> Self {
        let mut choice = Self {
            start,
            ends: SmallVec::new(),
        };
        for length in lengths {
            choice.add(length);
        }
        assert!(
            !choice.ends.is_empty(),
            "a choice without a list; give it at least one length"
        );
        choice
    }

    /// Adds a list of this length.
    pub(crate) fn add(&mut self, length: usize) {
        self.ends.push(self.end().saturating_add(length));
    }

    pub(super) fn end(&self) -> usize {
        self.ends.last().copied().unwrap_or(self.start)
    }

    /// Returns the number of lists.
    pub(super) fn lists(&self) -> usize {
        self.ends.len()
    }

    /// Returns the indices of all charges of the choice.
    pub(super) fn span(&self) -> Range<usize> {
        self.start..self.end()
    }

    /// Returns the charges of a list.
    pub(super) fn charges<'c, 'a>(&self, all: Candidates<'c, 'a>, list: usize) -> &'c [Charge<'a>] {
        let start = match list {
            0 => self.start,
            _ => self.ends[list - 1],
        };
        &all.charges[start..self.ends[list]]
    }
}

impl<'c, 'a> Candidates<'c, 'a> {
    /// Returns the charges of a list of the choice with this index.
    pub(super) fn list(self, choice: usize, list: usize) -> &'c [Charge<'a>] {
        self.choices[choice].charges(self, list)
    }
}

impl<'c, 'a> From<&'c [Charge<'a>]> for Candidates<'c, 'a> {
    fn from(charges: &'c [Charge<'a>]) -> Self {
        Self {
            charges,
            choices: &[],
        }
    }
}

/// Owned copy of the charges of a request.
#[derive(Clone, Debug)]
pub(crate) struct OwnedCandidates {
    charges: OwnedCharges,
    choices: SmallVec<[Choice; 1]>,
}

impl From<Candidates<'_, '_>> for OwnedCandidates {
    fn from(all: Candidates<'_, '_>) -> Self {
        Self {
            charges: all.charges.into(),
            choices: all.choices.into(),
        }
    }
}

impl OwnedCandidates {
    /// Calls `read` with the charges.
    pub(crate) fn with<T>(&self, read: impl FnOnce(Candidates<'_, '_>) -> T) -> T {
        self.charges.with(|charges| {
            read(Candidates {
                charges,
                choices: &self.choices,
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "a choice without a list")]
    fn a_choice_has_a_list() {
        drop(Choice::new(0, []));
    }
}

//! The rows, as Markdown.

use std::fmt;

use crate::{apps::Peer, cell::Cell};

/// One measurement for each of [`Peer::ALL`].
pub type Cells = [Cell; Peer::ALL.len()];

#[derive(Debug, Default)]
pub struct Table(Vec<(u32, &'static str, Cells)>);

impl Table {
    /// Adds a row with the number of its attack in `tests/it/attacks`.
    pub fn row(&mut self, number: u32, attack: &'static str, cells: Cells) {
        self.0.push((number, attack, cells));
    }

    /// Returns the number of successful attacks on tower-sluice.
    pub fn broken(&self) -> usize {
        self.0.iter().filter(|(.., cells)| !cells[0].holds).count()
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "| # | attack |")?;
        Peer::ALL.iter().try_for_each(|peer| write!(f, " {} |", peer.title()))?;
        write!(f, "\n|---|---|{}", "---|".repeat(Peer::ALL.len()))?;
        let mut rows: Vec<_> = self.0.iter().collect();
        rows.sort_by_key(|(number, ..)| *number);
        for (number, attack, cells) in rows {
            write!(f, "\n| {number} | {attack} |")?;
            cells.iter().try_for_each(|cell| write!(f, " {cell} |"))?;
        }
        Ok(())
    }
}

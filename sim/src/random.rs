//! Pseudo-random numbers (splitmix64), equal in each run of a seed.

use std::ops::Range;

/// A sequence of pseudo-random numbers.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let n = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        n ^ (n >> 31)
    }

    /// Returns an independent sequence.
    pub fn fork(&mut self) -> Self {
        Self(self.draw())
    }

    pub fn within(&mut self, range: Range<u64>) -> u64 {
        range.start + self.draw() % (range.end - range.start)
    }

    pub fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.draw() % end as u64).unwrap_or(0)
    }

    pub fn percent(&mut self, percent: u64) -> bool {
        self.within(0..100) < percent
    }

    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }

    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.draw().to_le_bytes()[0]).collect()
    }
}

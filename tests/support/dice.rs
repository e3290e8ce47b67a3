//! Pseudo-random numbers that are equal in each run.

/// The generator splitmix64 with a seed.
#[derive(Clone, Debug)]
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let n = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        n ^ (n >> 31)
    }

    pub(crate) fn below(&mut self, sides: u32) -> u32 {
        u32::try_from(self.roll() % u64::from(sides)).expect("below `sides`")
    }

    pub(crate) fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.roll() % len as u64).expect("below `len`")
    }

    /// Returns a number within 0 and 1.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.roll() >> 11) as f64 / (1_u64 << 53) as f64
    }

    pub(crate) fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.index(of.len())]
    }

    pub(crate) fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.roll().to_be_bytes()[0]).collect()
    }
}

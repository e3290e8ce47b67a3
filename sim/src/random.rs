//! Pseudo-random numbers (splitmix64), equal in each run of a seed.

use std::{cell::Cell, ops::Range};

/// A sequence of pseudo-random numbers.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let n = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        n ^ (n >> 31)
    }

    /// Returns an independent sequence.
    pub fn fork(&mut self) -> Self {
        Self(self.next())
    }

    pub fn within(&mut self, range: Range<u64>) -> u64 {
        range.start + self.next() % (range.end - range.start)
    }

    pub fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end as u64).unwrap_or(0)
    }

    pub fn percent(&mut self, percent: u64) -> bool {
        self.within(0..100) < percent
    }

    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }

    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.next().to_le_bytes()[0]).collect()
    }
}

thread_local! {
    static SOURCE: Cell<u64> = const { Cell::new(0) };
}

/// Seeds the random source of the operating system for this thread. Call it before the thread makes
/// its first hash map.
pub fn seed_thread(seed: u64) {
    SOURCE.set(seed);
}

/// Replaces the system call of the same name, from which the standard library seeds its hash maps
/// and tokio its choices.
///
/// # Safety
///
/// `buffer` must be valid for writes of `length` bytes, as for the system call.
#[allow(unsafe_code, reason = "the only way to replace a function of the C library")]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getrandom(buffer: *mut u8, length: usize, _flags: u32) -> isize {
    let mut random = Random::new(SOURCE.get());
    for at in 0..length {
        let byte = random.next().to_le_bytes()[0];
        // SAFETY: the caller provides `length` bytes.
        unsafe { buffer.add(at).write(byte) };
    }
    SOURCE.set(random.next());
    isize::try_from(length).unwrap_or(isize::MAX)
}

#[cfg(test)]
mod tests {
    use std::{collections::HashMap, thread};

    use super::*;

    #[test]
    fn hash_maps_depend_on_the_seed_alone() {
        let order = |seed| {
            let names = move || {
                seed_thread(seed);
                (0..50)
                    .map(|n| (n, ()))
                    .collect::<HashMap<u32, ()>>()
                    .into_keys()
                    .collect::<Vec<_>>()
            };
            thread::spawn(names).join().expect("no panic")
        };
        assert_eq!(order(7), order(7));
        assert_ne!(order(7), order(8));
    }
}

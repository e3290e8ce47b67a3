//! The random source of the operating system, from a seed.

use rand::{SeedableRng, rngs::StdRng};

/// Seeds the random source, which the standard library takes for its hash maps and tokio for its
/// choices. The process has only one: nothing else may draw from it. Each thread draws the seed of
/// its hash maps once.
pub fn seed_process(seed: u64) {
    let source = StdRng::seed_from_u64(seed);
    match mad_turmoil::rand::try_rng() {
        Some(mut current) => *current = source,
        None => mad_turmoil::rand::set_rng(source),
    }
}

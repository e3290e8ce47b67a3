//! Where property tests keep their failing cases.

use proptest::test_runner::{Config, FileFailurePersistence};

/// The default configuration, with failing cases of `file` (a `file!()`) kept in
/// `proptest-regressions`. A kept case is played first, from then on: commit it with the fix.
pub(crate) fn keeping(file: &str) -> Config {
    let file = file.trim_end_matches(".rs");
    let path = format!("{}/proptest-regressions/{file}.txt", env!("CARGO_MANIFEST_DIR"));
    Config::with_failure_persistence(FileFailurePersistence::Direct(path.leak()))
}

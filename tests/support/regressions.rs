//! The place where property tests keep their failing cases.

use proptest::test_runner::{Config, FileFailurePersistence};

/// Returns the default configuration, which keeps failing cases of `file` (a `file!()`) in
/// `proptest-regressions`. Kept cases run first from then on: commit them with the fix.
pub(crate) fn keeping(file: &str) -> Config {
    let file = file.trim_start_matches("dev/../").trim_end_matches(".rs");
    let path = format!("{}/../proptest-regressions/{file}.txt", env!("CARGO_MANIFEST_DIR"));
    Config::with_failure_persistence(FileFailurePersistence::Direct(path.leak()))
}

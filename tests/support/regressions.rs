//! The place where property tests keep their failing cases.

use proptest::test_runner::{Config, FileFailurePersistence};

/// Returns the default configuration, which keeps failing cases of `file` (a `file!()`) in
/// `tests/regressions`. Kept cases run first from then on: commit them with the fix.
pub(crate) fn keeping(file: &str) -> Config {
    let file = file.trim_start_matches("dev/../tests/").trim_end_matches(".rs");
    let path = format!("{}/../tests/regressions/{file}.txt", env!("CARGO_MANIFEST_DIR"));
    Config::with_failure_persistence(FileFailurePersistence::Direct(path.leak()))
}

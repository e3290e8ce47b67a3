//! The place where property tests keep their failing cases.

use std::{any::Any, fmt};

use proptest::test_runner::{Config, FailurePersistence, FileFailurePersistence, PersistedSeed};

/// Returns the default configuration, which keeps failing cases of `file` (a `file!()`) in
/// `tests/regressions`. Kept cases run first from then on: commit them with the fix.
///
/// A slow server fails cases that are right, so a failing case of `tests/servers` is printed only.
/// With `PROPTEST_DISABLE_FAILURE_PERSISTENCE`, no case is kept or run first.
pub(crate) fn keeping(file: &str) -> Config {
    let mut config = Config::default();
    let file = file.trim_start_matches("dev/../tests/").trim_end_matches(".rs");
    let path = format!("{}/../tests/regressions/{file}.txt", env!("CARGO_MANIFEST_DIR"));
    let files = FileFailurePersistence::Direct(path.leak());
    if config.failure_persistence.is_some() {
        config.failure_persistence = Some(match file.starts_with("servers/") {
            true => Box::new(Printed(files)),
            false => Box::new(files),
        });
    }
    config
}

/// Prints the line that keeps a failing case. Kept cases of the file run first.
#[derive(Clone, Debug, PartialEq)]
struct Printed(FileFailurePersistence);

impl FailurePersistence for Printed {
    fn load_persisted_failures2(&self, source: Option<&'static str>) -> Vec<PersistedSeed> {
        self.0.load_persisted_failures2(source)
    }

    #[allow(clippy::print_stderr, reason = "the report of a failed test")]
    fn save_persisted_failure2(
        &mut self,
        _: Option<&'static str>,
        seed: PersistedSeed,
        case: &dyn fmt::Debug,
    ) {
        let FileFailurePersistence::Direct(path) = self.0 else { return };
        eprintln!("unless the server was slow, add this line to {path}:\ncc {seed} # {case:?}");
    }

    fn box_clone(&self) -> Box<dyn FailurePersistence> {
        Box::new(self.clone())
    }

    fn eq(&self, other: &dyn FailurePersistence) -> bool {
        other.as_any().downcast_ref() == Some(self)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

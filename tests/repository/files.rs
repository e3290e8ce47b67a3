//! The files of the repository.

use std::{
    fs,
    path::{Path, PathBuf},
};

pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Reads a file of the repository.
pub(crate) fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns a file, or all files of a folder except those of builds.
pub(crate) fn all(path: impl AsRef<Path>) -> Vec<PathBuf> {
    let path = root().join(path);
    if !path.is_dir() {
        return vec![path];
    }
    let entries =
        fs::read_dir(path).expect("a folder").map(|entry| entry.expect("an entry").path());
    let inside =
        entries.filter(|path| !path.ends_with("target") && !path.ends_with("node_modules"));
    inside.flat_map(all).collect()
}

/// Returns `true` if the name of a file ends so.
pub(crate) fn has_ending(path: &Path, endings: &[&str]) -> bool {
    path.extension().is_some_and(|own| endings.iter().any(|ending| own == *ending))
}

/// Returns the Rust files of a file or a folder.
pub(crate) fn sources(path: impl AsRef<Path>) -> Vec<PathBuf> {
    let mut found = all(path);
    found.retain(|path| has_ending(path, &["rs"]));
    found
}

//! The files of the published package.

use std::{collections::BTreeSet, path::Path, process::Command};

use crate::files::{all, has_ending, root};

/// The files outside of [`FOLDERS`]. cargo creates the last four.
const TOP: [&str; 13] = [
    "CHANGELOG.md",
    "LICENSE-APACHE",
    "LICENSE-MIT",
    "README.md",
    "SECURITY.md",
    "examples/conformance.rs",
    "examples/grafana.json",
    "examples/production.rs",
    "examples/quickstart.rs",
    ".cargo_vcs_info.json",
    "Cargo.lock",
    "Cargo.toml",
    "Cargo.toml.orig",
];
/// Folders whose files with these extensions are packed.
const FOLDERS: [(&str, &[&str]); 3] = [
    ("src/", &["rs", "md", "svg", "html", "js", "css"]),
    ("lua/", &["lua", "md"]),
    ("tests/scenarios/", &["json"]),
];

fn packed() -> BTreeSet<String> {
    let arguments = ["package", "--list", "--locked", "--allow-dirty"];
    let output = Command::new(env!("CARGO")).args(arguments).current_dir(root()).output();
    let output = output.expect("cargo runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let list = String::from_utf8(output.stdout).expect("text");
    // Windows separates paths differently.
    list.lines().map(|path| path.replace('\\', "/")).collect()
}

#[test]
fn the_package_has_no_unexpected_file() {
    for path in packed() {
        let folder = FOLDERS.iter().find(|(folder, _)| path.starts_with(folder));
        let meant = match folder {
            Some((_, endings)) => has_ending(Path::new(&path), endings),
            None => TOP.contains(&path.as_str()),
        };
        assert!(
            meant,
            "{path} is packed; change `include` in Cargo.toml, or the list in this test"
        );
    }
}

#[test]
fn the_package_has_every_expected_file() {
    let packed = packed();
    let mut meant = BTreeSet::new();
    for (folder, endings) in FOLDERS {
        let there = all(folder).into_iter().filter(|path| has_ending(path, endings));
        // As cargo names them.
        meant.extend(there.map(|path| {
            let path = path.strip_prefix(root()).expect("below the root");
            path.to_string_lossy().replace('\\', "/")
        }));
    }
    // Without a repository, cargo does not record the commit.
    meant.extend(TOP.map(str::to_owned));
    meant.remove(".cargo_vcs_info.json");
    let lacking: Vec<_> = meant.difference(&packed).collect();
    assert!(lacking.is_empty(), "not packed, see `include` in Cargo.toml: {lacking:?}");
}

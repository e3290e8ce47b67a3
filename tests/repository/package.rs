//! The files of the published package.

use std::{collections::BTreeSet, fs, path::Path, process::Command};

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

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

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

fn ending(path: &str) -> &str {
    Path::new(path).extension().and_then(|ending| ending.to_str()).unwrap_or_default()
}

/// Collects the files of a folder with these extensions, as cargo names them.
fn there(folder: &Path, endings: &[&str], found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            there(&path, endings, found);
        } else if endings.contains(&ending(&path.to_string_lossy())) {
            let path = path.strip_prefix(root()).expect("below the root");
            found.insert(path.to_string_lossy().replace('\\', "/"));
        }
    }
}

#[test]
fn the_package_has_no_unexpected_file() {
    for path in packed() {
        let folder = FOLDERS.iter().find(|(folder, _)| path.starts_with(folder));
        let meant = match folder {
            Some((_, endings)) => endings.contains(&ending(&path)),
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
        there(&root().join(folder), endings, &mut meant);
    }
    // Without a repository, cargo does not record the commit.
    meant.extend(TOP.map(str::to_owned));
    meant.remove(".cargo_vcs_info.json");
    let lacking: Vec<_> = meant.difference(&packed).collect();
    assert!(lacking.is_empty(), "not packed, see `include` in Cargo.toml: {lacking:?}");
}

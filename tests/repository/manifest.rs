//! The packages of the workspace and their dependencies: few packages for a user, known licences, and
//! no later Rust.
#![allow(clippy::print_stdout)]

use std::{
    collections::{BTreeMap, BTreeSet},
    process::Command,
};

use serde::Deserialize;
use serde_json::Value;

use crate::files::read;

const MOST_PACKAGES: usize = 30;
/// The most packages that the quickstart builds.
const MOST_FOR_THE_QUICKSTART: usize = 90;

/// The part of `deny.toml` that is checked here, without cargo-deny.
#[derive(Deserialize)]
struct Deny {
    licenses: Licences,
}

#[derive(Deserialize)]
struct Licences {
    allow: BTreeSet<String>,
}

/// Runs cargo on this package. Uses the network only for packages that were never downloaded.
fn cargo(arguments: &[&str]) -> String {
    let mut cargo = Command::new(env!("CARGO"));
    let output = cargo.args(arguments).current_dir(env!("CARGO_MANIFEST_DIR")).output();
    let output = output.expect("cargo runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo {}: {said}", arguments.join(" "));
    String::from_utf8(output.stdout).expect("text")
}

/// The packages that are compiled on this machine, including this one, as `name version`. `no-dev`
/// edges are those of a user.
fn tree(edges: &str, features: &[&str]) -> BTreeSet<String> {
    let tree = ["tree", "--locked", "--edges", edges, "--prefix", "none"];
    let lines = cargo(&[&tree, features].concat());
    let package = |line: &str| {
        let mut words = line.split(' ');
        let (name, version) = (words.next()?, words.next()?.strip_prefix('v')?);
        Some(format!("{name} {version}"))
    };
    lines.lines().filter_map(package).collect()
}

/// The packages of the workspace, by name.
pub(crate) fn packages_of_this_workspace() -> BTreeMap<String, Value> {
    let text = cargo(&["metadata", "--locked", "--format-version", "1", "--no-deps"]);
    let mut value: Value = serde_json::from_str(&text).expect("JSON");
    let packages: Vec<Value> = serde_json::from_value(value["packages"].take()).expect("a list");
    packages.into_iter().map(|it| (it["name"].as_str().expect("a name").to_owned(), it)).collect()
}

fn metadata() -> Vec<Value> {
    let version = cargo(&["-vV"]);
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).expect("a host");
    let format = ["metadata", "--locked", "--format-version", "1", "--all-features"];
    let text = cargo(&[&format[..], &["--filter-platform", host]].concat());
    let mut value: Value = serde_json::from_str(&text).expect("JSON");
    serde_json::from_value(value["packages"].take()).expect("a list of packages")
}

/// `1.88` or `1.88.0` as (1, 88).
fn rust(version: &str) -> (u32, u32) {
    let mut numbers = version.split('.').map_while(|number| number.parse().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

#[test]
fn without_default_features_there_are_few_packages() {
    let packages = tree("no-dev", &["--no-default-features"]);
    println!("packages without default features: {} (at most {MOST_PACKAGES})", packages.len());
    assert!(packages.len() <= MOST_PACKAGES, "{packages:#?}");
}

/// A first build of the example of the README compiles these packages.
#[test]
fn the_quickstart_builds_few_packages() {
    let packages = tree("normal,build,dev", &[]);
    println!("packages of the quickstart: {} (at most {MOST_FOR_THE_QUICKSTART})", packages.len());
    assert!(packages.len() <= MOST_FOR_THE_QUICKSTART, "{packages:#?}");
}

/// The tests of `dev` are compiled with features of `dev`, which must be those of the library.
#[test]
fn the_features_of_the_tests_are_those_of_the_library() {
    let packages = packages_of_this_workspace();
    let features = |name: &str| packages[name]["features"].as_object().expect("features").clone();
    let (mut library, mut dev) = (features(env!("CARGO_PKG_NAME")), features("dev"));
    let (default, more) = (library.remove("default"), dev.remove("default"));
    let mut more: Vec<Value> = serde_json::from_value(more.expect("a default")).expect("a list");
    more.retain(|feature| feature != "serde" && feature != "testing");
    assert_eq!(Some(Value::Array(more)), default, "dev/Cargo.toml: default");
    assert_eq!(library.len(), dev.len());
    for (name, implied) in &library {
        let implied = implied.as_array().expect("a list").iter();
        let own = implied.filter(|it| library.contains_key(it.as_str().expect("a name")));
        let mut wanted: Vec<_> = own.cloned().collect();
        wanted.push(format!("{}/{name}", env!("CARGO_PKG_NAME")).into());
        assert_eq!(dev.get(name), Some(&Value::Array(wanted)), "dev/Cargo.toml: {name}");
    }
}

#[test]
fn the_readme_states_the_numbers_of_packages() {
    let readme = read("README.md");
    let flags: [&[&str]; 3] =
        [&[], &["--no-default-features", "--features=axum,tracing"], &["--no-default-features"]];
    let [all, less, none] = flags.map(|flags| tree("no-dev", flags).len());
    let words = format!("The default build has {all} packages, and {less} without `governor`");
    assert!(readme.contains(&words), "{words}");
    let words = format!("the build has {none} packages");
    assert!(readme.contains(&words), "{words}");
}

#[test]
fn no_dependency_needs_a_later_rust() {
    let packages = tree("no-dev", &["--all-features"]);
    let ours = rust(env!("CARGO_PKG_RUST_VERSION"));
    let mut seen = BTreeSet::new();
    for package in metadata() {
        let text = |field: &str| package[field].as_str().unwrap_or_default();
        let name = format!("{} {}", text("name"), text("version"));
        if packages.contains(&name) {
            let wanted = text("rust_version");
            assert!(
                rust(wanted) <= ours,
                "{name} needs Rust {wanted}, later than {ours:?} of Cargo.toml"
            );
            seen.insert(name);
        }
    }
    assert_eq!(seen, packages, "every package was looked at");
}

/// Includes tests and examples, because a build script runs on every machine that builds them.
#[test]
fn every_package_comes_from_the_registry_with_a_checksum() {
    let lock = read("Cargo.lock");
    let (mut sources, mut ours) = (BTreeSet::new(), Vec::new());
    for package in lock.split("[[package]]").skip(1) {
        let field = |name: &str| {
            let line = package.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|rest| rest.strip_prefix(" = ")).map(|text| text.trim_matches('"'))
        };
        let name = field("name").expect("a name");
        match field("source") {
            None => ours.push(name),
            Some(source) => {
                sources.insert(source);
                let checksum = field("checksum").unwrap_or_else(|| panic!("{name}: no checksum"));
                assert_eq!(checksum.len(), 64, "{name}");
            }
        }
    }
    assert_eq!(ours, ["dev", env!("CARGO_PKG_NAME")], "no other package is in a folder");
    let one = sources.len() == 1 && sources.iter().all(|source| source.starts_with("registry+"));
    assert!(one, "one registry and no Git repositories: {sources:?}");
}

#[test]
fn every_licence_is_one_of_those_in_deny_toml() {
    let deny: Deny = toml::from_str(&read("deny.toml")).expect("TOML");
    let permissive = deny.licenses.allow;
    for package in metadata() {
        let licence = package["license"].as_str().unwrap_or_default();
        let text = licence.replace('/', " OR ").replace(['(', ')'], " ");
        let known = |part: &str| permissive.contains(part.trim());
        // Without `AND`, one permissive alternative is enough.
        let fine = match text.contains(" AND ") {
            true => text.split(" AND ").flat_map(|part| part.split(" OR ")).all(known),
            false => text.split(" OR ").any(known),
        };
        assert!(fine, "{}: {licence:?}", package["name"]);
    }
}

/// The README states it as "MSRV is 1.88" or "Rust 1.88", if at all.
#[test]
fn the_readme_states_the_rust_version_of_the_manifest() {
    let readme = read("README.md");
    for words in ["MSRV is ", "MSRV: ", "Rust "] {
        for rest in readme.split(words).skip(1).filter(|rest| rest.starts_with("1.")) {
            let version = rest.split(|c: char| c != '.' && !c.is_ascii_digit()).next();
            let stated = rust(version.unwrap_or_default());
            assert_eq!(stated, rust(env!("CARGO_PKG_RUST_VERSION")), "README.md: {words}");
        }
    }
}

#[test]
fn the_workflow_installs_the_rust_version_of_the_manifest() {
    let workflow = read(".github/workflows/ci.yml");
    let installs = workflow.split("toolchain install ").skip(1);
    let oldest: Vec<_> = installs.filter(|rest| rest.starts_with("1.")).collect();
    assert_eq!(oldest.len(), 1);
    assert!(oldest[0].starts_with(&format!("{} ", env!("CARGO_PKG_RUST_VERSION"))));
}

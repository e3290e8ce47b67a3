//! The cargo commands in documents, comments and scripts.
//!
//! Each target of a command is in the package that the command names, and has the features that it
//! needs.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

use serde_json::Value;

use crate::{
    files::{all, root},
    manifest::packages_of_this_workspace,
};

const PLACES: [&str; 13] = [
    ".github",
    "README.md",
    "RELEASE.md",
    "CONTRIBUTING.md",
    "DESIGN.md",
    "SECURITY.md",
    "Cargo.toml",
    "dev",
    "benches",
    "examples",
    "scripts",
    "src",
    "tests",
];
/// Files whose commands are cases of tests.
const CASES: [&str; 2] = ["tests/repository/commands.rs", "tests/repository/reruns.rs"];
/// Names that stand for any target.
const ANY: [&str; 2] = ["NAME", "{test}"];

/// A package with its targets, as (kind, name) and the features that each needs, and its features
/// with the features that each implies.
#[derive(Default)]
struct Package {
    targets: BTreeMap<(String, String), Vec<String>>,
    features: BTreeMap<String, Vec<String>>,
}

fn strings(list: &Value) -> Vec<String> {
    let items = list.as_array().into_iter().flatten();
    items.map(|item| item.as_str().expect("text").to_owned()).collect()
}

impl Package {
    fn read(package: &Value) -> Self {
        let mut read = Self::default();
        for target in package["targets"].as_array().expect("targets") {
            let kind = strings(&target["kind"]).concat();
            let name = target["name"].as_str().expect("a name").to_owned();
            read.targets.insert((kind, name), strings(&target["required-features"]));
        }
        for (name, implied) in package["features"].as_object().expect("features") {
            read.features.insert(name.clone(), strings(implied));
        }
        read
    }

    /// Returns these features and those that they imply.
    fn with_implied(&self, features: impl IntoIterator<Item = String>) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        let mut open: Vec<String> = features.into_iter().collect();
        while let Some(feature) = open.pop() {
            open.extend(self.features.get(&feature).cloned().unwrap_or_default());
            found.insert(feature);
        }
        found
    }
}

/// Returns the package of a command, and `None` for every package of the workspace.
fn package<'a>(words: &[&'a str]) -> Option<&'a str> {
    if words.contains(&"--workspace") {
        return None;
    }
    Some(after(words, "-p").next().unwrap_or(env!("CARGO_PKG_NAME")))
}

/// Returns the words after each occurrence of a flag.
fn after<'a>(words: &[&'a str], flag: &str) -> impl Iterator<Item = &'a str> {
    words.windows(2).filter(move |pair| pair[0] == flag).map(|pair| pair[1])
}

/// Returns what is wrong with a command, if anything.
fn fault(command: &str, packages: &BTreeMap<String, Package>) -> Option<String> {
    let words: Vec<&str> = command.split_whitespace().collect();
    for kind in ["example", "test", "bench"] {
        for name in after(&words, &format!("--{kind}")).filter(|name| !ANY.contains(name)) {
            let target = (kind.to_owned(), name.to_owned());
            let named = package(&words);
            let found = packages
                .iter()
                .filter(|(package, _)| named.is_none_or(|named| named == *package))
                .find_map(|(_, package)| Some((package, package.targets.get(&target)?)));
            let Some((package, needed)) = found else {
                return Some(format!("there is no {kind} {name:?} in {}", named.unwrap_or("any")));
            };
            let given = after(&words, "--features").flat_map(|list| list.split(','));
            let default = (!words.contains(&"--no-default-features")).then_some("default");
            let given = package.with_implied(given.chain(default).map(str::to_owned));
            let missing = needed.iter().find(|feature| !given.contains(*feature));
            if let Some(feature) = missing.filter(|_| !words.contains(&"--all-features")) {
                return Some(format!("{name:?} needs the feature {feature:?}"));
            }
        }
    }
    None
}

/// Returns the commands of a text, each without the arguments of the program. In a comment or a
/// paragraph, a command in backticks may continue on the next line.
fn commands(text: &str) -> Vec<String> {
    let uncommented = |line: &str| {
        let line = line.trim_start();
        let inside = ["//!", "///", "//", "#"].iter().find_map(|mark| line.strip_prefix(mark));
        inside.unwrap_or(line).to_owned() + "\n"
    };
    let text: String = text.lines().map(uncommented).collect();
    let mut found = Vec::new();
    for (at, _) in text.match_indices("cargo ") {
        let rest = &text[at + "cargo ".len()..];
        let ends: &[char] = if text[..at].ends_with('`') { &['`'] } else { &['`', '\n'] };
        let command = rest.split(ends).next().expect("a part").replace('\n', " ");
        let command = command.split(" -- ").next().expect("a part");
        let verb = command.split_whitespace().next().unwrap_or_default();
        // Not those of other workspaces, and not those with variables of scripts.
        if ["run", "test", "bench", "build"].contains(&verb)
            && !command.contains("--manifest-path")
            && !command.contains('$')
        {
            found.push(command.to_owned());
        }
    }
    found
}

#[test]
fn every_command_names_a_target_of_its_package() {
    let packages = packages_of_this_workspace();
    let packages: BTreeMap<_, _> =
        packages.iter().map(|(name, package)| (name.clone(), Package::read(package))).collect();
    let mut checked = 0;
    for path in PLACES.into_iter().flat_map(all) {
        let name = path.strip_prefix(root()).expect("below the root").display().to_string();
        let Ok(text) = fs::read_to_string(&path) else { continue };
        if CASES.contains(&name.as_str()) {
            continue;
        }
        for command in commands(&text) {
            checked += 1;
            if let Some(fault) = fault(&command, &packages) {
                panic!("{name}: `cargo {command}`: {fault}");
            }
        }
    }
    assert!(checked > 50, "{checked} commands");
}

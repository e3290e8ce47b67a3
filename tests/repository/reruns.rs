//! The programs that `scripts/test` runs, tests that it may run again, and the files of property tests.
//!
//! A second run can hide a race. Only tests that wait for a real server may run again, in modules
//! of `tests/servers` that have only such tests.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use crate::{
    files::{read, root, sources},
    manifest::packages_of_this_workspace,
};

/// Types of `tests/support/servers` that start their own server.
const SERVERS: [&str; 3] = ["Server::", "Cluster::", "Sentinels::"];
/// Tests that are processes of other tests, and do nothing by themselves.
const HELPERS: [&str; 1] = ["worker"];

/// Returns the words of a list in the script.
fn listed<'a>(script: &'a str, name: &str) -> Vec<&'a str> {
    let (_, list) = script.split_once(&format!("\n{name}=(")).expect("a list");
    list.split(')').next().expect("an end").split_whitespace().collect()
}

/// Returns `true` if `text` contains the whole word `name`, neither as a method nor as an item of
/// another path.
fn names(text: &str, name: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || "_:.".contains(c);
    text.match_indices(name).any(|(at, _)| {
        !text[..at].ends_with(part)
            && (name.ends_with(':') || !text[at + name.len()..].starts_with(part))
    })
}

/// Returns the functions of a formatted file by name: whether each is a test, and its text.
fn functions(text: &str) -> BTreeMap<&str, (bool, &str)> {
    let mut found = BTreeMap::new();
    for part in text.split("\n}\n") {
        let lines = part.lines().enumerate();
        let head = lines.filter(|(_, line)| !line.starts_with(' ') && line.contains("fn "));
        let Some((_, line)) = head.last() else { continue };
        let name = line.split("fn ").nth(1).expect("a name");
        let name = name.split(|c: char| !c.is_alphanumeric() && c != '_').next().expect("a name");
        let above = &part[..part.find(line).expect("a line")];
        let test = above
            .rsplit("\n\n")
            .next()
            .is_some_and(|above| above.contains("test]") || above.contains("tokio::test("));
        found.insert(name, (test, &part[part.find(line).expect("a line") + line.len()..]));
    }
    found
}

/// Returns the tests of a module that need no server.
fn without_server<'a>(functions: &BTreeMap<&'a str, (bool, &str)>) -> Vec<&'a str> {
    let mut need: Vec<&str> = Vec::new();
    loop {
        let more: Vec<_> = functions
            .iter()
            .filter(|(name, _)| !need.contains(name))
            .filter(|(_, (_, body))| {
                SERVERS.iter().any(|server| names(body, server))
                    || need.iter().any(|other| names(body, other))
            })
            .map(|(name, _)| *name)
            .collect();
        if more.is_empty() {
            break;
        }
        need.extend(more);
    }
    let tests = functions.iter().filter(|(_, (test, _))| *test).map(|(name, _)| *name);
    tests.filter(|name| !need.contains(name) && !HELPERS.contains(name)).collect()
}

#[test]
fn modules_that_may_run_again_need_a_real_server_in_every_test() {
    let script = read("scripts/test");
    let listed = listed(&script, "may_run_again");
    assert!(!listed.is_empty());
    for module in listed {
        let text = read(format!("tests/servers/{}.rs", module.replace("::", "/")));
        let functions = functions(&text);
        let tests = functions.values().filter(|(test, _)| *test).count();
        assert_eq!(tests, text.matches("test]\n").count() + text.matches("::test(").count());
        assert_eq!(without_server(&functions), [""; 0], "tests of {module}");
        assert!(!text.contains("proptest"), "{module} draws random cases");
    }
}

#[test]
fn each_test_program_is_in_a_list_of_the_script() {
    let script = read("scripts/test");
    let listed: Vec<_> = [listed(&script, "alone"), listed(&script, "with_servers")].concat();
    let mut programs = Vec::new();
    for package in packages_of_this_workspace().values() {
        let targets = package["targets"].as_array().expect("targets").iter();
        let tests = targets.filter(|target| target["kind"][0] == "test" && target["test"] == true);
        programs.extend(tests.map(|target| target["name"].as_str().expect("a name").to_owned()));
    }
    let given: BTreeSet<_> = listed.iter().copied().collect();
    assert_eq!(given, programs.iter().map(String::as_str).collect());
    assert_eq!(listed.len(), given.len(), "each once");
}

/// By default, proptest keeps no failing case of a file in `tests`, and puts those of `src` where nobody looks.
#[test]
fn property_tests_keep_their_failing_cases() {
    let mut properties = 0;
    for path in ["tests", "src"].into_iter().flat_map(sources) {
        let text = read(&path);
        let path = path.strip_prefix(root()).expect("below the root");
        if path == Path::new("tests/repository/reruns.rs") {
            continue;
        }
        let draws = text.matches("proptest!").count() + text.matches("TestRunner::new").count();
        let keeps =
            ["keeping(file!())", "config(crate::keeping_regressions())", "config(sequences())"];
        let keeps: usize = keeps.iter().map(|config| text.matches(config).count()).sum();
        properties += draws;
        assert_eq!(draws, keeps, "{}: see tests/support/regressions.rs", path.display());
    }
    assert!(properties > 15, "{properties}");
}

/// `scripts/test` builds the examples of which it finds such a call. A test would build any other.
#[test]
fn each_example_that_a_test_starts_is_named_in_its_call() {
    let others = ["tests/support/programs.rs", "tests/repository/reruns.rs"];
    for path in sources("tests") {
        let text = read(&path);
        let path = path.strip_prefix(root()).expect("below the root");
        if others.iter().any(|other| path == Path::new(other)) {
            continue;
        }
        for (at, call) in text.match_indices("example(") {
            let argument = text[at + call.len()..].chars().next();
            assert!(
                matches!(argument, Some('"' | ')')),
                "{}: {}",
                path.display(),
                &text[at..at + 20]
            );
        }
    }
}

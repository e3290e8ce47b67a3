//! Which test programs `scripts/test` may run once more, and where property tests keep their cases.
//!
//! A second run hides a race that the first one found. Only a program of which every test waits for
//! a real server may have one.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// Types of `tests/support/servers` that start a server of their own.
const SERVERS: [&str; 3] = ["Server::", "Cluster::", "Sentinels::"];
/// Tests that are programs of other tests, and do nothing by themselves.
const HELPERS: [&str; 1] = ["worker"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(root().join(path)).expect("a file")
}

/// The programs that the script lists.
fn listed(script: &str) -> Vec<&str> {
    let (_, list) = script.split_once("\nmay_run_again=(").expect("a list");
    list.split(')').next().expect("an end").split_whitespace().collect()
}

/// Whether `name` stands alone in `text`, and is neither a method nor an item of something else.
fn names(text: &str, name: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || "_:.".contains(c);
    text.match_indices(name).any(|(at, _)| {
        !text[..at].ends_with(part)
            && (name.ends_with(':') || !text[at + name.len()..].starts_with(part))
    })
}

/// The functions of a formatted file, by name: whether each is a test, and its text.
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

/// Tests of a program that need no server.
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
fn programs_that_may_run_again_need_a_real_server_in_every_test() {
    let script = read("scripts/test");
    let listed = listed(&script);
    assert!(listed.len() > 5, "{listed:?}");
    for program in listed {
        let text = read(format!("tests/{program}.rs"));
        let functions = functions(&text);
        let tests = functions.values().filter(|(test, _)| *test).count();
        assert_eq!(tests, text.matches("test]\n").count() + text.matches("::test(").count());
        assert_eq!(without_server(&functions), [""; 0], "tests of {program}");
        assert!(!text.contains("proptest"), "{program} draws random cases");
    }
}

#[test]
fn a_test_without_a_server_is_found() {
    let text = "fn start() {\n    Server::redis();\n}\n\n#[test]\nfn a() {\n    start();\n}\n\n\
                #[tokio::test(flavor = \"multi_thread\")]\nasync fn b() {\n    restart();\n}\n\n\
                #[test]\nfn c() {\n    FakeServer::start();\n}\n\n\
                #[test]\nfn worker() {\n}\n";
    let functions = functions(text);
    assert_eq!(functions.values().filter(|(test, _)| *test).count(), 4);
    assert_eq!(without_server(&functions), ["b", "c"]);
}

#[test]
fn the_list_is_read_from_the_script() {
    assert_eq!(
        listed("a=(x)\nmay_run_again=(\n  one two\n  three\n)\nb=(y)\n"),
        ["one", "two", "three"]
    );
}

/// Runs the script's `tests` with a cargo of whose first run these targets fail, and none of later
/// ones; returns whether it passes, and what was run.
fn played(failing: &[&str]) -> (bool, Vec<String>) {
    let script = read("scripts/test");
    let (_, functions) = script.split_once("\nagain=()\n").expect("a start");
    let (functions, _) = functions.split_once("\n# twice").expect("an end");
    let list: String = failing.iter().map(|target| format!("    `{target}`\n")).collect();
    let cargo = format!(
        "cargo() {{\n  echo \"ran $*\" >&2\n  if [[ $* == *--no-fail-fast* ]]; then\n    \
         cat <<'END'\nerror: some targets failed:\n{list}END\n    return 101\n  fi\n}}\n"
    );
    let text = format!(
        "set -euo pipefail\nagain=()\n{functions}\n{cargo}tests --all-features\n\
         echo \"ran again: ${{again[*]}}\" >&2\n"
    );
    let output = Command::new("bash").args(["-c", &text]).output().expect("bash runs");
    let said = String::from_utf8(output.stdout).expect("text");
    let said = said + &String::from_utf8(output.stderr).expect("text");
    let ran = said.lines().filter_map(|line| line.strip_prefix("ran "));
    (output.status.success(), ran.map(str::to_owned).collect())
}

#[test]
fn only_listed_programs_run_again_and_are_named() {
    let (passes, ran) = played(&["--test redis_link", "--test redis_tls"]);
    assert!(passes, "{ran:?}");
    let ran: Vec<_> = ran.iter().filter(|line| !line.contains("no-fail-fast")).collect();
    assert_eq!(
        ran,
        [
            "test --all-features --test redis_link",
            "test --all-features --test redis_tls",
            "again: --test redis_link --test redis_tls"
        ]
    );
}

#[test]
fn any_other_failure_is_final() {
    for failing in [
        &["--test linearizable"][..],
        &["--test redis_link", "--test concurrency"],
        &["--lib"],
        &["--doc"],
        &["--test redis_parity"],
        &["--test redis"],
        &["--bin redis_link"],
        // it did not compile
        &[],
    ] {
        let (passes, ran) = played(failing);
        assert!(!passes, "{failing:?}");
        assert!(ran.iter().all(|line| line.contains("no-fail-fast")), "{failing:?}: {ran:?}");
    }
}

fn sources(folder: PathBuf, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources(path, found);
        } else if path.extension().is_some_and(|end| end == "rs") {
            found.push(path);
        }
    }
}

/// Proptest keeps cases of `src` by itself, and finds no place for those of a file in `tests`.
#[test]
fn property_tests_keep_their_failing_cases() {
    let (mut found, mut properties) = (Vec::new(), 0);
    sources(root().join("tests"), &mut found);
    sources(root().join("src"), &mut found);
    for path in found {
        let text = read(&path);
        let path = path.strip_prefix(root()).expect("below the root");
        if path == Path::new("tests/reruns.rs") {
            continue;
        }
        assert!(!text.contains("failure_persistence:"), "{}", path.display());
        let draws = text.matches("proptest!").count() + text.matches("TestRunner::new").count();
        let keeps = text.matches("keeping(file!())").count();
        properties += draws;
        if path.starts_with("tests") {
            assert_eq!(draws, keeps, "{}: see tests/support/regressions.rs", path.display());
        }
    }
    assert!(properties > 15, "{properties}");
}

//! The programs that `scripts/test` runs, tests that it may run again, and the files of property tests.
//!
//! A second run can hide a race. Only tests that wait for a real server may run again, in modules
//! of `tests/servers` that have only such tests.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::manifest::packages_of_this_workspace;

/// Types of `tests/support/servers` that start their own server.
const SERVERS: [&str; 3] = ["Server::", "Cluster::", "Sentinels::"];
/// Tests that are processes of other tests, and do nothing by themselves.
const HELPERS: [&str; 1] = ["worker"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(root().join(path)).expect("a file")
}

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
    assert!(listed.len() > 5, "{listed:?}");
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
        listed("a=(x)\nmay_run_again=(\n  one two\n  three\n)\nb=(y)\n", "may_run_again"),
        ["one", "two", "three"]
    );
}

/// Returns the output of cargo for a run in which these targets fail, and in `servers` these tests.
fn said(targets: &[&str], failed: &[&str]) -> String {
    let mut said = "     Running tests/servers/main.rs (target/debug/deps/servers-0)\n".to_owned();
    for name in failed {
        said += &format!("test {name} ... FAILED\n");
    }
    said += "test link::another ... ok\n";
    let counts = |passed, failed| format!("{passed} passed; {failed} failed; 0 ignored");
    said += &match failed.len() {
        0 => format!("test result: ok. {}\n", counts(7, 0)),
        failed => format!("test result: FAILED. {}\n", counts(7 - failed, failed)),
    };
    said += "   Doc-tests tower_sluice\n";
    said += &format!("test result: ok. {}\n", counts(100, 0));
    let list: String = targets.iter().map(|target| format!("    `{target}`\n")).collect();
    said + "error: some targets failed:\n" + &list
}

/// Runs the script's function `tests`. The fake cargo first prints `first`, and fails if that names a target; later it prints `second`. Returns whether the
/// function succeeds, and the commands that ran.
fn run(first: &str, second: &str) -> (bool, Vec<String>) {
    let script = read("scripts/test");
    let (_, functions) = script.split_once("\nagain=()\n").expect("a start");
    let (functions, _) = functions.split_once("\nneed_rust\n").expect("an end");
    let status = if first.contains("    `-") { 101 } else { 0 };
    let cargo = format!(
        "cargo() {{\n  echo \"ran $*\" >>\"$ran\"\n  if [[ $* == *--no-fail-fast* ]]; then\n    \
         cat <<'END'\n{first}END\n    return {status}\n  fi\n  echo '{second}'\n}}\n"
    );
    let text = format!(
        "set -euo pipefail\nran=$(mktemp)\ntrap 'cat \"$ran\"' EXIT\nagain=()\n{functions}\n{cargo}\
         tests --all-features\necho \"ran again: ${{again[*]}}\" >>\"$ran\"\n"
    );
    let output = Command::new("bash").args(["-c", &text]).output().expect("bash runs");
    let said = String::from_utf8(output.stdout).expect("text");
    let ran = said.lines().filter_map(|line| line.strip_prefix("ran "));
    (output.status.success(), ran.map(str::to_owned).collect())
}

const PASSES: &str = "test result: ok. 1 passed; 0 failed; 0 ignored";

#[test]
fn only_tests_of_listed_modules_run_again_and_are_named() {
    let failed = ["link::a", "failover::b - should panic"];
    let (passes, ran) = run(&said(&["-p dev --test servers"], &failed), PASSES);
    assert!(passes, "{ran:?}");
    let ran: Vec<_> = ran.iter().filter(|line| !line.contains("no-fail-fast")).collect();
    assert_eq!(
        ran,
        [
            "test --all-features --test servers -- --exact link::a",
            "test --all-features --test servers -- --exact failover::b",
            "again: servers::link::a servers::failover::b"
        ]
    );
}

#[test]
fn any_other_failure_is_final() {
    for (targets, failed) in [
        (&["-p dev --test it"][..], &[][..]),
        (&["-p dev --test servers", "-p dev --test it"], &["link::a"]),
        (&["-p tower-sluice --lib"], &[]),
        (&["-p tower-sluice --doc"], &["link::a"]),
        (&["-p dev --test servers"], &["parity::a"]),
        (&["-p dev --test servers"], &["link::a", "parity::a"]),
        (&["-p dev --test servers"], &["linked::a"]),
        (&["-p dev --test servers"], &["parity::server::a"]),
        (&["-p dev --bin servers"], &["link::a"]),
        // The program ended before it named a test.
        (&["-p dev --test servers"], &[]),
    ] {
        let (passes, ran) = run(&said(targets, failed), PASSES);
        assert!(!passes, "{targets:?} {failed:?}");
        let once = ran.iter().all(|line| line.contains("no-fail-fast"));
        assert!(once, "{targets:?} {failed:?}: {ran:?}");
    }
    // Some of the names are missing.
    let lost = said(&["-p dev --test servers"], &["link::a"]).replace("6 passed; 1", "5 passed; 2");
    assert!(!run(&lost, PASSES).0);
    // The program did not compile.
    assert!(!run("error: could not compile\n    `-\n", PASSES).0);
}

#[test]
fn a_second_failure_is_final() {
    let first = said(&["-p dev --test servers"], &["link::a"]);
    for second in ["test result: FAILED. 0 passed", "test result: ok. 0 passed"] {
        let (passes, ran) = run(&first, second);
        assert!(!passes && ran.len() == 2, "{ran:?}");
    }
}

/// Documentation tests do not count.
#[test]
fn a_run_without_tests_is_a_failure() {
    let first = said(&[], &[]);
    assert!(run(&first, PASSES).0);
    assert!(!run(&first.replace("7 passed", "0 passed"), PASSES).0);
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

/// Proptest finds no place for the cases of a file in `tests`, and another one for those of `src`.
#[test]
fn property_tests_keep_their_failing_cases() {
    let (mut found, mut properties) = (Vec::new(), 0);
    sources(root().join("tests"), &mut found);
    sources(root().join("src"), &mut found);
    for path in found {
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

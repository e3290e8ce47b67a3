//! The values of the published scenario tables, to the nanosecond.

#![allow(clippy::print_stdout)]

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use serde_json::Value;
use tower_sluice::testing::{FakeClock, TABLES};

use crate::support::tables::{all_pass, read};

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// Returns the tables of a folder, by name.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let mut files: Vec<_> =
        paths.filter(|path| path.extension().is_some_and(|end| end == "json")).collect();
    files.sort();
    files
}

fn name(file: &Path) -> &str {
    file.file_name().and_then(|name| name.to_str()).expect("a name")
}

#[tokio::test]
async fn gcra_equals_its_table() {
    assert_eq!(all_pass(&mut FakeClock::new(), "gcra.json").await, (18, 1));
}

#[tokio::test]
async fn token_bucket_equals_its_table() {
    assert_eq!(all_pass(&mut FakeClock::new(), "token_bucket.json").await, (17, 1));
}

#[tokio::test]
async fn fixed_window_equals_its_table() {
    assert_eq!(all_pass(&mut FakeClock::new(), "fixed_window.json").await, (23, 1));
}

#[tokio::test]
async fn sliding_window_equals_its_table() {
    assert_eq!(all_pass(&mut FakeClock::new(), "sliding_window.json").await, (10, 0));
}

#[tokio::test]
async fn sliding_log_equals_its_table() {
    assert_eq!(all_pass(&mut FakeClock::new(), "sliding_log.json").await, (12, 0));
}

#[tokio::test]
async fn refunds_equal_their_table() {
    assert_eq!(all_pass(&mut FakeClock::new(), "refunds.json").await, (158, 0));
}

#[tokio::test]
async fn alternatives_equal_their_table() {
    assert_eq!(all_pass(&mut FakeClock::new(), "alternatives.json").await, (40, 0));
}

#[tokio::test]
async fn combinations_equal_their_table() {
    assert_eq!(all_pass(&mut FakeClock::new(), "combined.json").await, (6, 0));
}

#[tokio::test]
async fn changed_plans_equal_their_table() {
    assert_eq!(all_pass(&mut FakeClock::new(), "plans.json").await, (39, 6));
}

#[tokio::test]
async fn late_charges_stop_where_their_table_says() {
    assert_eq!(all_pass(&mut FakeClock::new(), "max_debt.json").await, (13, 0));
}

#[cfg(feature = "calendar")]
#[tokio::test]
async fn calendar_periods_equal_their_table() {
    assert_eq!(all_pass(&mut FakeClock::new(), "periods.json").await, (48, 2));
}

#[tokio::test]
async fn slots_equal_their_table() {
    // The others have several processes.
    assert_eq!(all_pass(&mut FakeClock::new(), "slots.json").await, (30, 39));
}

#[test]
fn every_table_of_the_folder_is_published() {
    let mut published: Vec<_> = TABLES.iter().map(|(file, _)| *file).collect();
    published.sort_unstable();
    let files = files(&root().join("tests/scenarios"));
    assert_eq!(files.iter().map(|file| name(file)).collect::<Vec<_>>(), published);
}

#[test]
fn every_case_names_its_algorithms_and_has_a_unique_name() {
    for (file, text) in TABLES {
        let mut names = BTreeSet::new();
        for case in serde_json::from_str::<Vec<Value>>(text).expect("a list of cases") {
            let name = case["name"].as_str().expect("a name").to_owned();
            let named: BTreeSet<_> = match &case["algorithm"] {
                Value::Array(named) => named.iter().filter_map(Value::as_str).collect(),
                named => named.as_str().into_iter().collect(),
            };
            let quotas = ["quotas", "groups", "plans"].into_iter().find_map(|it| case.get(it));
            let quotas = quotas.expect("quotas");
            let mut rows = Vec::new();
            add_rows(quotas, &mut rows);
            let used = rows.iter().map(|row| match (row["algorithm"].as_str(), &row["aligned"]) {
                (Some("fixed_window"), Value::Bool(false)) => "anchored_window",
                (name, _) => name.expect("an algorithm"),
            });
            assert_eq!(named, used.collect(), "{file}: {name}");
            assert!(names.insert(name.clone()), "{file}: {name} twice");
        }
    }
}

/// Adds the objects in nested lists to `rows`.
fn add_rows<'a>(value: &'a Value, rows: &mut Vec<&'a Value>) {
    match value {
        Value::Array(list) => list.iter().for_each(|value| add_rows(value, rows)),
        row => rows.push(row),
    }
}

/// Returns `true` if `ours` contains everything in `theirs`. Additional fields are allowed, other
/// values or steps are not.
fn covers(ours: &Value, theirs: &Value) -> bool {
    match (ours, theirs) {
        (Value::Object(ours), Value::Object(theirs)) => theirs.iter().all(|(field, value)| {
            field == "why" || ours.get(field).is_some_and(|ours| covers(ours, value))
        }),
        (Value::Array(ours), Value::Array(theirs)) => {
            ours.len() == theirs.len()
                && ours.iter().zip(theirs).all(|(ours, theirs)| covers(ours, theirs))
        }
        _ => ours == theirs,
    }
}

/// Returns the first case of `theirs` that is missing in `ours` or has other steps there.
fn differing(ours: &str, theirs: &str) -> Option<String> {
    let cases = |text| serde_json::from_str::<Vec<Value>>(text).expect("a list of cases");
    let (ours, theirs) = (cases(ours), cases(theirs));
    let same = |theirs: &Value| {
        ours.iter().any(|ours| ours["name"] == theirs["name"] && covers(ours, theirs))
    };
    let differing = theirs.iter().find(|theirs| !(same(theirs) || is_left_out(theirs)));
    differing.map(|case| case["name"].to_string())
}

/// Cases in which the accounts of a key have last changes of their own. In Redis, a key has one.
fn is_left_out(case: &Value) -> bool {
    let name = case["name"].as_str().unwrap_or_default();
    name.starts_with("small_and_large_steps_together_")
}

/// The tables were agreed on outside this repository, in a folder that a clone does not have.
#[test]
fn the_agreed_cases_are_present_with_the_same_steps() {
    for folder in ["../shared/scenarios", "../shared/scenarios-or", "../shared/scenarios-plans"] {
        let agreed = root().join(folder);
        if !agreed.exists() {
            println!("not compared: {} does not exist", agreed.display());
            continue;
        }
        for file in files(&agreed) {
            let theirs = fs::read_to_string(&file).expect("a table");
            assert_eq!(differing(read(name(&file)), &theirs), None, "{}", file.display());
        }
    }
}

#[test]
fn a_case_that_is_missing_or_has_other_steps_is_found() {
    let agreed =
        r#"[{"name": "a", "why": "one", "steps": [{"at": 0, "units": 1}, {"at": 5, "units": 2}]}]"#;
    let more = r#"[{"name": "b", "steps": []},
                   {"name": "a", "why": "1", "algorithm": "gcra",
                    "steps": [{"at": 0, "units": 1, "note": 7}, {"at": 5, "units": 2}]}]"#;
    assert_eq!(differing(more, agreed), None);
    let a = Some("\"a\"".to_owned());
    for other in [
        "[]",
        r#"[{"name": "b", "steps": [{"at": 0, "units": 1}, {"at": 5, "units": 2}]}]"#,
        r#"[{"name": "a", "steps": [{"at": 0, "units": 1}]}]"#,
        r#"[{"name": "a", "steps": [{"at": 5, "units": 2}, {"at": 0, "units": 1}]}]"#,
        r#"[{"name": "a", "steps": [{"at": 0, "units": 1}, {"at": 5}]}]"#,
    ] {
        assert_eq!(differing(other, agreed), a, "{other}");
    }
}

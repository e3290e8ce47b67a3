//! The values of the published scenario tables, to the nanosecond.

#![allow(clippy::print_stdout)]

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use serde_json::Value;
use tower_sluice::testing::{FakeClock, TABLES};

use crate::support::tables::all_pass;

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
    assert_eq!(all_pass(&mut FakeClock::new(), "plans.json").await, (39, 8));
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

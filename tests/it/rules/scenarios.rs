//! The values of the published scenario tables, to the nanosecond.

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

/// Each table, with the numbers of its cases that the embedded store plays and skips.
const CASES: [(&str, (usize, usize)); TABLES.len()] = [
    ("gcra.json", (18, 1)),
    ("token_bucket.json", (17, 1)),
    ("fixed_window.json", (23, 1)),
    ("sliding_window.json", (11, 0)),
    ("sliding_log.json", (12, 0)),
    ("max_debt.json", (13, 0)),
    ("refunds.json", (158, 0)),
    // The others have several processes.
    ("slots.json", (30, 39)),
    ("alternatives.json", (40, 0)),
    ("plans.json", (39, 8)),
    #[cfg(feature = "calendar")]
    ("periods.json", (48, 2)),
    ("combined.json", (6, 0)),
];

#[tokio::test]
async fn the_embedded_store_equals_every_table() {
    for (file, cases) in CASES {
        assert_eq!(all_pass(&mut FakeClock::new(), file).await, cases, "{file}");
    }
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

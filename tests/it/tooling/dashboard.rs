//! The dashboard, the queries and the alerts use metrics, labels and results that exist.

use std::{
    collections::BTreeSet,
    fs,
    path::Path,
    sync::{Arc, Mutex},
};

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use serde_json::Value;
use tower_sluice::{LocalStore, Quota, RateLimitLayer, key::Everyone};

use crate::support::{answer, get};

/// Collects the names of the described metrics.
#[derive(Clone, Default)]
struct Names(Arc<Mutex<BTreeSet<String>>>);

impl Names {
    fn add(&self, name: &KeyName) {
        self.0.lock().expect("no panic").insert(name.as_str().replace('.', "_"));
    }
}

impl Recorder for Names {
    fn describe_counter(&self, name: KeyName, _: Option<Unit>, _: SharedString) {
        self.add(&name);
    }

    fn describe_gauge(&self, name: KeyName, _: Option<Unit>, _: SharedString) {
        self.add(&name);
    }

    fn describe_histogram(&self, name: KeyName, _: Option<Unit>, _: SharedString) {
        self.add(&name);
    }

    fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
        Counter::noop()
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

/// Names as Prometheus' exporter writes them.
fn exported() -> BTreeSet<String> {
    let names = Names::default();
    metrics::with_local_recorder(&names, || {
        let layer = RateLimitLayer::new(Everyone, Quota::per_hour(1), LocalStore::new());
        drop(futures::executor::block_on(answer(&layer, get("/"))));
    });
    let names = names.0.lock().expect("no panic").clone();
    assert!(names.contains("ratelimit_decisions"), "{names:?}");
    names
}

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The queries of the dashboard.
fn dashboard() -> Vec<String> {
    let dashboard: Value = serde_json::from_str(&read("examples/grafana.json")).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let queries = panels.iter().flat_map(|panel| {
        assert!(panel["title"].is_string() && panel["description"].is_string(), "{panel}");
        panel["targets"].as_array().expect("targets").iter()
    });
    queries.map(|target| target["expr"].as_str().expect("a query").to_owned()).collect()
}

/// The blocks of queries and alerts of the page.
fn page() -> Vec<String> {
    let page = read("src/guide/production.md");
    let blocks = page.split("```").skip(1).step_by(2);
    let blocks = blocks.filter_map(|it| it.strip_prefix("promql").or(it.strip_prefix("yaml")));
    blocks.map(str::to_owned).collect()
}

fn words(query: &str) -> impl Iterator<Item = &str> {
    query.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

/// The metrics of a query, without the endings of the samples of a histogram.
fn metrics_of(query: &str, exported: &BTreeSet<String>) -> Vec<String> {
    let metric = |word: &str| {
        let ends = ["_bucket", "_sum", "_count"];
        let short = ends.iter().find_map(|end| word.strip_suffix(end));
        short.filter(|short| exported.contains(*short)).unwrap_or(word).to_owned()
    };
    words(query).filter(|word| word.starts_with("ratelimit_")).map(metric).collect()
}

/// Checks the labels in braces, the values of `result` and `store`, and the labels after `by`.
fn check_labels(query: &str) {
    const LABELS: [&str; 8] =
        ["policy", "quota", "result", "kind", "store", "server", "le", "instance"];
    let results = read("src/decision/cause.rs");
    let stores = read("src/decision/mod.rs");
    for matchers in query.split('{').skip(1).filter_map(|rest| rest.split_once('}')) {
        let Some((label, values)) = matchers.0.split_once('=') else { continue };
        let place = match label {
            "result" => &results,
            "store" => &stores,
            _ => continue, // an annotation in YAML
        };
        for value in values.trim_matches(['~', '"']).split('|') {
            assert!(place.contains(&format!("\"{value}\"")), "{query}: {label} {value:?}");
        }
    }
    for labels in query.split("by (").skip(1).filter_map(|rest| rest.split(')').next()) {
        for label in words(labels) {
            assert!(LABELS.contains(&label), "{query}: {label:?}");
        }
    }
}

#[test]
fn the_dashboard_shows_every_metric_and_no_other() {
    let (exported, queries) = (exported(), dashboard());
    let shown: BTreeSet<_> =
        queries.iter().flat_map(|query| metrics_of(query, &exported)).collect();
    assert_eq!(shown, exported);
    queries.iter().for_each(|query| check_labels(query));
}

#[test]
fn queries_and_alerts_use_metrics_that_exist() {
    let (exported, blocks) = (exported(), page());
    assert!(blocks.len() >= 4, "{} blocks", blocks.len());
    for block in &blocks {
        let used = metrics_of(block, &exported);
        assert!(!used.is_empty(), "{block}");
        for metric in used {
            assert!(exported.contains(&metric), "{metric}: {block}");
        }
        check_labels(block);
    }
}

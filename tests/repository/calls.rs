//! Calls of a limiter that do not compile, or compile with a warning: the texts of the compiler.
//!
//! The tables have every method of a limiter that calls its store.

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    time::SystemTime,
};

use serde_json::Value;

use crate::files::read;

/// The methods with an [answer](tower_sluice::store::Answer), and their arguments.
const ANSWERS: [(&str, &str); 8] = [
    ("take", r#""alice", &QUOTA, 1"#),
    ("reserve", r#""alice", &QUOTA, 1"#),
    ("peek", r#""alice", &QUOTA"#),
    ("charge", r#""alice", &QUOTA, 1"#),
    ("refund", r#""alice", &QUOTA, 1"#),
    ("reset", r#""alice", &QUOTA"#),
    ("block", r#""alice", Duration::MAX"#),
    ("unblock", r#""alice""#),
];
/// The methods with a future.
const FUTURES: [(&str, &str); 4] = [
    ("explain", r#""alice", &QUOTA, 1"#),
    ("take_up_to", r#""alice", &QUOTA, 1"#),
    ("until_ready", r#""alice", &QUOTA, 1"#),
    ("throttle", r#""alice", &QUOTA, async {}"#),
];
/// The methods that do not return what the store answers.
const OTHERS: [&str; 2] = ["named", "adjust_to"];

const HEAD: &str = "
#![allow(dead_code, unused_imports)]
use std::{error::Error, io, sync::Arc, time::Duration};
use tower_sluice::{Limiter, LocalStore, Quota, store::DynStore};
const QUOTA: Quota = Quota::per_minute(5);
type CanFail = Limiter<Arc<DynStore<io::Error>>>;
type CanFailBoxed = Limiter<Arc<DynStore<Box<dyn Error + Send + Sync>>>>;
fn spawn<F: Future<Output: Send> + Send + 'static>(_future: F) {}
";

fn methods() -> impl Iterator<Item = (&'static str, &'static str)> {
    ANSWERS.into_iter().chain(FUTURES)
}

/// Returns the compiled library of this build, which is the newest.
fn library(folder: &Path) -> PathBuf {
    let entries = fs::read_dir(folder).expect("the folder of this program");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let libraries = paths.filter(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("libtower_sluice-") && name.ends_with(".rlib")
    });
    let age = |path: &PathBuf| path.metadata().and_then(|it| it.modified()).ok();
    libraries.max_by_key(|path| age(path).unwrap_or(SystemTime::UNIX_EPOCH)).expect("a library")
}

/// Compiles one function per method. Returns what the compiler says about each.
fn compile(name: &str, function: impl Fn(&str, &str) -> String) -> BTreeMap<&'static str, String> {
    let program = env::current_exe().expect("this program");
    let deps = program.parent().expect("its folder");
    let folder = env::temp_dir().join(format!("tower-sluice-calls-{}-{name}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder");
    let source = folder.join("lib.rs");
    let mut text = HEAD.to_owned();
    let mut lines = BTreeMap::new();
    for (method, arguments) in methods() {
        lines.insert(text.lines().count() as u64 + 1, method);
        text += &format!("{}\n", function(method, arguments));
    }
    fs::write(&source, text).expect("a file");
    let output = Command::new(Path::new(env!("CARGO")).with_file_name("rustc"))
        .args(["--edition", "2024", "--crate-type", "lib", "--emit", "metadata"])
        .args(["--error-format", "json", "--out-dir"])
        .arg(&folder)
        .arg("--extern")
        .arg(format!("tower_sluice={}", library(deps).display()))
        .arg("-L")
        .arg(format!("dependency={}", deps.display()))
        .arg(&source)
        .output()
        .expect("rustc runs");
    fs::remove_dir_all(&folder).expect("a folder");
    let mut said: BTreeMap<_, String> = methods().map(|(name, _)| (name, String::new())).collect();
    for line in String::from_utf8_lossy(&output.stderr).lines() {
        let message: Value = serde_json::from_str(line).expect("JSON");
        let mut spans = message["spans"].as_array().expect("a list").iter();
        let Some(primary) = spans.find(|span| span["is_primary"] == true) else { continue };
        let at = primary["line_start"].as_u64().expect("a line");
        let method = lines.get(&at).unwrap_or_else(|| panic!("not about a method: {line}"));
        let text = message["rendered"].as_str().expect("a text");
        said.get_mut(method).expect("a method").push_str(text);
    }
    said
}

#[test]
fn every_method_has_a_form_for_stores_that_can_fail() {
    let text = read("src/limiter.rs");
    let (_, text) = text.split_once("impl<S: Store> Limiter<S> {").expect("its methods");
    let (text, _) = text.split_once("\n}\n").expect("an end");
    let declared = text.lines().filter_map(|line| {
        let line = line.strip_prefix("    pub ")?;
        let (name, _) = line
            .strip_prefix("async ")
            .unwrap_or(line)
            .strip_prefix("fn ")?
            .split_once(['(', '<'])?;
        Some(name.to_owned())
    });
    let pairs = methods().flat_map(|(name, _)| [name.to_owned(), format!("try_{name}")]);
    let expected: BTreeSet<_> = pairs.chain(OTHERS.map(str::to_owned)).collect();
    assert_eq!(declared.collect::<BTreeSet<_>>(), expected);
}

#[test]
fn a_call_that_is_not_awaited_is_a_warning() {
    for form in ["", "try_"] {
        let said = compile(&format!("dropped{form}"), |method, arguments| {
            format!("fn {method}(limiter: Limiter) {{ limiter.{form}{method}({arguments}); }}")
        });
        for (method, text) in said {
            assert!(text.contains("that must be used"), "{form}{method}: {text}");
            assert!(text.contains("`.await`"), "{form}{method}: {text}");
        }
    }
}

/// `until_ready` and `throttle` have an error of their own, and a dropped `Result` is a warning.
#[test]
fn a_dropped_decision_is_a_warning() {
    let said = compile("decisions", |method, arguments| {
        format!("async fn {method}(limiter: Limiter) {{ limiter.{method}({arguments}).await; }}")
    });
    for (method, text) in said {
        assert!(text.contains("that must be used"), "{method}: {text}");
    }
}

#[test]
fn a_plain_call_on_a_store_that_can_fail_is_an_error_with_the_fix() {
    const FIX: &str = "use `try_take` instead of `take`, or add `.fail_open()`";
    let said = compile("plain", |method, arguments| {
        format!("fn {method}(limiter: CanFail) {{ let _ = limiter.{method}({arguments}); }}")
    });
    for (method, text) in said {
        assert!(text.contains("error[E0277]: this store can fail with"), "{method}: {text}");
        assert!(text.contains(FIX), "{method}: {text}");
    }
}

#[test]
fn an_outcome_is_not_taken_for_permission() {
    let said = compile("is_ok", |method, arguments| {
        format!(
            "async fn {method}(limiter: Limiter) {{ \
             let _ = limiter.{method}({arguments}).await.is_ok(); }}"
        )
    });
    // These methods return a `Result` also for a store that cannot fail: the key may not be blocked, or get no
    // turn.
    let results = ["block", "until_ready", "throttle"];
    for (method, text) in said {
        let is_error = text.contains("error[E0599]: no method named `is_ok`");
        assert_eq!(is_error, !results.contains(&method), "{method}: {text}");
    }
}

/// The lifetime in a boxed error is unknown where the compiler checks that a future is `Send`.
#[test]
fn every_call_can_be_spawned_for_a_store_whose_error_is_boxed() {
    let said = compile("spawned", |method, arguments| {
        format!(
            "fn {method}(limiter: CanFailBoxed) {{ \
             spawn(async move {{ limiter.try_{method}({arguments}).await.map(drop) }}); }}"
        )
    });
    for (method, text) in said {
        assert_eq!(text, "", "{method}");
    }
}

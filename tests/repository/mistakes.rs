//! The compiler names the fix of a natural mistake.

use std::{collections::HashMap, fs, path::Path, process::Command};

use serde_json::Value;

/// A program that does not compile.
struct Mistake {
    name: &'static str,
    line: &'static str,
    /// The words of the compiler that name the fix.
    fix: &'static str,
}

const MISTAKES: &[Mistake] = &[
    Mistake {
        name: "month",
        line: "let _ = Quota::per_month(5);",
        fix: "need the feature `calendar` of tower-sluice",
    },
    Mistake {
        name: "year_in_a_constant",
        line: "const YEARLY: Quota = Quota::per_year(5); let _ = YEARLY;",
        fix: "need the feature `calendar` of tower-sluice",
    },
    Mistake {
        name: "anchor",
        line: "let _ = Quota::per_day(5).anchored_at(&\"2024-01-31\");",
        fix: "need the feature `calendar` of tower-sluice",
    },
    Mistake { name: "burst", line: "let _ = Quota::per_second(5).burst(10);", fix: "with_burst" },
    Mistake {
        name: "locked_store",
        line: "let store = std::sync::Arc::new(std::sync::Mutex::new(LocalStore::new())); \
               let _ = RateLimitLayer::new(PeerIp::new(), Quota::per_second(5), store);",
        fix: "stores are cheap to clone, and need no lock",
    },
    Mistake {
        name: "async_key",
        line: "async fn user(_: &RequestHead<'_>) -> Option<Key> { None } \
               let _ = key_fn(|head| user(head));",
        fix: "await the identity in a middleware in front",
    },
    Mistake {
        name: "async_block_as_a_key",
        line: "let _ = key_fn(|head| async { head.headers.get(\"x-user\").map(Key::from) });",
        fix: "await the identity in a middleware in front",
    },
    Mistake {
        name: "decision_before_await",
        line: "let _ = Limiter::local().take(\"a\", &Quota::per_second(5), 1).is_allowed();",
        fix: "add `.await` before the method",
    },
    Mistake {
        name: "extractor_for_a_rule",
        line: "let _ = RateLimitLayer::rules(PeerIp::new(), LocalStore::new());",
        fix: "creates a rule from an extractor",
    },
];

/// Writes a package with a program for each mistake. Returns the errors of the compiler.
fn compile(folder: &Path) -> HashMap<String, String> {
    let root = env!("CARGO_MANIFEST_DIR");
    let programs = folder.join("src/bin");
    fs::create_dir_all(&programs).expect("a folder");
    fs::copy(Path::new(root).join("Cargo.lock"), folder.join("Cargo.lock")).expect("a lock file");
    let manifest = format!(
        "[package]\nname = \"mistakes\"\nedition = \"2024\"\n[workspace]\n[dependencies]\n\
         tower-sluice = {{ path = {root:?}, default-features = false }}\n"
    );
    fs::write(folder.join("Cargo.toml"), manifest).expect("a manifest");
    for Mistake { name, line, .. } in MISTAKES {
        let program = format!("use tower_sluice::*;\nfn main() {{ {line} }}\n");
        fs::write(programs.join(format!("{name}.rs")), program).expect("a program");
    }
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["check", "--offline", "--keep-going", "--bins", "--message-format=json"]);
    cargo.arg("--target-dir").arg(folder.join("target")).current_dir(folder);
    let output = cargo.output().expect("cargo runs");
    let mut errors: HashMap<String, String> = HashMap::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let message: Value = serde_json::from_str(line).expect("JSON");
        let target = message["target"]["name"].as_str().unwrap_or_default().to_owned();
        let text = message["message"]["rendered"].as_str().unwrap_or_default();
        errors.entry(target).or_default().push_str(text);
    }
    assert!(!errors.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    errors
}

#[test]
fn the_compiler_names_the_fix_of_each_mistake() {
    let errors = compile(&Path::new(env!("CARGO_TARGET_TMPDIR")).join("mistakes"));
    for Mistake { name, fix, .. } in MISTAKES {
        let error = errors.get(*name).map_or("", String::as_str);
        assert!(error.contains(fix), "{name}: no {fix:?} in\n{error}");
    }
}

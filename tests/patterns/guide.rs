//! The chapter names tests that exist.

use std::{fs, path::Path};

#[test]
fn the_chapter_names_tests_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let chapter = fs::read_to_string(root.join("src/guide/patterns.md")).expect("the chapter");
    let tests = root.join("tests");
    let file = |module: &str| {
        let here = tests.join("patterns").join(module).with_extension("rs");
        let here = if here.exists() { here } else { tests.join(module).with_extension("rs") };
        fs::read_to_string(&here).unwrap_or_else(|error| panic!("{module}: {error}"))
    };
    let mut named = 0;
    for word in chapter.split('`').skip(1).step_by(2) {
        let Some((module, test)) = word.split_once("::") else { continue };
        let plain = |text: &str| text.chars().all(|c| c.is_ascii_lowercase() || c == '_');
        if plain(module) && plain(test) && test.contains('_') {
            named += 1;
            assert!(file(module).contains(&format!("fn {test}()")), "{module}::{test} is no test");
        }
    }
    assert!(named > 20, "only {named}");
}

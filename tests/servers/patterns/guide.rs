//! The chapter of the guide names tests that exist.

use std::{fs, path::Path};

#[test]
fn the_chapter_names_tests_that_exist() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let chapter = fs::read_to_string(root.join("src/guide/patterns.md")).expect("the chapter");
    let tests = root.join("tests");
    let file = |module: &str| {
        let module = module.replace("::", "/");
        let places =
            ["servers/patterns", "it", ""].map(|program| tests.join(program).join(&module));
        let file = places.iter().map(|place| place.with_extension("rs")).find(|file| file.exists());
        fs::read_to_string(file.unwrap_or_else(|| panic!("{module}: no such file"))).expect("text")
    };
    let mut named = 0;
    for word in chapter.split('`').skip(1).step_by(2) {
        let Some((module, test)) = word.rsplit_once("::") else { continue };
        let plain = |text: &str| text.chars().all(|c| c.is_ascii_lowercase() || c == '_');
        if module.split("::").all(plain) && plain(test) && test.contains('_') {
            named += 1;
            assert!(file(module).contains(&format!("fn {test}()")), "{module}::{test} is no test");
        }
    }
    assert!(named > 8, "only {named}");
}

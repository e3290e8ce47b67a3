//! Rules of the sources: no shortcuts, few names, and examples that the README can name.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use crate::files::{read, root, sources};

const SHORTCUTS: [&str; 5] = ["unsafe", "todo!", "unimplemented!", "dbg!", concat!("#[", "ignore")];

/// The lines of code: no comments, no blank lines, and no tests, which end a file.
fn code(text: &str) -> impl Iterator<Item = &str> {
    let text = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("//"))
}

/// Returns `true` if `line` contains the whole word, such as `unsafe` but not `unsafe_code`.
fn has_word(line: &str, word: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        !line[..at].ends_with(part)
            && (!word.ends_with(part) || !line[at + word.len()..].starts_with(part))
    })
}

/// Modules of tests, which no build of the crate contains.
fn is_test_file(path: &Path) -> bool {
    path.iter()
        .any(|part| part == "tests" || part == "tests.rs" || part == "models" || part == "edges.rs")
}

#[test]
fn no_source_file_takes_a_shortcut() {
    for path in sources("src") {
        let text = read(&path);
        for word in SHORTCUTS {
            let line = text.lines().find(|line| {
                let line = line.trim();
                !line.starts_with("//") && has_word(line, word)
            });
            assert_eq!(line, None, "{}: {word}", path.display());
        }
    }
}

/// The names that `lib.rs` re-exports.
fn root_names() -> Vec<String> {
    let text = read("src/lib.rs");
    let uses = text.split("\npub use crate::").skip(1).filter_map(|rest| rest.split(';').next());
    let names = uses.flat_map(|tree| tree.split([',', '{', '}', '\n']).map(str::trim));
    let names = names.filter(|name| !name.is_empty() && !name.ends_with("::"));
    names.map(|name| name.rsplit("::").next().unwrap_or(name).to_owned()).collect()
}

#[test]
fn the_root_of_the_crate_has_few_names() {
    let names = root_names();
    assert!(names.len() > 10 && names.contains(&"RateLimitLayer".to_owned()), "{names:?}");
    assert!(names.len() <= 25, "{} names: {names:?}", names.len());
}

/// Names that are defined twice, each with its reason.
const DEFINED_TWICE: [(&str, &str); 3] = [
    ("Anchor", "without the feature, no quota has one"),
    ("Metrics", "without the feature, a layer has no-op metrics"),
    ("Sealed", "each module seals its own trait"),
];

/// The names of the types and traits that the code defines, without associated types.
fn definitions(text: &str) -> impl Iterator<Item = &str> {
    code(text).filter_map(|line| {
        let mut words = line.split(' ').filter(|word| !word.starts_with("pub"));
        let kind =
            words.next().filter(|kind| ["struct", "enum", "trait", "type"].contains(kind))?;
        let name = words.next()?.split(|c: char| !c.is_alphanumeric() && c != '_').next()?;
        // Indentation marks the type aliases of a trait or an implementation.
        let associated = kind == "type" && !text.contains(&format!("\n{line}"));
        (!associated).then_some(name)
    })
}

#[test]
fn a_type_name_means_one_thing() {
    let root = root().join("src");
    let mut defined: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    for path in sources(&root) {
        let file = path.strip_prefix(&root).expect("a path in src").to_owned();
        if !is_test_file(&file) {
            for name in definitions(&read(&path)) {
                defined.entry(name.to_owned()).or_default().push(file.clone());
            }
        }
    }
    assert!(defined.len() > 200, "{} names", defined.len());
    let exception = |name: &str| DEFINED_TWICE.iter().any(|(known, _)| *known == name);
    for (name, files) in defined.iter().filter(|(name, _)| !exception(name)) {
        assert_eq!(files.len(), 1, "{name} is defined in {files:?}; rename one");
    }
    for (name, why) in DEFINED_TWICE {
        let twice = defined.get(name).is_some_and(|files| files.len() == 2);
        assert!(twice, "{name} is not defined twice ({why}); drop it from DEFINED_TWICE");
    }
}

#[test]
fn definitions_are_types_and_traits_outside_tests() {
    let text = "pub struct A<T>(T);\nenum B {}\npub(crate) trait C: D {\n    type E;\n}\n\
                type F = A<u8>;\npin_project! {\n    pub struct G {\n    }\n}\n// struct H;\n\
                #[cfg(test)]\nmod tests {\n    struct I;\n}\n";
    assert_eq!(definitions(text).collect::<Vec<_>>(), ["A", "B", "C", "F", "G"]);
}

const README: &str = "README.md";

/// Returns `true` if an example or a test program has the name.
fn is_program(kind: &str, name: &str) -> bool {
    let path = root().join(kind).join(name);
    path.with_extension("rs").exists() || path.join("main.rs").exists()
}

/// Returns `true` if a test program has the name, or a module: `keys::route` of `it`,
/// `servers::keys` of another program.
fn is_test(name: &str) -> bool {
    let module = |program: &str| {
        let path = root().join(program).join(name.replace("::", "/"));
        path.with_extension("rs").exists() || path.join("mod.rs").exists()
    };
    is_program("tests", name) || name.contains("::") && (module("tests/it") || module("tests"))
}

#[test]
fn the_readme_names_examples_that_exist() {
    let text = read(README);
    let names = text.split("--example ").skip(1).map(|rest| {
        let end = |c: char| !c.is_alphanumeric() && c != '_' && c != '-';
        rest.split(end).next().expect("a name")
    });
    for name in names {
        assert!(is_program("examples", name), "{README} names the example {name:?}");
    }
}

/// The last cell of a row begins with a kind and has names in backticks.
#[test]
fn the_proof_of_each_row_of_the_features_exists() {
    const PAGE: &str = "tests/features.md";
    let text = read(PAGE);
    let cells = text.lines().filter_map(|line| line.strip_suffix(" |")?.rsplit(" | ").next());
    let shown = cells
        .filter(|cell| ["test", "example", "`scripts/"].iter().any(|word| cell.starts_with(word)));
    let mut rows = 0;
    for cell in shown {
        rows += 1;
        for name in cell.split('`').skip(1).step_by(2) {
            let script = name.starts_with("scripts/") && root().join(name).exists();
            let known = script || is_test(name) || is_program("examples", name);
            assert!(known, "{PAGE}: {cell}: there is no {name:?}");
        }
    }
    assert!(rows > 30, "{PAGE}: {rows} rows");
}

/// The page of each question is a module of the guide.
#[test]
fn the_readme_links_to_chapters_that_exist() {
    let guide = read("src/guide/mod.rs");
    let text = read(README);
    let chapters: Vec<_> = text.split("/tower_sluice/guide/").skip(1).collect();
    assert!(chapters.len() > 10, "{README}: {} links", chapters.len());
    for chapter in chapters {
        let name = chapter.split('/').next().unwrap_or_default();
        let known = name.starts_with("index.html") || guide.contains(&format!("pub mod {name} "));
        assert!(known, "{README}: the guide has no chapter {name:?}");
    }
}

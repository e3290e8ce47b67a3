//! The projects of `CONTRIBUTING.md`: each is an example that a test runs.

use std::{fs, path::Path};

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The rows of the table: the place of a project, and the test that runs it.
fn projects() -> Vec<(String, String)> {
    let text = read("CONTRIBUTING.md");
    let (_, table) = text.split_once("## Projects of the guide").expect("the section");
    let rows = table.lines().skip_while(|line| !line.starts_with("|---")).skip(1);
    let row = |line: &str| {
        let cells: Vec<_> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        (cells[1].to_owned(), cells[2].trim_matches('`').to_owned())
    };
    rows.take_while(|line| line.starts_with('|')).map(row).collect()
}

/// The opening lines of the code blocks in a section.
fn blocks<'a>(chapter: &'a str, section: &str) -> Vec<&'a str> {
    let (_, text) = chapter.split_once(&format!("# {section}\n")).expect(section);
    let (mut blocks, mut fenced) = (Vec::new(), false);
    for line in text.lines() {
        if line.starts_with("```") {
            fenced = !fenced;
            blocks.extend(fenced.then_some(line));
        } else if !fenced && line.starts_with("# ") {
            break;
        }
    }
    blocks
}

#[test]
fn each_project_is_run_by_a_test() {
    let projects = projects();
    assert_eq!(projects.len(), 12, "{projects:?}");
    for (place, test) in projects {
        let (file, section) = place.split_once(": ").unwrap_or((&place, ""));
        let text = read(file.trim_matches('`'));
        if section.is_empty() {
            let name =
                file.trim_matches('`').trim_start_matches("examples/").trim_end_matches(".rs");
            let program = if test.contains("--test servers") { "servers" } else { "it" };
            let tests =
                ["tests/servers/examples.rs", "tests/it/rules/conformance.rs"].map(read).concat();
            assert!(test.contains(program) && tests.contains(name), "{file}: {test}");
            continue;
        }
        let chapter =
            file.trim_matches('`').trim_start_matches("src/guide/").trim_end_matches(".md");
        assert_eq!(test, format!("--doc -- guide::{chapter}"), "{place}");
        let blocks = blocks(&text, section);
        // A block without a word is compiled and run.
        assert!(blocks.contains(&"```"), "{place}: {blocks:?}");
    }
}

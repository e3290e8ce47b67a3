//! The documents must be readable in a terminal, and name files that exist.

use crate::files::{all, has_ending, read, root};

/// The most columns of one cell.
const MOST_COLUMNS: usize = 100;

const DOCUMENTS: [&str; 2] = ["README.md", "SECURITY.md"];

/// The cells of the tables in a Markdown text, each with its line number. Code blocks have none.
fn cells(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    let lines = text.lines().enumerate().filter(move |(_, line)| {
        fenced ^= line.starts_with("```");
        !fenced && line.starts_with('|')
    });
    lines.flat_map(|(index, line)| {
        let row = line.trim_matches('|');
        row.split(" | ").map(move |cell| (index + 1, cell.trim()))
    })
}

#[test]
fn no_table_cell_is_wider_than_a_terminal() {
    for name in DOCUMENTS {
        let text = read(name);
        assert!(cells(&text).count() > 10, "{name}: no table found");
        for (line, cell) in cells(&text) {
            let columns = cell.chars().count();
            assert!(columns <= MOST_COLUMNS, "{name}:{line}: a cell of {columns} columns: {cell}");
        }
    }
}

#[test]
fn no_line_of_the_readme_is_wider_than_a_terminal() {
    for (index, line) in read("README.md").lines().enumerate() {
        let columns = line.chars().count();
        assert!(columns <= MOST_COLUMNS, "README.md:{}: {columns} columns: {line}", index + 1);
    }
}

/// One command runs the main job on the embedded store, and one passes all tests.
#[test]
fn the_readme_starts_with_the_commands_of_a_checkout() {
    let readme = read("README.md");
    let (start, _) = readme.split_once("\n## ").expect("a section");
    for command in ["`cargo run --example quickstart`", "`scripts/test`"] {
        assert!(start.contains(command), "{command} in {start}");
    }
    let example = read("examples/quickstart.rs");
    assert!(example.contains("RateLimitLayer::per_ip"), "the embedded store");
    let script = read("scripts/test");
    assert!(script.contains("scripts/servers"), "it installs the servers");
}

/// The folders of the repository, each as the start of a path.
const FOLDERS: [&str; 9] =
    ["benches/", "dev/", "examples/", "fuzz/", "lua/", "scripts/", "sim/", "src/", "tests/"];

/// The paths of files and folders in backticks.
fn paths(text: &str) -> impl Iterator<Item = &str> {
    let is_path = |word: &&str| {
        FOLDERS.iter().any(|folder| word.starts_with(folder))
            && word.chars().all(|c| c.is_alphanumeric() || "/._-".contains(c))
    };
    text.split('`').skip(1).step_by(2).filter_map(|code| code.split(' ').next()).filter(is_path)
}

#[test]
fn the_files_that_documents_name_exist() {
    let pages = all("src/guide").into_iter().filter(|path| has_ending(path, &["md"]));
    // Not the README, which names files of a new project.
    let names = [
        "SECURITY.md",
        "CONTRIBUTING.md",
        "DESIGN.md",
        "RELEASE.md",
        "lua/README.md",
        "sim/README.md",
    ];
    let mut count = 0;
    for page in pages.chain(names.map(|name| root().join(name))) {
        let text = read(&page);
        // Without the blocks of code, whose fences would swap code and text.
        let prose: String = text.split("```").step_by(2).collect();
        for path in paths(&prose) {
            count += 1;
            assert!(root().join(path).exists(), "{}: there is no `{path}`", page.display());
        }
        let marked = text.lines().any(|line| line.starts_with("<<<<<<<"));
        assert!(!marked, "{}: an unfinished merge", page.display());
    }
    assert!(count > 60, "{count} paths");
}

/// Returns the file of a module of a test program, or of the library.
fn module(program: &str, path: &[&str]) -> String {
    let folder = if program == "lib" { "src".to_owned() } else { format!("tests/{program}") };
    let file = root().join(folder).join(path.join("/"));
    let file = [file.with_extension("rs"), file.join("mod.rs")].into_iter().find(|it| it.exists());
    read(file.expect("a module"))
}

#[test]
fn each_known_defect_names_a_test_or_a_seed() {
    let text = read("tests/defects.md");
    let (_, defects) = text.split_once("| what a user would have seen |").expect("a table");
    let rows: Vec<_> = defects.lines().skip(2).take_while(|line| line.starts_with('|')).collect();
    let seeds = read("sim/seeds.txt");
    for row in &rows {
        let shown = row.trim_end_matches([' ', '|']).rsplit(" | ").next().expect("a cell");
        if let Some(seed) = shown.strip_prefix("seed ") {
            assert!(seeds.lines().any(|line| line.starts_with(&format!("{seed} "))), "{row}");
            continue;
        }
        let (program, path) =
            shown.trim_matches('`').split_once(' ').expect("a program and a path");
        let path: Vec<_> = path.split("::").collect();
        let (test, path) = path.split_last().expect("a test");
        let text = module(program, path);
        // A path that ends in `::` names all tests of a module.
        let is_there = test.is_empty() || text.contains(&format!("fn {test}("));
        assert!(is_there, "{row}");
    }
    assert!(rows.len() > 15, "{} rows", rows.len());
}

//! The documents must be readable in a terminal.

use std::{fs, path::Path};

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
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
        let text = fs::read_to_string(path).expect(name);
        assert!(cells(&text).count() > 10, "{name}: no table found");
        for (line, cell) in cells(&text) {
            let columns = cell.chars().count();
            assert!(columns <= MOST_COLUMNS, "{name}:{line}: a cell of {columns} columns: {cell}");
        }
    }
}

#[test]
fn no_line_of_the_readme_is_wider_than_a_terminal() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md");
    for (index, line) in fs::read_to_string(path).expect("README.md").lines().enumerate() {
        let columns = line.chars().count();
        assert!(columns <= MOST_COLUMNS, "README.md:{}: {columns} columns: {line}", index + 1);
    }
}

#[test]
fn cells_of_code_blocks_do_not_count() {
    let text = "| a | b c |\n|---|---|\n```\n| d |\n```\n";
    assert_eq!(cells(text).collect::<Vec<_>>(), [(1, "a"), (1, "b c"), (2, "---|---")]);
}

//! The page of settings has each setting of the code.

use std::collections::BTreeSet;

use crate::files::{read, sources};

/// The files whose public methods take `self` to change a setting.
const FILES: [&str; 16] = [
    "src/middleware/layer.rs",
    "src/middleware/penalty.rs",
    "src/quota/mod.rs",
    "src/quota/calendar.rs",
    "src/rule/mod.rs",
    "src/rule/alternatives.rs",
    "src/rule/fair.rs",
    "src/rule/adaptive.rs",
    "src/key/peer_ip.rs",
    "src/key/client_ip/mod.rs",
    "src/reject/mod.rs",
    "src/headers/mod.rs",
    "src/admin/mod.rs",
    "src/store/hot_keys",
    "src/store/redis/builder.rs",
    "src/store/wrappers",
];
/// Methods of this form that change no setting of a user.
const OTHERS: [&str; 4] = [
    "boxed",         // erases types
    "lazy",          // ends a builder
    "on_account_of", // for models of shares
    "write",         // adds fields to a response
];

fn texts(file: &str) -> Vec<String> {
    sources(file).iter().map(read).collect()
}

/// Returns the names of public methods that take `self` by value.
fn setters(text: &str) -> Vec<&str> {
    let mut names = Vec::new();
    for item in text.split("    pub ").skip(1) {
        let item = item.strip_prefix("const ").unwrap_or(item);
        let Some(item) = item.strip_prefix("fn ") else { continue };
        let Some((head, _)) = item.split_once(" {") else { continue };
        let name = head.split(['(', '<']).next().unwrap_or_default();
        let takes_self = ["(self", "(mut self", "(\n        self", "(\n        mut self"];
        let is_setter = takes_self.iter().any(|start| head.contains(start));
        if is_setter && !name.starts_with("try_") && !OTHERS.contains(&name) {
            names.push(name);
        }
    }
    names
}

#[test]
fn the_page_of_settings_names_every_setting() {
    let page = read("src/guide/settings.md");
    let mut missing = BTreeSet::new();
    let mut count = 0;
    for file in FILES {
        let texts = texts(file);
        assert!(texts.iter().any(|text| !setters(text).is_empty()), "{file} has no setting");
        for text in &texts {
            for name in setters(text) {
                count += 1;
                if !page.contains(&format!("`{name}`")) {
                    missing.insert((file, name.to_owned()));
                }
            }
        }
    }
    assert!(count > 60, "only {count} settings found");
    assert!(missing.is_empty(), "not in src/guide/settings.md: {missing:?}");
}

/// Each row of a table names a method that exists.
#[test]
fn the_page_of_settings_names_nothing_else() {
    let page = read("src/guide/settings.md");
    let code: String = FILES.into_iter().flat_map(texts).collect();
    for row in page.lines().filter(|line| line.starts_with("| [`") || line.starts_with("| `")) {
        let cell = row.split('|').nth(1).expect("a cell");
        for name in cell.split('`').skip(1).step_by(2).filter(|name| *name != "calendar") {
            assert!(code.contains(&format!("fn {name}")), "{name} in {row}");
        }
    }
}

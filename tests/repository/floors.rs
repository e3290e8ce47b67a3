//! Floors of the modules: each module imports only modules below its own floor, and those of its own folder.

use std::{collections::HashMap, path::PathBuf};

use crate::files::{read, root, sources};

/// The floor of every module. `name` is one file (or its folder's `mod.rs`), `name/*` a whole
/// folder, whose files may name each other. A folder and an entry inside it may name each other, whatever
/// their floors. Other modules of one floor may not.
const FLOORS: &[(&str, u32)] = &[
    ("config/*", 0),
    ("head", 0),
    ("log", 0),
    ("advice", 1),
    ("name", 0),
    ("toggle", 0),
    ("fingerprint", 0),
    ("quota/*", 1),
    ("decision/*", 1),
    ("key/*", 2),
    ("algorithm/*", 2),
    ("observe/*", 3),
    ("store", 4),
    ("store/answer", 1),
    ("store/instances", 0),
    ("store/wrappers", 4),
    ("store/block", 5),
    ("store/reservation", 7),
    ("store/context", 2),
    ("store/ext", 6),
    ("store/health", 2),
    ("store/op", 2),
    ("store/sync", 0),
    ("store/waiter", 1),
    ("store/local/*", 5),
    ("store/local/held", 3),
    ("store/governor", 5),
    ("store/redis/*", 5),
    ("store/wrappers/breaker/*", 5),
    ("store/wrappers/breaker/circuit", 4),
    ("store/wrappers/fallback/*", 5),
    ("store/hot_keys/*", 5),
    ("store/wrappers/timeout", 4),
    ("rule/*", 6),
    ("explain/*", 7),
    ("headers/*", 7),
    ("reject/*", 8),
    ("limiter", 8),
    ("middleware/*", 10),
    ("middleware/queue", 6),
    ("testing/*", 14),
    ("admin/*", 15),
    ("guide/*", 16),
];

/// A source file: its module (`store/local/clock`; `""` for the crate's root) and its code.
struct File {
    module: String,
    code: String,
}

impl File {
    fn new(path: &str, text: &str) -> Self {
        let module = path.trim_end_matches(".rs").trim_end_matches("/mod");
        let module = if module == "lib" { "" } else { module };
        let code = text.lines().filter(|line| !line.trim().starts_with("//"));
        // In a module of tests, `super` is the file itself.
        let code: Vec<_> = code.filter(|line| *line != "    use super::*;").collect();
        Self { module: module.to_owned(), code: code.join("\n") }
    }

    /// Returns the names that the code takes by a path from the crate's root, from its own module
    /// or from the parent module.
    fn names(&self) -> Vec<String> {
        let above = self.module.rsplit_once('/').map_or("", |(above, _)| above);
        let mut names = Vec::new();
        for (start, base) in [("crate::", ""), ("self::", &self.module), ("super::", above)] {
            for (at, _) in self.code.match_indices(start) {
                read_tree(&self.code[at + start.len()..], base, &mut names);
            }
        }
        names
    }
}

/// Adds the paths of a tree such as `a::{b, c::D}` to `names` and returns the text behind it.
fn read_tree<'a>(text: &'a str, base: &str, names: &mut Vec<String>) -> &'a str {
    let text = text.trim_start();
    if let Some(mut rest) = text.strip_prefix('{') {
        loop {
            rest = rest.trim_start_matches(|c: char| c == ',' || c.is_whitespace());
            if let Some(behind) = rest.strip_prefix('}') {
                return behind;
            }
            rest = read_tree(rest, base, names);
            rest = &rest[rest.find([',', '}']).expect("the braces are closed")..];
        }
    }
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    let (word, rest) = text.split_at(end);
    let path = join(base, word);
    match rest.strip_prefix("::") {
        Some(below) => read_tree(below, &path, names),
        None => {
            names.push(path);
            rest
        }
    }
}

fn join(module: &str, item: &str) -> String {
    if module.is_empty() { item.to_owned() } else { format!("{module}/{item}") }
}

/// Maps re-exports to their origin: `store/LocalStore` is `store/local/LocalStore`.
fn exports(files: &[File]) -> HashMap<String, String> {
    let mut exports = HashMap::new();
    for file in files {
        let below = join(&file.module, "");
        for name in file.names().into_iter().filter(|name| name.starts_with(&below)) {
            let short = join(&file.module, name.rsplit('/').next().unwrap_or_default());
            if short != name {
                exports.insert(short, name);
            }
        }
    }
    exports
}

/// Returns the entry that contains the module or item.
fn entry_of(path: &str) -> Option<(&'static str, u32)> {
    let inside = |entry: &str| {
        let folder = entry.trim_end_matches("/*");
        path == folder || path.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'))
    };
    FLOORS.iter().copied().filter(|(entry, _)| inside(entry)).max_by_key(|(entry, _)| entry.len())
}

/// Returns every import that does not point down or stay in its folder, and every file without a floor.
fn violations(files: &[File]) -> Vec<String> {
    let exports = exports(files);
    let mut violations = Vec::new();
    for file in files.iter().filter(|file| !file.module.is_empty()) {
        let module = &file.module;
        let Some((entry, floor)) =
            entry_of(module).filter(|(entry, _)| entry.ends_with("/*") || entry == module)
        else {
            violations.push(format!(
                "src/{module} has no floor: add (\"{module}\", floor) to FLOORS in \
                 tests/repository/floors.rs, one above the highest module it imports"
            ));
            continue;
        };
        for name in file.names() {
            let mut name = &name;
            while let Some(source) = exports.get(name) {
                name = source;
            }
            let Some((other, below)) = entry_of(name) else { continue };
            let folder = |inner: &str, outer: &str| inner.starts_with(&format!("{outer}/"));
            let family = folder(other, entry) || folder(entry, other);
            if other != entry && below >= floor && !family {
                violations.push(format!(
                    "src/{module} (floor {floor}) imports {name} (floor {below}): imports point \
                     down; move the idea to a lower floor, or this module to a higher one"
                ));
            }
        }
    }
    violations.sort();
    violations.dedup();
    violations
}

fn files() -> Vec<File> {
    let src = root().join("src");
    let file = |path: PathBuf| {
        let inside = path.strip_prefix(&src).expect("a path in src");
        let parts: Vec<_> = inside.iter().map(|part| part.to_string_lossy()).collect();
        File::new(&parts.join("/"), &read(&path))
    };
    sources(&src).into_iter().map(file).collect()
}

#[test]
fn imports_point_down() {
    let violations = violations(&files());
    assert!(violations.is_empty(), "{}", violations.join("\n"));
}

#[test]
fn every_entry_is_a_module() {
    let files = files();
    for (entry, _) in FLOORS {
        let module = entry.trim_end_matches("/*");
        let known = files.iter().any(|file| file.module == module);
        assert!(known, "{entry} is in FLOORS and not in src; drop it");
    }
}

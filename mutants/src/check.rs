//! The copy of the crate, with all changes that compile.

use std::{
    collections::HashSet,
    fs,
    ops::Range,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

use crate::{
    find::{Place, find},
    switch::{MODULE, blamed, marked, switched},
};

/// A source file, by its path in the repository.
pub(crate) struct Source {
    pub(crate) path: String,
    text: String,
    pub(crate) places: Vec<Place>,
}

/// Returns the file and its modules, parsed, with the places of each.
pub(crate) fn sources(root: &Path, path: &Path, last: &mut u32, found: &mut Vec<Source>) {
    let text = fs::read_to_string(root.join(path)).expect("a source file");
    let file = syn::parse_file(&text).expect("a file that compiles");
    let (places, modules) = find(&text, &file, last);
    found.push(Source {
        path: path.to_str().expect("text").to_owned(),
        text: text.clone(),
        places,
    });
    let folder = path.parent().expect("a folder");
    let own = path.file_stem().expect("a name");
    let below = if own == "lib" || own == "mod" { folder.to_owned() } else { folder.join(own) };
    for module in modules {
        let name = module.ident.to_string();
        let files = [below.join(format!("{name}.rs")), below.join(&name).join("mod.rs")];
        let file = files.iter().find(|file| root.join(file).exists());
        sources(root, file.unwrap_or_else(|| panic!("no module {name}")), last, found);
    }
}

/// Copies the files of the repository, unless they are equal, which would build them again.
pub(crate) fn copy(root: &Path, to: &Path, keep: impl Fn(&str) -> bool) {
    let mut list = Command::new("git");
    list.current_dir(root).args(["ls-files", "--cached", "--others", "--exclude-standard"]);
    let list = list.output().expect("git runs");
    for path in String::from_utf8(list.stdout).expect("text").lines().filter(|path| keep(path)) {
        if let Ok(content) = fs::read(root.join(path)) {
            write(&to.join(path), &content);
        }
    }
}

fn write(path: &PathBuf, content: &[u8]) {
    if fs::read(path).is_ok_and(|old| old == content) {
        return;
    }
    fs::create_dir_all(path.parent().expect("a folder")).expect("a folder is created");
    fs::write(path, content).expect("a file is written");
}

/// Runs cargo in the copy, and returns its messages.
pub(crate) fn cargo(copy: &Path, arguments: &[String]) -> Vec<Value> {
    let mut cargo = Command::new("cargo");
    cargo.current_dir(copy).args(arguments).args(["--all-features", "--message-format=json"]);
    cargo.env("CARGO_TARGET_DIR", copy.with_file_name("build")).env("CARGO_INCREMENTAL", "0");
    let output = cargo.stderr(std::process::Stdio::inherit()).output().expect("cargo runs");
    let output = String::from_utf8(output.stdout).expect("text");
    output.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// Writes the switched files, and drops changes until they compile. Returns the dropped ones.
pub(crate) fn compile(copy: &Path, sources: &[Source], last: u32) -> HashSet<u32> {
    let mut dropped = recall(copy, sources);
    loop {
        let mut files = Vec::new();
        for source in sources {
            let mut text = switched(&source.text, &source.places, &dropped);
            if source.path == "src/lib.rs" {
                // Changes that always overflow are noticed when they run.
                text.insert_str(
                    0,
                    "#![allow(warnings, arithmetic_overflow, unconditional_panic)]\n",
                );
                text.push_str("mod mutant;\n");
            }
            write(&copy.join(&source.path), text.as_bytes());
            files.push(marked(&text));
        }
        let module = MODULE.replace("COUNT", &(last + 1).to_string());
        write(&copy.join("src/mutant.rs"), module.as_bytes());
        let errors = errors(&cargo(copy, &["check".to_owned(), "--lib".to_owned()]));
        if errors.is_empty() {
            remember(copy, sources, &dropped);
            return dropped;
        }
        let before = dropped.len();
        for (_, spans) in &errors {
            for (source, marked) in sources.iter().zip(&files) {
                let own = spans.iter().filter(|it| it.0 == source.path);
                let (main, other): (Vec<_>, Vec<_>) = own.partition(|it| it.2);
                let ranges = |spans: &[&ErrorSpan]| -> Vec<_> {
                    spans.iter().map(|it| it.1.clone()).collect()
                };
                dropped.extend(blamed(marked, &source.places, &ranges(&main), &ranges(&other)));
            }
        }
        println!("{} errors: {} changes do not compile", errors.len(), dropped.len());
        assert!(dropped.len() > before, "no change is the cause of: {}", errors[0].0);
    }
}

/// A file, a part of it, and whether the part is the main one of an error.
type ErrorSpan = (String, Range<usize>, bool);

/// Returns the text and the spans of each error.
fn errors(messages: &[Value]) -> Vec<(String, Vec<ErrorSpan>)> {
    let errors = messages.iter().map(|it| &it["message"]).filter(|it| it["level"] == "error");
    let errors = errors.map(|error| {
        let mut spans = Vec::new();
        for span in error["spans"].as_array().into_iter().flatten() {
            let primary = span["is_primary"] == true;
            let mut span = span;
            // A macro, and the code that calls it.
            while span.is_object() {
                let number = |name: &str| span[name].as_u64().expect("a number") as usize;
                let file = span["file_name"].as_str().expect("a path").to_owned();
                spans.push((file, number("byte_start")..number("byte_end"), primary));
                span = &span["expansion"]["span"];
            }
        }
        (error["rendered"].as_str().unwrap_or_default().to_owned(), spans)
    });
    // The last one only counts the others.
    errors.filter(|(_, spans)| !spans.is_empty()).collect()
}

/// Changes that did not compile are written to a file, so that the next run need not find them.
fn remember(copy: &Path, sources: &[Source], dropped: &HashSet<u32>) {
    let lines = |name: &str, id| dropped.contains(&id).then(|| format!("{name}\n"));
    fs::write(copy.with_file_name("dropped"), names(sources, lines).concat()).expect("written");
}

fn recall(copy: &Path, sources: &[Source]) -> HashSet<u32> {
    let text = fs::read_to_string(copy.with_file_name("dropped")).unwrap_or_default();
    let known: HashSet<_> = text.lines().collect();
    names(sources, |name, id| known.contains(name).then_some(id)).into_iter().collect()
}

fn names<T>(sources: &[Source], each: impl Fn(&str, u32) -> Option<T>) -> Vec<T> {
    let places = sources.iter().flat_map(|source| source.places.iter().map(move |it| (source, it)));
    let changes = places.flat_map(|(source, place)| {
        place.changes.iter().map(move |change| {
            let Place { line, column, .. } = place;
            (format!("{}:{line}:{column}: {}", source.path, change.name), change.id)
        })
    });
    changes.filter_map(|(name, id)| each(&name, id)).collect()
}

//! The groups of `scripts/mutants`: every source file is in one, and its tests exist.

use std::{
    fs,
    path::{Path, PathBuf},
};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).expect("a file")
}

/// A name, files and folders, and modules of test programs.
type Group<'a> = (&'a str, Vec<&'a str>, Vec<&'a str>);

fn group(line: &str) -> Group<'_> {
    let (name, rest) = line.split_once(": ").expect("a name");
    let (files, tests) = rest.split_once(" | ").expect("files and tests");
    (name, files.split(' ').collect(), tests.split(' ').collect())
}

fn groups(text: &str) -> Vec<Group<'_>> {
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(group).collect()
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|end| end == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn every_source_file_is_in_one_group() {
    let text = read(".cargo/mutants.groups");
    let groups = groups(&text);
    let (mut found, src) = (Vec::new(), root().join("src"));
    sources(&src, &mut found);
    for path in found {
        let file = path.strip_prefix(&src).expect("below src");
        let own = groups.iter().filter(|(_, files, _)| files.iter().any(|it| file.starts_with(it)));
        let own: Vec<_> = own.map(|(name, ..)| *name).collect();
        assert_eq!(own.len(), 1, "src/{} is in {own:?} of .cargo/mutants.groups", file.display());
    }
}

#[test]
fn groups_name_files_and_tests_that_exist() {
    let text = read(".cargo/mutants.groups");
    for (name, files, tests) in groups(&text) {
        for file in files {
            assert!(root().join("src").join(file).exists(), "{name}: there is no src/{file}");
        }
        for test in tests.iter().filter(|_| !name.starts_with('-')) {
            if *test == "lib" {
                continue;
            }
            let module = root().join("tests").join(test.replace("::", "/"));
            let exists = module.with_extension("rs").exists() || module.join("mod.rs").exists();
            assert!(test.contains("::") && exists, "{name}: there is no test module {test:?}");
        }
    }
}

/// Each explained survivor belongs to an existing file.
#[test]
fn survivors_name_files_that_exist() {
    let text = read(".cargo/survivors.md");
    let files = text.lines().filter_map(|line| line.strip_prefix("- `")?.split(": ").next());
    let files: Vec<_> = files.collect();
    assert!(files.len() > 5, "{files:?}");
    for file in files {
        assert!(root().join(file).exists(), "there is no {file}");
    }
}

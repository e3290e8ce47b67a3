//! Changes of the crate, one at a time, which a test has to notice.
//!
//! A copy of the repository contains every change behind a switch, and is built once. A change meets
//! the tests of its group (`.cargo/mutants.groups`) that reach its place.

mod check;
mod find;
mod run;
mod switch;
mod values;

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeSet, HashSet},
    env, fs,
    path::Path,
    process::{Command, ExitCode},
};

use crate::{
    check::{Source, compile, copy, sources},
    find::{Change, Place},
    run::{Tests, Verdict},
};

/// A line of `.cargo/mutants.groups`.
struct Group<'a> {
    name: &'a str,
    files: Vec<&'a str>,
    tests: Vec<&'a str>,
}

fn groups(text: &str) -> Vec<Group<'_>> {
    let lines = text.lines().filter(|line| line.starts_with(|c: char| c.is_ascii_lowercase()));
    let group = |line| {
        let parts = str::split_once(line, ": ").map(|(name, rest)| (name, rest.split_once(" | ")));
        let Some((name, Some((files, tests)))) = parts else { panic!("a group: {line}") };
        Group { name, files: files.split(' ').collect(), tests: tests.split(' ').collect() }
    };
    lines.map(group).collect()
}

/// Files, and their lines that differ from a revision.
fn changed_lines(root: &Path, revision: &str) -> HashSet<(String, usize)> {
    let mut diff = Command::new("git");
    diff.current_dir(root).args(["diff", "--unified=0", revision, "--", "src"]);
    let output = diff.output().expect("git runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let (mut file, mut lines) = (String::new(), HashSet::new());
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        if let Some(path) = line.strip_prefix("+++ b/") {
            path.clone_into(&mut file);
        } else if let Some(range) = line.strip_prefix("@@ ").and_then(|it| it.split(' ').nth(1)) {
            let (first, count) = range[1..].split_once(',').unwrap_or((&range[1..], "1"));
            let (first, count): (usize, usize) =
                (first.parse().expect("a line"), count.parse().expect("a count"));
            lines.extend((first..first + count).map(|line| (file.clone(), line)));
        }
    }
    lines
}

/// Returns at most `most` items, in their order.
fn sample<T>(mut items: Vec<T>, most: usize, seed: u64) -> Vec<T> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    while items.len() > most {
        // xorshift
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        items.remove((state % items.len() as u64) as usize);
    }
    items
}

struct Options {
    since: Option<String>,
    seed: u64,
    most: usize,
    groups: Vec<String>,
}

fn options() -> Result<Options, String> {
    let mut options = Options { since: None, seed: 1, most: 200, groups: Vec::new() };
    let mut arguments = env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
        let number = |text: String| text.parse().map_err(|_| format!("{text} is no number"));
        match &*argument {
            "--since" => options.since = Some(value()?),
            "--seed" => options.seed = number(value()?)?,
            "--most" => options.most = number(value()?)? as usize,
            option if option.starts_with('-') => {
                return Err(format!("{option}: give --since, --seed, --most or groups"));
            }
            _ => options.groups.push(argument),
        }
    }
    Ok(options)
}

fn main() -> ExitCode {
    let options = match options() {
        Ok(options) => options,
        Err(error) => {
            println!("{error}");
            return ExitCode::from(2);
        }
    };
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a folder");
    let text = fs::read_to_string(root.join(".cargo/mutants.groups")).expect("the groups");
    let mut groups = groups(&text);
    for name in &options.groups {
        assert!(groups.iter().any(|group| group.name == name), "there is no group {name}");
    }
    if !options.groups.is_empty() {
        let position =
            |group: &Group<'_>| options.groups.iter().position(|name| name == group.name);
        groups.retain(|group| position(group).is_some());
        groups.sort_by_key(position);
    }

    let to = root.join("target/mutants/copy");
    let (mut last, mut found) = (0, Vec::new());
    sources(root, Path::new("src/lib.rs"), &mut last, &mut found);
    let written = |path: &str| found.iter().any(|source| source.path == path);
    copy(root, &to, |path| !written(path));
    let dropped = compile(&to, &found, last);
    println!("{} changes, {} of which do not compile", last, dropped.len());
    let programs = groups.iter().flat_map(|group| &group.tests);
    let programs: BTreeSet<_> =
        programs.map(|test| test.split("::").next().expect("a name")).collect();
    let mut tests = Tests::build(&to, &programs);

    let lines = options.since.as_ref().map(|revision| changed_lines(root, revision));
    let explained = fs::read_to_string(root.join(".cargo/survivors.md")).expect("survivors");
    let is_explained = |name: &str| explained.lines().any(|line| line == format!("- `{name}`"));
    let (mut table, mut unexplained, mut too_few) = (String::new(), 0, false);
    println!("seed {}", options.seed);
    for group in &groups {
        let all: Vec<_> = changes(&found, group)
            .filter(|(source, place, change)| {
                let is_new =
                    |lines: &HashSet<_>| lines.contains(&(source.path.clone(), place.line));
                !dropped.contains(&change.id) && lines.as_ref().is_none_or(is_new)
            })
            .collect();
        let count = all.len();
        let chosen = sample(all, options.most, options.seed);
        if chosen.is_empty() {
            continue;
        }
        println!("\n=== {}: {} of {count} changes", group.name, chosen.len());
        let own = tests.of(&group.tests);
        let (mut caught, mut late) = (0, 0);
        for (source, place, change) in &chosen {
            let verdict = tests.judge(place.id, change.id, &own);
            match verdict {
                Verdict::Caught => caught += 1,
                Verdict::Late => late += 1,
                Verdict::Survived | Verdict::Unreached => {
                    let name = format!("{}: {}", source.path, change.name);
                    let known = is_explained(&name);
                    unexplained += usize::from(!known);
                    let note = if known { " (explained)" } else { "" };
                    let reached = if verdict == Verdict::Unreached { " (no test)" } else { "" };
                    println!("{}:{}: {}{reached}{note}", source.path, place.line, change.name);
                }
            }
        }
        let noticed = caught + late;
        let share = 100 * noticed / chosen.len();
        too_few |= share < 90;
        let line = format!(
            "{:<11} {count:>7} {:>7} {caught:>7} {late:>7} {:>8} {share:>5} %\n",
            group.name,
            chosen.len(),
            chosen.len() - noticed
        );
        print!("{line}");
        table.push_str(&line);
    }
    println!("\ngroup       changes  chosen  caught    late  survive  noticed\n{table}");
    if unexplained > 0 {
        println!(
            "{unexplained} survivors are not explained: write a test, or a line in .cargo/survivors.md"
        );
    }
    if too_few {
        println!("a group has fewer than 90 %");
    }
    ExitCode::from(u8::from(unexplained > 0 || too_few))
}

/// Returns the changes of the files of a group.
fn changes<'a>(
    sources: &'a [Source],
    group: &Group<'_>,
) -> impl Iterator<Item = (&'a Source, &'a Place, &'a Change)> {
    let own = |source: &&Source| {
        group
            .files
            .iter()
            .any(|file| Path::new(&source.path).starts_with(Path::new("src").join(file)))
    };
    let files: Vec<_> = sources.iter().filter(own).collect();
    let places =
        files.into_iter().flat_map(|source| source.places.iter().map(move |it| (source, it)));
    places
        .flat_map(|(source, place)| place.changes.iter().map(move |change| (source, place, change)))
}

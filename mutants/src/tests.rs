use std::{collections::HashSet, env, fs, process::Command};

use crate::{
    find::{Place, find},
    groups, sample,
    switch::{MODULE, blamed, marked, switched},
};

const CRATE: &str = "
pub struct Sum(u64);

impl Sum {
    pub const NONE: u64 = 0;
    pub fn add(&mut self, more: u64) {
        if more > 2 && self.0 < 9 {
            self.0 += more;
        }
    }
    pub fn with(self) -> Self {
        Self(self.0 + 4)
    }
}

pub fn name(of: Option<u64>) -> &'static str {
    match of {
        Some(it) if it == Sum::NONE => \"none\",
        Some(_) => \"some\",
        _ => \"nothing\",
    }
}

#[cfg(not(feature = \"fast\"))]
pub fn slow() -> u64 { 7 }
";

const TESTS: &str = "
#[test]
fn a_sum() {
    let mut sum = Sum(0);
    for more in [2, 3, 1, 5, 3, 4] { sum.add(more); }
    assert_eq!(sum.with().0, 15);
    assert_eq!([name(None), name(Some(0)), name(Some(1))], [\"nothing\", \"none\", \"some\"]);
}
";

fn places(text: &str) -> Vec<Place> {
    find(text, &syn::parse_file(text).expect("code"), &mut 0).0
}

fn names(places: &[Place]) -> Vec<&str> {
    places.iter().flat_map(|place| &place.changes).map(|change| &*change.name).collect()
}

#[test]
fn changes_are_named_and_none_is_in_a_constant() {
    let places = places(CRATE);
    let names = names(&places);
    for name in [
        "replace Sum::add with ()",
        "replace && with || in Sum::add",
        "replace > with >= in Sum::add",
        "replace 2 with 3 in Sum::add",
        "delete self.0 += more in Sum::add",
        "replace Sum::with -> Self with self",
        "replace match guard it == Sum::NONE with true in name",
        "delete match arm Some(_) in name",
    ] {
        assert!(names.contains(&name), "{name}: {names:?}");
    }
    assert!(!names.iter().any(|name| name.contains("slow") || name.contains("NONE with 1")));
}

/// Builds a small crate with its switches, and runs its test with each change.
#[test]
fn a_switch_makes_exactly_one_change() {
    let places = places(CRATE);
    let folder = env::temp_dir().join(format!("mutants-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder");
    let count = names(&places).len();
    let text = switched(CRATE, &places, &HashSet::new());
    fs::write(folder.join("lib.rs"), format!("{text}mod mutant;{TESTS}")).expect("written");
    let module = MODULE.replace("COUNT", &(count + 1).to_string());
    fs::write(folder.join("mutant.rs"), module).expect("written");
    let program = folder.join("program");
    let mut rustc = Command::new("rustc");
    rustc.args(["--test", "--edition=2024", "--cap-lints=allow", "-o"]).arg(&program);
    assert!(rustc.arg(folder.join("lib.rs")).status().expect("rustc runs").success());

    let reached = folder.join("reached");
    let passes = |change: usize| {
        let mut run = Command::new(&program);
        run.env("MUTANT", change.to_string()).env("MUTANT_PLACES", &reached);
        run.output().expect("the program runs").status.success()
    };
    assert!(passes(0));
    let lines = fs::read_to_string(&reached).expect("text");
    assert_eq!(lines.lines().count(), places.len(), "each place is reached, and written once");
    let survivors: Vec<_> = (1..=count).filter(|&change| passes(change)).collect();
    let survivors: Vec<_> = survivors.iter().map(|change| names(&places)[change - 1]).collect();
    assert_eq!(survivors, ["replace < with <= in Sum::add", "replace 9 with 10 in Sum::add"]);
    fs::remove_dir_all(folder).expect("removed");
}

#[test]
fn an_error_is_blamed_on_its_change_or_on_the_switch_around_it() {
    let places = places(CRATE);
    let text = switched(CRATE, &places, &HashSet::new());
    let marked = marked(&text);
    let span = |part: &str| {
        let start = text.find(part).expect("a part");
        start..start + part.len()
    };
    let id = |name: &str| {
        let mut changes = places.iter().flat_map(|place| &place.changes);
        changes.find(|change| change.name == name).expect("a change").id
    };
    let early = id("replace Sum::with -> Self with self");
    assert_eq!(blamed(&marked, &places, &[span("return self")], &[]), [early]);
    let others = [id("replace + with - in Sum::with"), id("replace + with * in Sum::with")];
    let around = span("self.0 + /*[");
    assert_eq!(blamed(&marked, &places, &[around], &[]), others);
    let dropped = switched(CRATE, &places, &HashSet::from([early]));
    assert!(text.contains("return self") && !dropped.contains("return self"));
}

#[test]
fn a_sample_is_random_and_repeatable() {
    let sample = |seed| sample((0..1_000).collect::<Vec<_>>(), 200, seed);
    assert_eq!(sample(1).len(), 200);
    assert_eq!(sample(1), sample(1));
    assert_ne!(sample(1), sample(2));
    assert!(sample(1).is_sorted() && sample(1)[199] > 500);
}

#[test]
fn groups_have_files_and_tests() {
    let text =
        "# a comment\n\nkey: key/mod.rs key/value.rs | lib it::keys\n-text: lib.rs | no code\n";
    let groups = groups(text);
    assert_eq!(groups.len(), 1);
    assert_eq!((groups[0].name, &*groups[0].files), ("key", &["key/mod.rs", "key/value.rs"][..]));
    assert_eq!(groups[0].tests, ["lib", "it::keys"]);
}

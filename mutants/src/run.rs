//! The tests, and their verdict on one change.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use crate::check::cargo;

/// The time of the first tests that run together. Each further run takes four times as much.
const FIRST_RUN: Duration = Duration::from_millis(100);

/// The time of all tests that one change meets. Slower tests of its group are left out.
const ALL_RUNS: Duration = Duration::from_secs(30);

/// A test, alone in a process and without a change.
pub(crate) struct Test {
    program: PathBuf,
    name: String,
    took: Duration,
    reached: HashSet<u32>,
}

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Verdict {
    Caught,
    /// A test did not end.
    Late,
    Survived,
    Unreached,
}

/// The test programs, and the tests that already ran.
pub(crate) struct Tests {
    copy: PathBuf,
    programs: HashMap<String, PathBuf>,
    ran: HashMap<(String, String), Option<usize>>,
    tests: Vec<Test>,
}

impl Tests {
    /// Builds the programs in the copy, by the names of the groups: `lib` or a target of `dev`.
    pub(crate) fn build(copy: &Path, names: &BTreeSet<&str>) -> Self {
        let mut arguments: Vec<_> = ["test", "--no-run", "--workspace"].map(str::to_owned).into();
        arguments.extend(names.iter().map(|name| match *name {
            "lib" => "--lib".to_owned(),
            name => format!("--test={name}"),
        }));
        let mut programs = HashMap::new();
        for message in cargo(copy, &arguments) {
            let name = message["target"]["name"].as_str().unwrap_or_default();
            let name = if name == "tower_sluice" { "lib" } else { name };
            if let Some(program) = message["executable"].as_str().filter(|_| names.contains(name)) {
                programs.insert(name.to_owned(), PathBuf::from(program));
            }
        }
        assert_eq!(programs.len(), names.len(), "the programs are built: {programs:?}");
        Self { copy: copy.to_owned(), programs, ran: HashMap::new(), tests: Vec::new() }
    }

    /// Runs the tests of the modules, each alone and at most once, and returns them by duration.
    pub(crate) fn of(&mut self, modules: &[&str]) -> Vec<usize> {
        let mut found = Vec::new();
        for module in modules {
            let (program, module) = module.split_once("::").unwrap_or((module, ""));
            let path = self.programs[program].clone();
            let list = Command::new(&path).args(["--list", "--format=terse"]).output();
            let list = String::from_utf8(list.expect("the program runs").stdout).expect("text");
            let names = list.lines().filter_map(|line| line.strip_suffix(": test"));
            let within = |name: &&str| {
                module.is_empty()
                    || name.strip_prefix(module).is_some_and(|it| it.starts_with("::"))
            };
            for name in names.filter(within) {
                let key = (program.to_owned(), name.to_owned());
                if !self.ran.contains_key(&key) {
                    let index = self.record(&path, name);
                    self.ran.insert(key.clone(), index);
                }
                found.extend(self.ran[&key]);
            }
        }
        found.sort_by_key(|&test| self.tests[test].took);
        found
    }

    fn record(&mut self, program: &Path, name: &str) -> Option<usize> {
        let places = self.copy.with_file_name("places");
        fs::write(&places, "").expect("written");
        let start = Instant::now();
        let variable = ("MUTANT_PLACES", places.to_str().expect("text"));
        let verdict = self.run(program, &[name], variable, Duration::from_secs(120));
        if verdict != Verdict::Survived {
            println!("left out, because it fails without a change: {name}");
            return None;
        }
        let took = start.elapsed();
        let text = fs::read_to_string(&places).expect("text");
        let reached = text.lines().map(|line| line.parse().expect("a number")).collect();
        let program = program.to_owned();
        self.tests.push(Test { program, name: name.to_owned(), took, reached });
        Some(self.tests.len() - 1)
    }

    /// Runs the tests that reach the place with one change, in growing parts, the fastest first.
    pub(crate) fn judge(&self, place: u32, change: u32, tests: &[usize]) -> Verdict {
        let tests = tests.iter().map(|&test| &self.tests[test]);
        let mut all = Duration::ZERO;
        let in_time = |test: &&Test| {
            let is_first = all.is_zero();
            all += test.took;
            is_first || all <= ALL_RUNS
        };
        let reached = tests.filter(|test| test.reached.contains(&place));
        let mut left = reached.take_while(in_time).peekable();
        if left.peek().is_none() {
            return Verdict::Unreached;
        }
        let mut time = FIRST_RUN;
        while let Some(first) = left.next() {
            let (mut took, mut part) = (first.took, vec![first]);
            while let Some(next) = left.next_if(|next| took + next.took <= time) {
                took += next.took;
                part.push(next);
            }
            time *= 4;
            for program in self.programs.values() {
                let own = part.iter().filter(|test| test.program == *program);
                let names: Vec<_> = own.map(|test| &*test.name).collect();
                let limit = Duration::from_secs(10) + 10 * took;
                if names.is_empty() {
                    continue;
                }
                let verdict = self.run(program, &names, ("MUTANT", &change.to_string()), limit);
                if verdict != Verdict::Survived {
                    return verdict;
                }
            }
        }
        Verdict::Survived
    }

    fn run(
        &self,
        program: &Path,
        names: &[&str],
        (name, value): (&str, &str),
        limit: Duration,
    ) -> Verdict {
        let is_lib = self.programs.get("lib").is_some_and(|lib| lib == program);
        let folder = if is_lib { self.copy.clone() } else { self.copy.join("dev") };
        let mut command = Command::new(program);
        command.args(["--exact", "--test-threads=1"]).args(names).current_dir(folder);
        command.env(name, value).env("CARGO_TARGET_DIR", self.copy.with_file_name("build"));
        let streams = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut process = streams.spawn().expect("the program runs");
        let start = Instant::now();
        while start.elapsed() < limit {
            if let Some(status) = process.try_wait().expect("a process") {
                return if status.success() { Verdict::Survived } else { Verdict::Caught };
            }
            thread::sleep(Duration::from_millis(2));
        }
        process.kill().expect("a process");
        process.wait().expect("a process");
        Verdict::Late
    }
}

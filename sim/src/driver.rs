//! Runs seeds, and prints their results.

use std::{
    collections::VecDeque,
    env,
    fmt::{self, Display},
    num::NonZero,
    ops::Range,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use crate::world::{self, Report, Topic};

/// The seeds that found a violation once, each with its cause.
const FOUND: &str = include_str!("../seeds.txt");
/// The violations after which a run of many seeds ends.
const MOST: usize = 20;

/// The seeds after which the sums so far are printed.
const PROGRESS: usize = 1_000;

/// Parses `0..1000`.
pub fn range(text: &str) -> Option<Range<u64>> {
    let (first, end) = text.split_once("..")?;
    Some(first.parse().ok()?..end.parse().ok()?)
}

/// Runs one seed. Prints its story if `recorded`. A process runs no other seed: a run depends on
/// state of its process, such as a counter of tokio and the interned names of rules.
pub fn one(seed: u64, recorded: bool, topic: Topic) -> bool {
    let report = world::run(seed, recorded, topic);
    report.events.iter().for_each(|event| println!("{event}"));
    for violation in &report.violations {
        println!("seed {seed}: {violation}");
    }
    println!("{report}");
    report.violations.is_empty()
}

/// The last line of the run of one seed, which [`Runs`] parses.
impl Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { simulated, decisions, commands, faults, .. } = self;
        let simulated = simulated.as_millis();
        write!(
            f,
            "{simulated} ms simulated, {faults} faults, {decisions} decisions, {commands} commands"
        )
    }
}

/// Runs of seeds, each in a process of its own. Some run at a time; the results are in order.
pub struct Runs<I> {
    seeds: I,
    /// The arguments of each run.
    more: Vec<String>,
    running: VecDeque<(u64, Child)>,
}

impl<I: Iterator<Item = u64>> Runs<I> {
    pub fn new(seeds: I, more: Vec<String>) -> Self {
        Self { seeds, more, running: VecDeque::new() }
    }

    fn start(&self, seed: u64) -> (u64, Child) {
        let program = env::current_exe().expect("this program");
        let mut run = Command::new(program);
        run.args(["--seed", &seed.to_string()]).args(&self.more);
        (seed, run.stdout(Stdio::piped()).spawn().expect("a process starts"))
    }
}

impl<I: Iterator<Item = u64>> Iterator for Runs<I> {
    /// A seed, all lines of its run, and the sums of its last line.
    type Item = (u64, Report);

    fn next(&mut self) -> Option<Self::Item> {
        // More than there are cores, so that none waits for the result that is due.
        let most = 2 * thread::available_parallelism().map_or(1, NonZero::get);
        while self.running.len() < most
            && let Some(seed) = self.seeds.next()
        {
            self.running.push_back(self.start(seed));
        }
        let (seed, child) = self.running.pop_front()?;
        let output = child.wait_with_output().expect("a process ends");
        let text = String::from_utf8_lossy(&output.stdout);
        let (mut report, prefix) = (Report::default(), format!("seed {seed}: "));
        for line in text.lines() {
            match line.strip_prefix(&prefix) {
                Some(violation) => report.violations.push(violation.into()),
                None => report.events.push(line.into()),
            }
        }
        let last = report.events.pop().unwrap_or_default();
        let mut numbers = last.split_whitespace().filter_map(|word| word.parse().ok());
        let sums = [(); 4].map(|()| numbers.next());
        let [Some(millis), Some(faults), Some(decisions), Some(commands)] = sums else {
            report.violations.push(format!("no report: {}", output.status));
            return Some((seed, report));
        };
        report.simulated = Duration::from_millis(millis);
        (report.faults, report.decisions, report.commands) = (faults, decisions, commands);
        Some((seed, report))
    }
}

impl<I> Drop for Runs<I> {
    fn drop(&mut self) {
        for (_, mut child) in self.running.drain(..) {
            drop(child.kill());
            drop(child.wait());
        }
    }
}

fn found(topic: Topic) -> impl Iterator<Item = u64> {
    let seed = move |line: &'static str| match (topic, line.strip_prefix("sharing ")) {
        (Topic::Requests, None) => line.split_whitespace().next()?.parse().ok(),
        (Topic::Sharing, Some(line)) => line.split_whitespace().next()?.parse().ok(),
        _ => None,
    };
    FOUND.lines().filter_map(seed)
}

/// Runs many seeds, for at most some minutes of CPU time, or until the `first` violation. `more` are
/// further arguments of each run, such as `--trace`.
pub fn many(
    range: Range<u64>,
    minutes: Option<u64>,
    first: bool,
    topic: Topic,
    more: Vec<String>,
) -> bool {
    let (mut sum, mut ran, mut bad) = (Report::default(), 0_usize, 0_usize);
    let end = minutes.map(|minutes| Duration::from_secs(60 * minutes));
    for (seed, report) in Runs::new(found(topic).chain(range), more) {
        report.events.iter().for_each(|event| println!("{event}"));
        report.violations.iter().for_each(|violation| println!("seed {seed}: {violation}"));
        ran += 1;
        bad += usize::from(!report.violations.is_empty());
        sum.simulated += report.simulated;
        sum.decisions += report.decisions;
        sum.commands += report.commands;
        sum.faults += report.faults;
        if ran.is_multiple_of(PROGRESS) {
            print(ran, bad, &sum);
        }
        if bad >= if first { 1 } else { MOST } || end.is_some_and(|end| cpu_time() > end) {
            break;
        }
    }
    print(ran, bad, &sum);
    bad == 0
}

fn print(ran: usize, bad: usize, sum: &Report) {
    let Report { simulated, decisions, commands, faults, .. } = sum;
    let (simulated, spent) = (simulated.as_secs_f64(), cpu_time());
    let hours = simulated / 3_600.0;
    println!(
        "{ran} seeds: {bad} with violations; {hours:.1} h simulated, {faults} faults, {decisions} \
         decisions, {commands} commands",
    );
    let speed = simulated / spent.as_secs_f64();
    println!("{spent:.1?} of CPU time, {speed:.0} simulated seconds per second");
}

/// Returns the CPU time of this process and of the runs that ended, as Linux reports it. The clock
/// stands still: the source of randomness comes with a clock for another kind of simulation.
fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit_once(')').map(|(_, fields)| fields).unwrap_or_default();
    let ticks = fields.split_whitespace().skip(11).take(4);
    Duration::from_millis(10 * ticks.filter_map(|it| it.parse::<u64>().ok()).sum::<u64>())
}

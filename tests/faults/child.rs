//! An app in a process of its own.
//!
//! It is this program with an order as its argument. It prints its entries immediately, so that
//! they are known when it is killed.

use std::{
    env,
    io::{BufRead, BufReader, Read},
    process::{self, Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use serde::{Deserialize, Serialize};
use tower_sluice::decision::Source;

use crate::{
    app::{Plan, run},
    log::{Entry, Log, epoch},
};

/// The order to a child.
#[derive(Serialize, Deserialize)]
struct Order {
    plan: Plan,
    /// The start of the parent, in Unix time. The times of the order count from there.
    epoch: Duration,
}

/// The report of a child, one line each.
#[derive(Serialize, Deserialize)]
enum Line {
    Ready,
    Decision { key: u16, asked: i64, answered: i64, allowed: bool, source: String, at_once: bool },
    End { errors: std::collections::BTreeMap<String, u64>, answered: u64, lines: usize },
}

/// Runs in the child. Ends when its input ends.
pub(crate) fn obey(order: &str) {
    let order: Order = serde_json::from_str(order).expect("an order");
    let shift = micros(epoch()) - micros(order.epoch);
    let print = |line: &Line| println!("{}", serde_json::to_string(line).expect("JSON"));
    let stop = Arc::new(AtomicBool::new(false));
    let flag = stop.clone();
    thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        flag.store(true, Relaxed);
    });
    let log = run(
        &order.plan,
        &stop,
        || print(&Line::Ready),
        |entry| {
            let &Entry { key, asked, answered, allowed, source, at_once } = entry;
            let (asked, answered) = (micros(asked) + shift, micros(answered) + shift);
            let source = source.as_str().to_owned();
            print(&Line::Decision { key, asked, answered, allowed, source, at_once });
        },
    );
    print(&Line::End { errors: log.errors, answered: log.answered, lines: log.lines });
}

fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).expect("fits")
}

/// A running child.
pub(crate) struct Child {
    process: Mutex<process::Child>,
    reader: JoinHandle<Log>,
}

impl Child {
    /// Starts the child, and waits until it is connected.
    pub(crate) fn start(plan: Plan) -> Self {
        let name = plan.name.clone();
        let order = serde_json::to_string(&Order { plan, epoch: epoch() }).expect("JSON");
        let mut command = Command::new(env::current_exe().expect("this program"));
        command.args(["--child", &order]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().expect("a process");
        let mut lines = BufReader::new(process.stdout.take().expect("a pipe")).lines();
        let first = lines.next().expect("a line").expect("a line");
        assert!(matches!(serde_json::from_str(&first), Ok(Line::Ready)), "{first}");
        let read = move || {
            let mut log = Log::default();
            // The last line of a killed child may be incomplete.
            for line in lines.map_while(Result::ok) {
                match serde_json::from_str(&line) {
                    Ok(Line::End { errors, answered, lines }) => {
                        (log.errors, log.answered, log.lines) = (errors, answered, lines);
                    }
                    Ok(line) => log.entries.extend(entry(&line)),
                    Err(_) => {}
                }
            }
            log
        };
        let reader = thread::Builder::new().name(name).spawn(read).expect("a thread");
        Self { process: Mutex::new(process), reader }
    }

    /// Kills the child.
    pub(crate) fn kill(&self) {
        let mut process = self.process.lock().expect("no panic here");
        process.kill().expect("the process is killed");
        process.wait().expect("it ends");
    }

    /// Asks the child to end.
    pub(crate) fn stop(&self) {
        drop(self.process.lock().expect("no panic here").stdin.take());
    }

    pub(crate) fn log(self) -> Log {
        let log = self.reader.join().unwrap_or_default();
        self.process.into_inner().expect("no panic here").wait().expect("it ends");
        log
    }
}

fn entry(line: &Line) -> Option<Entry> {
    let Line::Decision { key, asked, answered, allowed, source, at_once } = line else {
        return None;
    };
    let time = |micros: &i64| Some(Duration::from_micros(u64::try_from(*micros).ok()?));
    let known = [Source::Redis, Source::Fallback, Source::FailedOpen, Source::FailedClosed];
    let source = known.into_iter().find(|known| known.as_str() == source)?;
    let (asked, answered) = (time(asked)?, time(answered)?);
    Some(Entry { key: *key, asked, answered, allowed: *allowed, source, at_once: *at_once })
}

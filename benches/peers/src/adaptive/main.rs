//! Adaptive limits under overload: axum with CPU-bound work, driven over loopback at multiples of its
//! capacity.
//!
//! `cargo run --release --features adaptive --manifest-path benches/peers/Cargo.toml --bin adaptive
//! [SECONDS] [SUBJECT]` prints goodput and p99 of each subject in each phase. Clients do not wait for
//! each other (open loop), because a closed loop such as that of `wrk` sends no more than the server
//! answers. Requires Linux.

mod load;
mod server;
#[path = "../versions.rs"]
mod versions;

use std::{
    io::{BufRead, BufReader},
    net::SocketAddr,
    process::{Child, Command, ExitCode, Stdio},
    thread,
    time::Duration,
};

use load::{Figures, Load};
use server::Subject;

/// The phases of a run: a title, and the load in parts of the capacity.
const PHASES: [(&str, Load); 7] = [
    ("0.7 ×", Load::of(0.7)),
    ("1 ×", Load::of(1.0)),
    ("2 ×", Load::of(2.0)),
    ("5 ×", Load::of(5.0)),
    ("2 ×, 32 slow readers", Load { slow: 32, ..Load::of(2.0) }),
    ("2 ×, 5 % answer 503", Load { broken: 0.05, ..Load::of(2.0) }),
    ("0.7 × again", Load::of(0.7)),
];
/// The time that a limit has to settle in each phase.
const SETTLING: Duration = Duration::from_secs(4);

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let words: Vec<_> = arguments.iter().map(String::as_str).collect();
    let number = |word: &str| word.parse().expect("whole seconds, then the start of a subject");
    let (seconds, only) = match words.as_slice() {
        ["serve", subject] => {
            server::serve(Subject::named(subject));
            return ExitCode::SUCCESS;
        }
        [] => (10, ""),
        [seconds] => (number(seconds), ""),
        [seconds, only] => (number(seconds), *only),
        _ => panic!("give seconds and the start of a subject, or nothing"),
    };
    let time = Duration::from_secs(seconds);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let bare = Running::start(Subject::Bare);
    let capacity = runtime.block_on(load::capacity(bare.address, time / 2));
    let idle = Load::of(0.2);
    let unloaded = runtime.block_on(load::run(bare.address, idle, capacity, SETTLING, time));
    drop(bare);
    println!(
        "{}\n\n{seconds} s a phase after {} s to settle; capacity {capacity:.0} requests per second; \
         unloaded p50 {:.1} ms, p99 {:.1} ms\n",
        versions::line(&["tower-sluice", "tower-acc", "tower-resilience-adaptive"]),
        SETTLING.as_secs(),
        unloaded.percentile(0.5) * 1e3,
        unloaded.percentile(0.99) * 1e3,
    );
    let mut rows = Vec::new();
    for subject in Subject::ALL.into_iter().filter(|it| it.title().starts_with(only)) {
        let server = Running::start(subject);
        let warm = load::run(server.address, Load::of(0.7), capacity, SETTLING, SETTLING);
        runtime.block_on(warm);
        let mut figures = Vec::new();
        for (title, load) in PHASES {
            let run = load::run(server.address, load, capacity, SETTLING, time);
            figures.push(runtime.block_on(run));
            eprintln!("{}, {title}: {}", subject.title(), figures[figures.len() - 1]);
            // Requests of the last phase end.
            thread::sleep(Duration::from_secs(1));
        }
        rows.push((subject, figures));
    }
    let p99 = unloaded.percentile(0.99);
    table("Goodput, in % of the capacity", &rows, |it| {
        format!("{:.0}", it.goodput() / capacity * 100.0)
    });
    table("p99 of the requests that were served, of the unloaded p99", &rows, |it| {
        if it.latencies.len() < 100 {
            return "–".to_owned();
        }
        format!("{:.1}", it.percentile(0.99) / p99)
    });
    table("Requests without a good answer, in %", &rows, |it| format!("{:.1}", it.lost() * 100.0));
    ExitCode::SUCCESS
}

fn table(title: &str, rows: &[(Subject, Vec<Figures>)], show: impl Fn(&Figures) -> String) {
    println!("### {title}\n");
    println!("| | {} |", PHASES.map(|(title, _)| title).join(" | "));
    println!("|---|{}", "---|".repeat(PHASES.len()));
    for (subject, figures) in rows {
        let cells: Vec<_> = figures.iter().map(&show).collect();
        println!("| {} | {} |", subject.title(), cells.join(" | "));
    }
    println!();
}

/// A server in its own process, on core 0 if possible. It stops when this value is dropped.
struct Running {
    process: Child,
    address: SocketAddr,
}

impl Running {
    fn start(subject: Subject) -> Self {
        let itself = std::env::current_exe().expect("this program");
        let mut command = match Command::new("taskset").arg("--version").output() {
            Ok(_) => Command::new("taskset"),
            Err(_) => Command::new("env"),
        };
        if command.get_program() == "taskset" {
            command.args(["-c", "0"]);
        }
        command.arg(itself).args(["serve", subject.title()]);
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().expect("it starts");
        let mut port = String::new();
        let stdout = process.stdout.take().expect("a pipe");
        BufReader::new(stdout).read_line(&mut port).expect("it prints its port");
        let port: u16 = port.trim().parse().expect("a port");
        Self { process, address: SocketAddr::from(([127, 0, 0, 1], port)) }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

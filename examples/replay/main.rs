//! Replays access logs: which requests would these limits have denied, and which limits would have
//! denied none? `cargo run -p dev --example replay -- --rule 'name=ip key=peer quota="5/s burst
//! 10"' access.log`
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod calls;
mod entry;
mod least;
mod log;
#[path = "../support/rule.rs"]
mod rule;
mod simulate;
mod tally;
mod top;

use std::{
    io::{self, BufWriter, Write},
    path::PathBuf,
    process::ExitCode,
};

use clap::{CommandFactory, Parser, error::ErrorKind};
use tower_sluice::{ClientIp, LocalStore, RateLimitLayer};

use crate::{
    calls::Calls,
    log::Log,
    rule::{AnyKey, RuleFlag},
    simulate::Simulator,
    tally::Tally,
};

const EXAMPLES: &str = r#"Examples:
  each address 5 per second, with a burst of 10:
    replay --rule 'name=ip key=peer quota="5/s burst 10"' access.log
  each client of a proxy; the log ends in "$http_x_forwarded_for":
    replay --trusted-proxy 10.0.0.0/8 --rule 'name=ip key=client quota=5/s' access.log
  without the requests of a monitor:
    grep -v '^203\.0\.113\.9 ' access.log | replay --rule 'name=ip key=peer quota=5/s' -
  compressed logs, oldest first (a plain * would sort .10 between .1 and .2):
    ls -tr access.log.*.gz | xargs zcat | replay --rule 'name=ip key=peer quota=5/s' -

A rule has the form of the example gateway, whose --help lists the fields. Its keys are those in a
log: peer, client, everyone, header:user-agent, header:referer, and header:x-remote-user, which is
the user of the log.

A log is in the common or combined format of Apache and nginx. The virtual host may come first, and
"$http_x_forwarded_for" may follow the agent. Times are in whole seconds, so all requests of one
second count as simultaneous: the smallest burst may be too large, by at most one second's requests.
A line earlier than a previous line counts at the time of that line.

Memory holds the accounts of --capacity keys twice: 10 MB for gcra. The smallest limit of a
sliding_log takes up to 160 kB more per key.

Exits with 0, with 1 if a file cannot be read, and with 2 if a flag is invalid."#;

/// Reads access logs, and reports the requests that the rules would have limited, and the smallest
/// burst that would have limited none.
#[derive(Parser)]
#[command(name = "replay", after_help = EXAMPLES)]
struct Flags {
    /// A limit, as below; may be repeated
    #[arg(long, value_name = "RULE", default_value = r#"name=ip key=peer quota="5/s burst 10""#)]
    rule: Vec<RuleFlag>,
    /// A trusted proxy, whose x-forwarded-for is used for key=client; may be repeated
    #[arg(long, value_name = "CIDR")]
    trusted_proxy: Vec<String>,
    /// Maximum number of keys in debt at a time
    #[arg(long, value_name = "N", default_value = "131072",
        value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    capacity: u32,
    /// Number of keys to name for each rule
    #[arg(long, value_name = "N", default_value = "10",
        value_parser = clap::value_parser!(u16).range(0..=1_000))]
    top: u16,
    /// Print the peak memory (on Linux)
    #[arg(long, hide = true)]
    peak: bool,
    /// The logs, in the order of time; - is standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
}

fn main() -> ExitCode {
    let flags = Flags::parse();
    let replayed = match replay(&flags) {
        Ok(replayed) => replayed,
        Err(Wrong::Flag(text)) => Flags::command().error(ErrorKind::ValueValidation, text).exit(),
        Err(Wrong::File(text)) => {
            eprintln!("error: {text}");
            return ExitCode::FAILURE;
        }
    };
    let mut out = BufWriter::new(io::stdout().lock());
    let written = replayed.tally.print(&replayed.simulator, flags.top.into(), &mut out);
    match written.and_then(|()| out.flush()) {
        // The reader of the output may have closed it.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            eprintln!("error: the report cannot be written: {error}");
            return ExitCode::FAILURE;
        }
        _ => {}
    }
    if flags.peak
        && let Ok(status) = std::fs::read_to_string("/proc/self/status")
        && let Some(peak) = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))
    {
        eprintln!("peak: {}", peak.trim());
    }
    ExitCode::SUCCESS
}

enum Wrong {
    Flag(String),
    File(String),
}

struct Replayed {
    tally: Tally,
    simulator: Simulator<Rules>,
}

fn replay(flags: &Flags) -> Result<Replayed, Wrong> {
    let client = match &flags.trusted_proxy[..] {
        [] => None,
        proxies => Some(ClientIp::behind(proxies).map_err(|error| Wrong::Flag(error.to_string()))?),
    };
    let mut calls = Calls::of(&flags.rule).map_err(Wrong::Flag)?;
    let mut tally = Tally::of(&flags.rule, client.as_ref()).map_err(Wrong::Flag)?;
    let rules = checked(&flags.rule, client.as_ref()).map_err(Wrong::Flag)?;
    let mut simulator = Simulator::new(rules, flags.capacity as usize);
    // All are opened first, so that a wrong name fails early.
    let logs = flags.files.iter().map(|path| Log::open(path)).collect::<Result<Vec<_>, _>>();
    for log in logs.map_err(Wrong::File)? {
        let read = log.read(|place, line| {
            tally.lines += 1;
            match line.map_err(|reason| (reason, &[][..])).and_then(|line| calls.read(line)) {
                Ok(call) => tally.note(&call, &simulator.decide(&call)),
                Err(fault) => tally.fault(place, fault),
            }
        });
        read.map_err(Wrong::File)?;
    }
    Ok(Replayed { tally, simulator })
}

type Rules = Vec<tower_sluice::Rule<AnyKey>>;

/// Builds the rules, which must be valid in a layer.
fn checked(rules: &[RuleFlag], client: Option<&ClientIp>) -> Result<Rules, String> {
    let build = || rules.iter().map(|flag| flag.rule(client)).collect::<Result<Rules, _>>();
    let layer = RateLimitLayer::try_rules(build()?, LocalStore::with_capacity(1));
    drop(layer.map_err(|error| error.to_string())?);
    build()
}

//! Replays access logs: which requests would these limits have denied, and which limits would have
//! denied none? `cargo run -p dev --example replay -- --rule 'name=ip key=peer quota="5/s burst
//! 10"' access.log`
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod bursts;
mod calls;
mod course;
mod entry;
mod except;
mod leaps;
mod least;
mod lines;
mod log;
mod notes;
mod print;
mod report;
#[path = "../support/rule.rs"]
mod rule;
mod simulate;
mod tally;
mod top;

use std::{
    collections::VecDeque,
    io::{self, BufWriter, Write},
    path::PathBuf,
    process::ExitCode,
};

use clap::{CommandFactory, Parser, error::ErrorKind};
use tower_sluice::{ClientIp, LocalStore, Quota, RateLimitLayer, fingerprint::FingerprintKey};

use crate::{
    bursts::Bursts,
    calls::Calls,
    except::Except,
    least::SmallestBurst,
    log::Log,
    report::Report,
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
    replay --except 203.0.113.9 --rule 'name=ip key=peer quota=5/s' access.log
  compressed logs, oldest first (a plain * would sort .10 between .1 and .2):
    ls -tr access.log.*.gz | xargs zcat | replay --rule 'name=ip key=peer quota=5/s' -

A rule has the form of the example gateway, whose --help lists the fields. Its keys are those in a
log: peer, client, everyone, header:user-agent, header:referer, and header:x-remote-user, which is
the user of the log.

A log is in the common or combined format of Apache and nginx. The virtual host may come first, and
"$http_x_forwarded_for" may follow the agent. Times are in whole seconds, so all requests of one
second count as simultaneous: the smallest burst may be too large, by at most one second's requests.

A line more than a day ahead of all previous lines, such as the first one, counts if the next
readable line confirms its time with an equal or later one. Otherwise the time is wrong, and the
line is malformed, unless it is the only one. A line earlier than a previous line counts at the time
of that line.

Memory holds the accounts of --capacity keys twice: 10 MB for gcra. The table of bursts holds up to
eight times as many. The smallest limit of a sliding_log takes up to 160 kB more per key.

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
    /// A key that is exempt from all rules, as the report shows it; may be repeated
    #[arg(long, value_name = "KEY")]
    except: Vec<String>,
    /// Maximum number of keys in debt at a time
    #[arg(long, value_name = "N", default_value = "131072",
        value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    capacity: u32,
    /// Number of keys to name for each rule
    #[arg(long, value_name = "N", default_value = "10",
        value_parser = clap::value_parser!(u16).range(0..=1_000))]
    top: u16,
    /// Show keys as fingerprints, which differ between runs
    #[arg(long)]
    anonymous: bool,
    /// Write the report as JSON
    #[arg(long)]
    json: bool,
    /// Print the peak memory (on Linux)
    #[arg(long, hide = true)]
    peak: bool,
    /// The logs, in the order of time; - is standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
}

fn main() -> ExitCode {
    let flags = Flags::parse();
    let report = match replay(&flags) {
        Ok(report) => report,
        Err(Wrong::Flag(text)) => Flags::command().error(ErrorKind::ValueValidation, text).exit(),
        Err(Wrong::File(text)) => {
            eprintln!("error: {text}");
            return ExitCode::FAILURE;
        }
    };
    let mut out = BufWriter::new(io::stdout().lock());
    let written = if flags.json {
        serde_json::to_writer_pretty(&mut out, &report).map_err(io::Error::from)
    } else {
        print::print(&report, &mut out)
    };
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

type Rules = Vec<tower_sluice::Rule<AnyKey>>;

fn replay(flags: &Flags) -> Result<Report, Wrong> {
    let client = match &flags.trusted_proxy[..] {
        [] => None,
        proxies => Some(ClientIp::behind(proxies).map_err(|error| Wrong::Flag(error.to_string()))?),
    };
    let mut calls = Calls::of(&flags.rule).map_err(Wrong::Flag)?;
    let mut tally = Tally::of(&flags.rule, client.as_ref()).map_err(Wrong::Flag)?;
    let except = Except::of(&flags.except, &flags.rule, client.as_ref()).map_err(Wrong::Flag)?;
    let (capacity, client) = (flags.capacity as usize, client.as_ref());
    let simulator = |rules: &[RuleFlag]| {
        checked(rules, client).map(|rules| Simulator::new(rules, capacity)).map_err(Wrong::Flag)
    };
    let mut simulated = simulator(&flags.rule)?.measure(capacity);
    let mut logs = Log::open_all(&flags.files).map_err(Wrong::File)?;

    calls
        .read_all(&mut logs, "reading", |file, number, call| {
            tally.lines.all += 1;
            match call {
                Ok(call) if except.has(&call) => tally.excepted += 1,
                Ok(call) => tally.note(&call, &simulated.decide(&call)),
                Err(fault) => tally.lines.fault(file, number, fault),
            }
        })
        .map_err(Wrong::File)?;

    let secret = flags.anonymous.then(FingerprintKey::random);
    let found = simulated.least().to_vec();
    let mut report = Report::new(tally, flags.top.into(), secret.as_ref());
    report.overflowed = simulated.stats().overflowed;
    report.overflowed_in_least = simulated.least_stats().map_or(0, |stats| stats.overflowed);
    report.least(&found);
    drop(simulated);
    if let Some(rules) = with(&flags.rule, &found)
        && Log::rewind_all(&mut logs).map_err(Wrong::File)?
    {
        let mut simulated = simulator(&rules)?;
        let bursts = Bursts::of(&flags.rule, &found, client, capacity);
        let mut bursts = bursts.map_err(Wrong::Flag)?;
        let mut limited = 0;
        calls
            .read_all(&mut logs, "checking", |_, _, call| {
                let Some(call) = call.ok().filter(|call| !except.has(call)) else { return };
                limited += u64::from(simulated.decide(&call).is_limited());
                bursts.iter_mut().for_each(|bursts| bursts.note(&call));
            })
            .map_err(Wrong::File)?;
        report.bursts = bursts.into_iter().map(Bursts::table).collect();
        report.limited_with_least = Some(limited);
        report.overflowed_with_least = simulated.stats().overflowed;
    }
    report.notes = notes::notes(&report);
    Ok(report)
}

/// Builds the rules, which must be valid in a layer.
fn checked(rules: &[RuleFlag], client: Option<&ClientIp>) -> Result<Rules, String> {
    let build = || rules.iter().map(|flag| flag.clone().rule(client)).collect::<Result<Rules, _>>();
    let layer = RateLimitLayer::try_rules(build()?, LocalStore::with_capacity(1));
    drop(layer.map_err(|error| error.to_string())?);
    build()
}

/// Returns the rules with the smallest limits, if every quota has one. `found` is in the order of
/// the rules and of their quotas.
fn with(rules: &[RuleFlag], found: &[SmallestBurst]) -> Option<Vec<RuleFlag>> {
    let mut quotas = found.iter().map(SmallestBurst::quota).collect::<Option<VecDeque<Quota>>>()?;
    let changed = |flag: &RuleFlag| {
        let mut flag = flag.clone();
        flag.quotas = quotas.drain(..flag.quotas.len().min(quotas.len())).collect();
        flag
    };
    Some(rules.iter().map(changed).collect())
}

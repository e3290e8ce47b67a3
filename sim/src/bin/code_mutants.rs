//! Changes of the crate's code, one at a time, which the simulation has to find.
//!
//! A copy of the repository contains all changes, and a variable of the environment chooses one. The
//! copy is built once.

use std::{
    fs, io,
    path::Path,
    process::{Command, ExitCode},
};

use sim::option;

/// The variable that chooses a change, by its number in the list.
const VARIABLE: &str = "SIM_CODE_MUTANT";

/// A changed expression in a file of `src`, and the reason if no seed finds it.
struct Change {
    file: &'static str,
    from: &'static str,
    to: &'static str,
    reason: Option<&'static str>,
}

const fn of(file: &'static str, from: &'static str, to: &'static str) -> Change {
    Change { file, from, to, reason: None }
}

const fn unseen(
    file: &'static str,
    from: &'static str,
    to: &'static str,
    reason: &'static str,
) -> Change {
    Change { file, from, to, reason: Some(reason) }
}

static CHANGES: [Change; 25] = [
    of(
        "store/timeout.rs",
        "sleep(this.budget.saturating_sub(this.start.elapsed()))",
        "sleep(*this.budget * 2)",
    ),
    of(
        "store/breaker/circuit.rs",
        "word & STATE == OPEN
            && self.word.compare_exchange(word, probing, AcqRel, Acquire).is_ok()",
        "false",
    ),
    of(
        "store/breaker/circuit.rs",
        "self.word.compare_exchange(word, open, AcqRel, Acquire).is_ok()",
        "false",
    ),
    of("store/breaker/circuit.rs", "self.config.trips(&history.stats, now)", "true"),
    of("store/fallback/mod.rs", "quota.share(instances)", "*quota"),
    unseen(
        "store/fallback/mod.rs",
        "self.mirror(charges, decision, 0)",
        "()",
        "no bound covers the units that a key has left at the start of an outage",
    ),
    of(
        "store/deny_cache/account.rs",
        "called_at.saturating_add(retry.min(max_age))",
        "called_at.saturating_add(max_age)",
    ),
    unseen(
        "store/deny_cache/mod.rs",
        "self.denials.invalidate(tag)",
        "()",
        "a denial that is out of date lasts for at most a second, which the checks permit",
    ),
    of(
        "store/leases/balance.rs",
        "u32::try_from(left / interval).unwrap_or(u32::MAX)",
        "u32::try_from(left / interval).unwrap_or(u32::MAX) + 1",
    ),
    of(
        "store/leases/balance.rs",
        "*from = (*from).max(now) + *interval * u64::from(units)",
        "*from = (*from).max(now)",
    ),
    of("store/leases/lease.rs", "charge.cost() <= balance.units(at)", "true"),
    of("store/leases/table.rs", "lease.age(now) < max_age", "true"),
    of("store/redis/batch/mod.rs", "*position < group.allowed", "*position <= group.allowed"),
    of("store/redis/protocol/call.rs", "error.kind() == Raw::Server(Server::NoScript)", "false"),
    of(
        "store/redis/connection/link.rs",
        r#"matches!(code(error), Some("READONLY" | "MASTERDOWN" | "NOAUTH"))"#,
        "false",
    ),
    of("store/redis/connection/watchdog.rs", "silent >= MAX_SILENCE.as_millis()", "false"),
    of(
        "store/redis/cluster/fan_out.rs",
        "reply.as_ref().ok().filter(|_| !allowed)",
        "reply.as_ref().ok()",
    ),
    of(
        "store/redis/cluster/fan_out.rs",
        "replies.iter().all(|reply| reply.allowed)",
        "replies.iter().any(|reply| reply.allowed)",
    ),
    of("store/redis/cluster/mod.rs", "asking = kind == Server::Ask", "asking = false"),
    of(
        "store/redis/cluster/mod.rs",
        "self.routes.refresh()?;
                    return Err(error)",
        "return Err(error)",
    ),
    of(
        "middleware/future.rs",
        "tokio::time::sleep(queued.wait())",
        "tokio::time::sleep(std::time::Duration::ZERO)",
    ),
    of("middleware/queue.rs", "self.store.undo(charges, decision, None)", "()"),
    of(
        "store/deny_cache/account.rs",
        "account.need > self.need && (self.blocked || self.refilling)",
        "account.need != self.need",
    ),
    of("algorithm/concurrent.rs", "held.saturating_add(need) <= raised", "held <= raised"),
    of("store/local/held.rs", "entry.held.saturating_sub(units)", "entry.held"),
];

/// Runs seeds against each change: `code_mutants [--most 10000] [--mutant N] [--jobs 1]`.
fn main() -> ExitCode {
    let (most, only) = (option("--most").unwrap_or(10_000_u64), option::<usize>("--mutant"));
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let copy = here.join("target/code-mutants");
    if let Err(error) = write(&here.join(".."), &copy) {
        println!("{}: {error}", copy.display());
        return ExitCode::FAILURE;
    }
    let manifest = copy.join("sim/Cargo.toml");
    let cargo = || {
        let mut cargo = Command::new("cargo");
        cargo.args(["build", "--release", "--locked", "--bin", "sim", "--manifest-path"]);
        cargo.arg(&manifest).arg("--target-dir").arg(here.join("target/code-mutants-build"));
        cargo
    };
    if !cargo().status().is_ok_and(|status| status.success()) {
        return ExitCode::FAILURE;
    }
    let program = here.join("target/code-mutants-build/release/sim");
    println!("| file | changed to | found by seed | as |\n|---|---|---|---|");
    let mut well = true;
    for (at, change) in CHANGES.iter().enumerate() {
        if only.is_some_and(|only| only != at) {
            continue;
        }
        let range = format!("0..{most}");
        let run = Command::new(&program)
            .args(["--seeds", &range, "--first"])
            .env(VARIABLE, at.to_string())
            .output();
        let text = run.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
        let text = text.unwrap_or_default();
        let found = text.lines().find_map(|line| line.strip_prefix("seed ")?.split_once(": "));
        let (seed, violation) = match (found, change.reason) {
            (Some(found), _) => found,
            (None, Some(reason)) => ("none", reason),
            (None, None) => {
                well = false;
                ("NONE", "not found")
            }
        };
        let what = violation.split(':').next().unwrap_or_default();
        println!("| {} | `{}` | {seed} | {what} |", change.file, change.to.replace('\n', " "));
    }
    if well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Copies the repository and inserts all changes.
fn write(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for part in ["Cargo.toml", "README.md", "src", "lua", "sim", "tests/scenarios"] {
        copy(&from.join(part), &to.join(part))?;
    }
    let manifest = fs::read_to_string(to.join("Cargo.toml"))?;
    // The package alone: its other members are not copied.
    let kept = manifest.lines().filter(|line| !line.starts_with("members = "));
    fs::write(to.join("Cargo.toml"), kept.map(|line| format!("{line}\n")).collect::<String>())?;
    for (at, Change { file, from, to: new, .. }) in CHANGES.iter().enumerate() {
        let path = to.join("src").join(file);
        let text = fs::read_to_string(&path)?;
        if text.matches(from).count() != 1 {
            return Err(io::Error::other(format!("{file} has `{from}` not once")));
        }
        let chosen = format!("(if crate::is_mutant({at}) {{ {new} }} else {{ {from} }})");
        fs::write(&path, text.replace(from, &chosen))?;
    }
    let root = to.join("src/lib.rs");
    let text = fs::read_to_string(&root)?;
    let chosen = format!(
        "\npub(crate) fn is_mutant(number: u32) -> bool {{\n    \
         static CHOSEN: std::sync::OnceLock<Option<u32>> = std::sync::OnceLock::new();\n    \
         let read = || std::env::var(\"{VARIABLE}\").ok()?.parse().ok();\n    \
         *CHOSEN.get_or_init(read) == Some(number)\n}}\n"
    );
    fs::write(root, text + &chosen)
}

/// Copies a file or a folder, without the results of builds.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    if !from.is_dir() {
        return fs::copy(from, to).map(drop);
    }
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        if entry.file_name() != "target" {
            copy(&entry.path(), &to.join(entry.file_name()))?;
        }
    }
    Ok(())
}

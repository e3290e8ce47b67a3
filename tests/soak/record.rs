//! Samples over time, and the check for drift.

use std::{fmt::Write, time::Duration};

use crate::load::STEADY;

const MIB: u64 = 1 << 20;

/// One sample.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    pub(crate) elapsed: Duration,
    pub(crate) decisions: u64,
    pub(crate) errors: u64,
    /// Units of the steady key with the most units, and of the one with the fewest.
    pub(crate) most: u64,
    pub(crate) least: u64,
    /// Bytes of this process, and of the server.
    pub(crate) resident: u64,
    pub(crate) server: u64,
}

/// A whole run.
#[derive(Debug)]
pub(crate) struct Course {
    /// The last sample was taken when no steady key had units left.
    pub(crate) samples: Vec<Sample>,
    /// The time from the first request of all keys to the start of draining them.
    pub(crate) sure: Duration,
    /// The longest time between two requests of a key.
    pub(crate) pause: Duration,
}

/// Returns the units that the quota admits in this time: its burst, and a unit per interval.
fn allowed(elapsed: Duration) -> u64 {
    let units = elapsed.as_nanos() / STEADY.interval().as_nanos();
    u64::from(STEADY.limit()) + u64::try_from(units).expect("fits")
}

fn peak(samples: &[Sample], bytes: impl Fn(&Sample) -> u64) -> u64 {
    samples.iter().map(bytes).max().unwrap_or(0)
}

impl Course {
    /// Formats a line for each tenth of the samples.
    pub(crate) fn table(&self) -> String {
        let mut table = String::from(
            "| minutes | decisions | errors | allowed of a key | most admitted | least admitted | \
             process, KiB | server, KiB |\n| --- | --- | --- | --- | --- | --- | --- | --- |\n",
        );
        for tenth in self.samples.chunks(self.samples.len().div_ceil(10)) {
            let Some(last) = tenth.last() else { continue };
            let minutes = last.elapsed.as_secs_f64() / 60.0;
            let Sample { decisions, errors, most, least, .. } = last;
            let resident = peak(tenth, |sample| sample.resident) / 1_024;
            let server = peak(tenth, |sample| sample.server) / 1_024;
            let allowed = allowed(last.elapsed);
            let numbers = format!("{decisions} | {errors} | {allowed} | {most} | {least}");
            writeln!(table, "| {minutes:.1} | {numbers} | {resident} | {server} |")
                .expect("a string takes all");
        }
        table
    }

    /// Returns the faults of the run.
    pub(crate) fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        let over = self.samples.iter().find(|sample| sample.most > allowed(sample.elapsed));
        faults.extend(over.map(|sample| format!("more was admitted than allowed: {sample:?}")));
        let last = self.samples.last().expect("a sample");
        let (due, pause) = (allowed(self.sure) - 1, self.pause);
        if last.least < due {
            let least = last.least;
            faults.push(format!("{least} of {due} were admitted; requests paused for {pause:?}"));
        }
        if last.errors > 0 {
            faults.push(format!("{} decisions failed", last.errors));
        }
        faults.extend(self.grows("process", |sample| sample.resident));
        faults.extend(self.grows("server", |sample| sample.server));
        faults
    }

    /// The first third warms up. The second third is compared with the last.
    fn grows(&self, what: &str, bytes: impl Fn(&Sample) -> u64) -> Option<String> {
        let third = self.samples.len() / 3;
        let before = peak(&self.samples[third..2 * third], &bytes);
        let after = peak(&self.samples[2 * third..], &bytes);
        let grown = after > before + before / 20 + MIB;
        grown.then(|| format!("the memory of the {what} grows: {before} bytes, then {after}"))
    }
}

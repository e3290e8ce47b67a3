//! Bursts of one key on a healthy Redis.

use std::time::Duration;

use crate::{
    busy_key::{Bursts, POLICIES, Policy, WRAPPERS},
    control::Control,
    fault::Fault,
    options::Options,
    row::Row,
    rule_kinds::Kind,
};

/// The time for which a request holds its slot.
const HOLD: Duration = Duration::from_millis(300);

pub(crate) fn faults() -> Vec<Fault> {
    const HOLDS: &str = "no visible effect, and the limit is never exceeded";
    const NAMES: [[&str; 3]; 3] = [
        ["burst of 200, fail open", "burst of 500, fail open", "burst of 2048, fail open"],
        ["burst of 200, fail closed", "burst of 500, fail closed", "burst of 2048, fail closed"],
        ["burst of 200, fallback", "burst of 500, fallback", "burst of 2048, fallback"],
    ];
    let mut faults = Vec::new();
    for (policy, names) in POLICIES.into_iter().zip(NAMES) {
        for (name, callers) in names.into_iter().zip([200, 500, 2_048]) {
            let play =
                async move |options: &Options, row| burst(options, row, policy, callers).await;
            faults.push(Fault::other(name, HOLDS, play));
        }
    }
    faults
}

/// Three bursts of each case behind all wrappers.
async fn burst(options: &Options, mut row: Row, policy: Policy, callers: u32) -> Row {
    let server = options.server().await;
    let control = Control::default();
    drop(tokio::spawn(control.clone().watch()));
    let (mut plays, mut others, mut most_calls, mut slowest) = (0, 0, 0, Duration::ZERO);
    for wrappers in WRAPPERS {
        let bursts = Bursts { policy, wrappers, callers, bursts: 3, hold: HOLD };
        for kind in Kind::all() {
            let figures = bursts.play(&server, kind).await;
            let broken = figures.broken().into_iter();
            row.broken.extend(broken.map(|what| format!("{kind:?}, {wrappers:?}: {what}")));
            for (source, count) in figures.sources {
                *row.sources.entry(source).or_default() += count;
            }
            plays += 1;
            others += figures.others;
            most_calls = most_calls.max(figures.calls);
            slowest = slowest.max(figures.slowest);
        }
    }
    control.end();
    let (stalls, lag) = control.seen();
    row.lag = lag;
    if let Some(longest) = stalls.into_iter().map(|(from, to)| to - from).max() {
        // Repeat a broken row on a quiet machine: the timeout is 50 ms.
        row.notes.push(format!("the machine stalled for up to {longest:.0?}"));
    }
    row.notes.push(format!(
        "{plays} times three bursts: up to {most_calls} calls, the slowest decision after \
         {slowest:.0?}; {others} requests for other keys",
    ));
    row
}

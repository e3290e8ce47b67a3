//! Queued requests of a paced window that are cancelled.
//!
//! The charge of a cancelled request is undone if no other request waits behind it. The remaining
//! requests never run closer together than the quota allows. For GCRA, this follows from
//! `rules::definition`.

use std::time::Duration;

use proptest::{collection::vec, prelude::*, test_runner::Config};
use tower_sluice::{
    Algorithm, Decision, Key, LocalStore, Quota, Store, StoreExt, rule::RuleName, store::Charge,
    testing::FakeClock,
};

use crate::support::driven::{millis, secs};

#[derive(Clone, Debug)]
enum Step {
    Pass(u64),
    Queue(u32),
    /// Cancels one of the queued requests, counted from the newest.
    Leave(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (1..4_u32).prop_map(Step::Queue),
        3 => prop_oneof![Just(0_usize), 0..8_usize].prop_map(Step::Leave),
        2 => prop_oneof![0..300_000_000_u64, 0..3_000_000_000_u64].prop_map(Step::Pass),
    ];
    vec(step, 1..60)
}

/// One run of a handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Run {
    at: Duration,
    cost: u32,
    queued: bool,
}

/// Runs the handlers of requests that queue and are cancelled at random, and returns the runs in
/// order.
fn runs(
    clock: &FakeClock,
    store: &LocalStore,
    key: &Key,
    quota: Quota,
    steps: &[Step],
) -> Vec<Run> {
    let quotas = [quota];
    let charge = Charge::new(RuleName::default(), key, &quotas).with_max_wait(secs(30));
    let (mut waiting, mut ran): (Vec<(Run, Decision)>, Vec<Run>) = Default::default();
    for step in steps {
        match *step {
            Step::Pass(nanos) => clock.advance(Duration::from_nanos(nanos)),
            Step::Queue(cost) => {
                let taken = store.take(&[charge.with_cost(cost)]).now();
                if taken.is_allowed() {
                    let (at, queued) = (clock.now() + taken.wait(), !taken.wait().is_zero());
                    waiting.push((Run { at, cost, queued }, taken));
                }
            }
            Step::Leave(nth) => {
                let at = waiting.len().checked_sub(nth + 1);
                if let Some(at) = at.filter(|at| waiting[*at].0.at > clock.now()) {
                    let (run, taken) = waiting.remove(at);
                    store.undo(&[charge.with_cost(run.cost)], &taken, None);
                }
            }
        }
        let now = clock.now();
        ran.extend(waiting.extract_if(.., |(run, _)| run.at <= now).map(|(run, _)| run));
    }
    ran.extend(waiting.into_iter().map(|(run, _)| run));
    ran.sort_unstable();
    ran
}

/// A store of one set in which all slots are in debt for a long time, so that other keys share an
/// account.
fn full(clock: &FakeClock) -> LocalStore {
    let day = Quota::per_day(1).with_algorithm(Algorithm::fixed_window());
    let store = clock.store(1);
    for key in 0..64_u32 {
        let key = Key::from(key);
        let filler = RuleName::new("filler").expect("a name");
        drop(store.take(&[Charge::new(filler, &key, day.as_ref())]));
    }
    store
}

proptest! {
    #![proptest_config(Config { cases: 2_000, ..crate::support::regressions::keeping(file!()) })]

    /// In a paced window, unit `k` runs no earlier than its instant, and queued requests run apart.
    #[test]
    fn units_of_a_paced_window_keep_their_instants_after_any_cancellation(
        full_store: bool, steps in steps(),
    ) {
        const EACH: Duration = millis(500);
        let paced = Algorithm::FixedWindow { carry_over: 0, paced: true };
        let quota = Quota::new(8, secs(4)).expect("a quota").with_algorithm(paced);
        let clock = FakeClock::new();
        let store = if full_store { full(&clock) } else { clock.store(64) };
        let ran = runs(&clock, &store, &Key::from("me"), quota, &steps);
        let window = |run: &Run| run.at.as_nanos() / secs(4).as_nanos();
        for (nth, run) in ran.iter().enumerate() {
            let before = || ran[..nth].iter().filter(|other| window(other) == window(run));
            let units = before().map(|other| other.cost).sum::<u32>() + run.cost;
            let since = run.at.as_nanos() % secs(4).as_nanos();
            prop_assert!(since >= (EACH * (units - 1)).as_nanos(), "{:?} of {:?}", run, ran);
            let last = before().rfind(|other| other.queued);
            if let Some(last) = last.filter(|_| run.queued) {
                prop_assert!(run.at - last.at >= EACH * run.cost, "{:?} of {:?}", run, ran);
            }
        }
    }
}

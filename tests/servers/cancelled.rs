//! Callers that queue and leave, on a real server.
//!
//! The remaining callers run no closer together than the quota permits.
//! `tests/it/layer/cancelled.rs` checks the embedded store.

use std::time::Duration;

use proptest::{
    collection::vec,
    prelude::*,
    test_runner::{Config, TestCaseError},
};
use tokio::runtime::Builder;
use tower_sluice::{
    Algorithm, Decision, Key, Quota, RedisStore, Store, StoreExt, rule::RuleName, store::Charge,
    testing::Subject,
};

use crate::servers::Server;

const SECOND: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
enum Step {
    Pass(u64),
    Queue(u32),
    /// One of the waiting callers, counted from the newest.
    Leave(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (1..3_u32).prop_map(Step::Queue),
        3 => prop_oneof![Just(0_usize), 0..8_usize].prop_map(Step::Leave),
        2 => (0..2_000_000_u64).prop_map(Step::Pass),
    ];
    vec(step, 1..40)
}

/// Returns the instants at which the remaining callers run, with their costs.
async fn queued(subject: &mut RedisStore, quota: Quota, steps: &[Step]) -> Vec<(Duration, u32)> {
    let (store, key, quotas) = (subject.open(), Key::from("me"), [quota]);
    let charge = Charge::new(RuleName::default(), &key, &quotas).with_max_wait(30 * SECOND);
    let (mut now, mut ran) = (1_000 * SECOND, Vec::new());
    let mut waiting: Vec<(Duration, u32, Decision)> = Vec::new();
    subject.set(now);
    for step in steps {
        match *step {
            Step::Pass(micros) => {
                now += Duration::from_micros(micros);
                subject.set(now);
            }
            Step::Queue(cost) => {
                let taken = store.take(&[charge.with_cost(cost)]).await.expect("a decision");
                if taken.is_allowed() && !taken.wait().is_zero() {
                    waiting.push((now + taken.wait(), cost, taken));
                }
            }
            Step::Leave(nth) => {
                let at = waiting.len().checked_sub(nth + 1).filter(|at| waiting[*at].0 > now);
                if let Some(at) = at {
                    let (_, cost, taken) = waiting.remove(at);
                    store.undo(&[charge.with_cost(cost)], &taken, None);
                    subject.finish(&store).await;
                }
            }
        }
        ran.extend(waiting.extract_if(.., |it| it.0 <= now).map(|(at, cost, _)| (at, cost)));
    }
    ran.extend(waiting.into_iter().map(|(at, cost, _)| (at, cost)));
    ran.sort_unstable();
    ran
}

/// Asserts that each caller runs at least the time of its own cost after the previous one, in the
/// same window if there is one.
fn are_apart(
    ran: &[(Duration, u32)],
    each: Duration,
    window: Option<Duration>,
) -> Result<(), TestCaseError> {
    for pair in ran.windows(2) {
        let [(before, _), (at, cost)] = *pair else { continue };
        let same = |length: Duration| {
            before.as_nanos() / length.as_nanos() == at.as_nanos() / length.as_nanos()
        };
        if window.is_none_or(same) {
            prop_assert!(at - before >= each * cost, "{:?} and {:?} of {:?}", before, at, ran);
        }
    }
    Ok(())
}

#[test]
fn remaining_callers_stay_apart_when_others_leave() {
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let server = runtime.block_on(Server::redis());
    let subject =
        runtime.block_on(RedisStore::connect(server.url()).into_future()).expect("a store");
    let config = Config { cases: 200, ..crate::support::regressions::keeping(file!()) };
    proptest!(config, |(paced: bool, steps in steps())| {
        let mut subject = subject.clone();
        let quota = Quota::new(8, 4 * SECOND).expect("a quota");
        let (quota, window) = match paced {
            true => (quota.with_algorithm(Algorithm::FixedWindow { carry_over: 0, paced: true }), Some(4 * SECOND)),
            false => (quota.with_burst(if steps.len() % 2 == 0 { 1 } else { 3 }), None),
        };
        let ran = runtime.block_on(queued(&mut subject, quota, &steps));
        are_apart(&ran, SECOND / 2, window)?;
    });
}

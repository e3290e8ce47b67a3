//! Late charges and undos after a failure of the shared store.
//!
//! Time advances only by the tests.

use tower_sluice::{
    Key, Limiter, Quota, Store, StoreExt, decision::Source, rule::RuleName, store::Charge,
};

use crate::support::{
    driven::{Time, millis, secs},
    process::{HOURLY, Process, decided, left, settled},
    shaky::Mood,
};

#[tokio::test(start_paused = true)]
async fn units_allowed_in_an_outage_are_charged_to_the_store_once() {
    let process = Process::one_of(4, &Time::default());
    process.take("alice", HOURLY, 40).await;
    process.shared.is(Mood::Failing);
    process.take("alice", HOURLY, 7).await;
    process.take("alice", HOURLY, 2).await;
    process.take("bob", HOURLY, 3).await;
    for (key, cost) in [("alice", 20), ("bob", 23)] {
        assert!(!process.take(key, HOURLY, cost).await.is_allowed());
    }
    process.take("carol", HOURLY, 0).await;
    assert_eq!(process.shared_left("alice", HOURLY), [60]);
    let calls = process.shared.calls();
    process.recover().await;
    assert_eq!(process.shared_left("alice", HOURLY), [51]);
    assert_eq!(process.shared_left("bob", HOURLY), [97]);
    assert_eq!(process.shared_left("carol", HOURLY), [100]);
    assert_eq!(process.shared.calls() - calls, 3, "one look, and two charged late");
    // charged once
    for _ in 0..3 {
        process.recover().await;
        process.shared.is(Mood::Failing);
        process.take("alice", HOURLY, 0).await;
    }
    process.recover().await;
    assert_eq!(process.shared_left("alice", HOURLY), [51]);
    assert_eq!(process.store.dropped_charges(), 0);
}

#[tokio::test(start_paused = true)]
async fn units_refilled_since_are_not_charged() {
    let time = Time::default();
    let process = Process::one_of(1, &time);
    let quotas = [Quota::per_second(10), Quota::per_day(1_000)];
    process.shared.is(Mood::Failing);
    for _ in 0..60 {
        assert!(process.take("alice", quotas, 10).await.is_allowed());
        time.pass(secs(1)).await;
    }
    assert!(process.take("alice", quotas, 4).await.is_allowed());
    time.pass(millis(100)).await;
    process.recover().await;
    // one unit of a daily quota refills every 86.4 s
    assert_eq!(process.shared_left("alice", quotas), [7, 396]);
}

#[tokio::test(start_paused = true)]
async fn debt_of_other_processes_is_not_charged_again() {
    let time = Time::default();
    let process = Process::one_of(1, &time);
    let quota = Quota::per_second(10);
    process.shared.is(Mood::Failing);
    for _ in 0..5 {
        assert!(process.take("alice", quota, 10).await.is_allowed());
        time.pass(secs(1)).await;
    }
    process.shared.is(Mood::Well);
    Limiter::new(process.shared.store.clone()).take("alice", &quota, 10).now();
    process.take("alice", quota, 0).await;
    settled().await;
    let look = Limiter::new(process.shared.store.clone()).peek("alice", &quota).now();
    assert_eq!(look.outcomes()[0].reset_after(), secs(1));
}

#[tokio::test(start_paused = true)]
async fn nothing_is_charged_late_after_an_outage_in_which_all_units_refilled() {
    let time = Time::default();
    let process = Process::one_of(2, &time);
    process.shared.is(Mood::Failing);
    process.take("alice", HOURLY, 50).await;
    time.pass(secs(3_600)).await;
    let calls = process.shared.calls();
    process.recover().await;
    assert_eq!(process.shared_left("alice", HOURLY), [100]);
    assert_eq!(process.shared.calls() - calls, 1, "only the look");
}

#[tokio::test(start_paused = true)]
async fn late_charges_that_fail_wait_for_the_next_recovery() {
    let process = Process::one_of(1, &Time::default());
    let quotas = [HOURLY, Quota::per_day(100)];
    process.shared.is(Mood::Failing);
    for key in ["a", "b", "c"] {
        process.take(key, quotas, 10).await;
    }
    process.shared.is(Mood::Well);
    process.shared.settles_fail_after(0);
    let calls = process.shared.calls();
    process.take("x", HOURLY, 0).await;
    settled().await;
    assert_eq!(process.shared.calls() - calls, 2, "it does not insist");
    assert!(process.store.is_failing());
    process.recover().await;
    for key in ["a", "b", "c"] {
        assert_eq!(process.shared_left(key, quotas), [90, 90], "{key}");
    }
    assert!(!process.store.is_failing());
}

#[tokio::test(start_paused = true)]
async fn late_charges_before_another_failure_are_not_charged_again() {
    let process = Process::one_of(1, &Time::default());
    let quotas = [HOURLY, Quota::per_day(100)];
    process.shared.is(Mood::Failing);
    process.take("alice", quotas, 10).await;
    process.shared.is(Mood::Well);
    process.shared.settles_fail_after(1);
    process.take("x", HOURLY, 0).await;
    settled().await;
    assert_eq!(process.shared_left("alice", quotas), [90, 100]);
    process.recover().await;
    assert_eq!(process.shared_left("alice", quotas), [90, 90]);
}

#[tokio::test(start_paused = true)]
async fn late_charges_are_sequential() {
    let process = Process::one_of(1, &Time::default());
    for outage in ["a", "b", "c"] {
        process.shared.is(Mood::Failing);
        for key in ["1", "2", "3"] {
            process.take(&format!("{outage}{key}"), HOURLY, 10).await;
        }
        process.shared.is(Mood::Late(millis(1)));
        process.take("x", HOURLY, 0).await;
        settled().await;
        assert_eq!(process.shared.on_their_way(), 1);
    }
    tokio::time::sleep(secs(1)).await;
    for key in ["a1", "a3", "b2", "c1", "c3"] {
        assert_eq!(process.shared_left(key, HOURLY), [90], "{key}");
    }
}

#[test]
fn a_runtime_that_ends_leaves_late_charges_to_the_next() {
    let process = Process::one_of(1, &Time::default());
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_time().start_paused(true).build().expect("a runtime")
    };
    runtime().block_on(async {
        process.shared.is(Mood::Failing);
        for key in ["a", "b", "c"] {
            process.take(key, HOURLY, 10).await;
        }
        process.shared.is(Mood::Late(millis(1)));
        process.take("x", HOURLY, 0).await;
        settled().await;
    });
    assert_eq!(process.shared.on_their_way(), 0);
    runtime().block_on(async {
        process.shared.is(Mood::Failing);
        process.take("x", HOURLY, 0).await;
        process.recover().await;
    });
    let left: u32 = ["a", "b", "c"].map(|key| process.shared_left(key, HOURLY)[0]).iter().sum();
    assert_eq!(left, 280, "only the charges in flight are lost");
}

#[tokio::test(start_paused = true)]
async fn a_call_that_fails_after_the_recovery_is_charged_too() {
    let process = Process::one_of(1, &Time::default());
    process.shared.is(Mood::FailingLate(millis(50)));
    let late = tokio::spawn(process.limiter().take("alice", &HOURLY, 8).into_future());
    tokio::task::yield_now().await;
    process.shared.is(Mood::Failing);
    process.take("bob", HOURLY, 1).await;
    process.recover().await;
    let late = late.await.expect("no panic").expect("infallible");
    assert_eq!(late.source(), Source::Fallback);
    assert!(!process.store.is_failing(), "it says how things were");
    process.take("bob", HOURLY, 0).await;
    settled().await;
    assert_eq!(process.shared_left("alice", HOURLY), [92]);
}

#[tokio::test(start_paused = true)]
async fn the_journal_is_bounded_and_reports_dropped_charges() {
    let mut process = Process::one_of(1, &Time::default());
    process.store = process.store.journal(2);
    process.shared.is(Mood::Failing);
    let long = "x".repeat(257);
    for key in ["a", "b", "c", "d", "a", &long] {
        assert!(process.take(key, HOURLY, 5).await.is_allowed());
    }
    assert_eq!(process.store.dropped_charges(), 3);
    process.recover().await;
    let left = ["a", "b", "c", "d"].map(|key| process.shared_left(key, HOURLY)[0]);
    assert_eq!(left, [90, 95, 100, 100]);
    // there is room again
    process.shared.is(Mood::Failing);
    process.take("c", HOURLY, 5).await;
    process.take(&long, HOURLY, 5).await;
    assert_eq!(process.store.dropped_charges(), 4, "a long key is not kept at all");
    process.recover().await;
    assert_eq!(process.shared_left("c", HOURLY), [95]);
}

#[tokio::test(start_paused = true)]
async fn an_undo_goes_to_the_store_that_charged() {
    let process = Process::one_of(2, &Time::default());
    let (key, quotas) = (Key::from("alice"), [HOURLY]);
    let charge = Charge::new(RuleName::default(), &key, &quotas).with_cost(6);
    let there = decided(process.store.take(&[charge])).await;
    process.shared.is(Mood::Failing);
    let here = decided(process.store.take(&[charge])).await;
    let more = decided(process.store.take(&[charge])).await;
    assert_eq!(left(&more), [35]);

    let denied = decided(process.store.take(&[charge.with_cost(50)])).await;
    process.store.undo(&[charge.with_cost(50)], &denied, None);
    process.store.undo(&[charge], &here, None);
    assert_eq!(process.shared.given_back(), 0);
    assert_eq!(left(&process.take("alice", HOURLY, 0).await), [41]);
    process.shared.is(Mood::Well);
    process.store.undo(&[charge], &there, None);
    assert_eq!(process.shared.given_back(), 1);
    assert_eq!(process.shared_left("alice", HOURLY), [100]);
    process.recover().await;
    assert_eq!(process.shared_left("alice", HOURLY), [94], "only the part that was not undone");
}

/// The undone part is subtracted from the late charge to the inner store.
#[tokio::test(start_paused = true)]
async fn a_part_that_is_undone_locally_is_not_charged_late() {
    let process = Process::one_of(2, &Time::default());
    let (key, quotas) = (Key::from("alice"), [HOURLY]);
    let charge = Charge::new(RuleName::default(), &key, &quotas).with_cost(6);
    process.shared.is(Mood::Failing);
    let here = decided(process.store.take(&[charge])).await;
    process.store.undo(&[charge], &here, Some(4));
    assert_eq!(left(&process.take("alice", HOURLY, 0).await), [48]);
    process.shared.is(Mood::Well);
    process.recover().await;
    assert_eq!(process.shared_left("alice", HOURLY), [98]);
}

#[tokio::test(start_paused = true)]
async fn refunds_go_to_the_store_that_charged() {
    let process = Process::one_of(2, &Time::default());
    process.take("alice", HOURLY, 20).await;
    process.shared.is(Mood::Failing);
    process.take("alice", HOURLY, 10).await;
    // four of the ten, although the store answers again
    process.shared.is(Mood::Well);
    let calls = process.shared.calls();
    let here = process.adjust("alice", HOURLY, -4).await;
    assert_eq!((here.source(), process.shared.calls()), (Source::Fallback, calls));
    assert_eq!(left(&here), [34], "of 50, ten are mirrored and six were admitted here");
    process.recover().await;
    assert_eq!(process.shared_left("alice", HOURLY), [74]);
    // the store has all late charges now
    let there = process.adjust("alice", HOURLY, -5).await;
    assert_eq!((there.source(), left(&there)), (Source::Local, vec![79]));
}

#[tokio::test(start_paused = true)]
async fn a_refund_is_split_if_both_stores_charged() {
    let process = Process::one_of(2, &Time::default());
    process.take("alice", HOURLY, 20).await;
    process.shared.is(Mood::Failing);
    process.take("alice", HOURLY, 3).await;
    process.shared.is(Mood::Well);
    assert_eq!(left(&process.adjust("alice", HOURLY, -8).await), [85]);
    process.recover().await;
    assert_eq!(process.shared_left("alice", HOURLY), [85]);
}

#[tokio::test(start_paused = true)]
async fn a_refund_that_fails_is_lost_in_the_store() {
    let process = Process::one_of(2, &Time::default());
    process.take("alice", HOURLY, 20).await;
    process.shared.is(Mood::Failing);
    let here = process.adjust("alice", HOURLY, -8).await;
    assert_eq!((here.source(), left(&here)), (Source::Fallback, vec![44]), "its part is not");
    process.recover().await;
    assert_eq!(process.shared_left("alice", HOURLY), [80]);
}

#[tokio::test(start_paused = true)]
async fn late_charges_made_in_an_outage_are_passed_on() {
    let process = Process::one_of(4, &Time::default());
    process.shared.is(Mood::Failing);
    process.take("alice", HOURLY, 1).await;
    assert_eq!(left(&process.adjust("alice", HOURLY, 9).await), [15]);
    process.recover().await;
    assert_eq!(process.shared_left("alice", HOURLY), [90]);
}

#[tokio::test(start_paused = true)]
async fn report_only_charges_are_not_charged_late() {
    let process = Process::one_of(1, &Time::default());
    let (key, quotas, few) = (Key::from("alice"), [HOURLY], [Quota::per_hour(5)]);
    let [limits, reports] = ["limits", "reports"].map(|name| RuleName::new(name).expect("a name"));
    let reported = Charge::new(reports, &key, &few).with_report_only();
    decided(process.store.take(&[reported])).await;
    process.shared.is(Mood::Failing);
    let both =
        |cost| [Charge::new(limits, &key, &quotas).with_cost(cost), reported.with_cost(cost)];
    assert!(!decided(process.store.take(&both(3))).await.would_deny());
    let beyond = decided(process.store.take(&both(4))).await;
    assert!(beyond.is_allowed() && beyond.would_deny());
    let again = decided(process.store.take(&both(4))).await;
    process.store.undo(&both(4), &again, None);
    process.recover().await;
    let look = process.shared.store.take(&both(0)).now();
    assert_eq!(left(&look), [93, 1]);
}

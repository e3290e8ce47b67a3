//! Log lines of an outage: one when it begins and one when it ends.

use tokio::time::advance;
use tower_sluice::{Limiter, Quota, Store, StoreExt, decision::Source};

use crate::{
    alone,
    log::Log,
    support::{
        driven::{Time, secs},
        shaky::{Mood, Shaky},
    },
};

const HOURLY: Quota = Quota::per_hour(100);

#[tokio::test(start_paused = true)]
async fn an_outage_logs_two_lines_without_a_key() {
    let _turn = alone();
    let (log, _guard) = Log::start(tracing::Level::INFO);
    breaker(&log).await;
    fallback(&log).await;
    let time = Time::default();
    let shared = Shaky::new(time.store());
    open_or_closed(
        &log,
        &shared,
        Limiter::named("default", shared.clone().fail_open()),
        "without a limit",
    )
    .await;
    open_or_closed(
        &log,
        &shared,
        Limiter::named("default", shared.clone().fail_closed()),
        "with 503",
    )
    .await;
    leased(&log).await;
}

/// A decision that does not call the store does not end its outage.
async fn leased(log: &Log) {
    let shared = Shaky::new(Time::default().store());
    let limiter = Limiter::named("default", shared.clone().leases(5).fail_open());
    let ask = async |key| {
        let decision = limiter.take(key, &HOURLY, 1).await;
        decision.source()
    };
    for _ in 0..5 {
        ask("alice").await;
    }
    shared.set_mood(Mood::Failing);
    assert_eq!(ask("bob").await, Source::FailedOpen);
    assert_eq!(log.read().len(), 1, "it fails");
    assert_eq!(ask("alice").await, Source::Leased);
    assert_eq!(log.read(), [""; 0], "the store was not called");
    shared.set_mood(Mood::Well);
    ask("bob").await;
    assert_eq!(log.read().len(), 1, "it answers again");
}

async fn open_or_closed<S: Store<Error = std::convert::Infallible>>(
    log: &Log,
    shared: &Shaky,
    limiter: Limiter<S>,
    policy: &str,
) {
    for mood in [Mood::FailingSoon, Mood::Failing] {
        advance(secs(10)).await;
        shared.set_mood(mood);
        for _ in 0..5 {
            drop(limiter.take("alice", &HOURLY, 1).await);
        }
        let failed = log.read();
        let ending = format!("{policy}: redis://10.0.0.7 is down");
        assert!(
            matches!(&failed[..], [line] if line.contains("WARN") && line.ends_with(&ending)),
            "{failed:?}"
        );
        shared.set_mood(Mood::Well);
        for _ in 0..5 {
            drop(limiter.take("alice", &HOURLY, 0).await);
        }
        let recovered = log.read();
        assert!(matches!(&recovered[..], [line] if line.contains("INFO")), "{recovered:?}");
        assert!(![failed, recovered].concat().concat().contains("alice"));
    }
}

async fn breaker(log: &Log) {
    let shared = Shaky::new(Time::default().store());
    shared.set_mood(Mood::FailingSoon);
    let limiter = Limiter::named("default", shared.clone().breaker());
    for _ in 0..5 {
        limiter.try_take("alice", &HOURLY, 1).await.expect_err("it fails");
    }
    let opened = log.read();
    assert!(opened.len() == 1 && opened[0].contains("WARN"), "{opened:?}");
    for _ in 0..20 {
        advance(secs(1)).await;
        limiter.try_take("alice", &HOURLY, 1).await.expect_err("it fails");
    }
    assert_eq!(log.read(), [""; 0], "a failed probe is not logged");
    advance(secs(1)).await;
    shared.set_mood(Mood::WellSoon);
    for _ in 0..10 {
        drop(limiter.try_take("alice", &HOURLY, 1).await.expect("a decision"));
    }
    let closed = log.read();
    assert!(closed.len() == 1 && closed[0].contains("INFO"), "{closed:?}");
    assert!(![opened, closed].concat().concat().contains("alice"));
    // Each turn takes a second, and a line is due after ten.
    for expected in [1, 0, 0, 0] {
        shared.set_mood(Mood::FailingSoon);
        for _ in 0..5 {
            limiter.try_take("alice", &HOURLY, 1).await.expect_err("it fails");
        }
        assert_eq!(log.read().len(), expected, "one outage in ten seconds is logged");
        shared.set_mood(Mood::WellSoon);
        advance(secs(1)).await;
        drop(limiter.try_take("alice", &HOURLY, 1).await.expect("a decision"));
        assert_eq!(log.read().len(), expected, "its end is logged, if its beginning was");
    }
    shared.set_mood(Mood::FailingSoon);
    // The last warning is four seconds old.
    for expected in [0, 0, 0, 0, 0, 0, 1, 0] {
        for _ in 0..5 {
            limiter.try_take("alice", &HOURLY, 1).await.expect_err("it fails");
        }
        assert_eq!(
            log.read().len(),
            expected,
            "an outage is logged once, ten seconds after the last warning"
        );
        advance(secs(1)).await;
    }
}

async fn fallback(log: &Log) {
    let time = Time::default();
    let shared = Shaky::new(time.store());
    let limiter = Limiter::named("default", shared.clone().fallback(time.store(), 1));
    let outage = async || {
        shared.set_mood(Mood::FailingSoon);
        for key in ["alice", "bob", "alice"] {
            drop(limiter.take(key, &HOURLY, 1).await);
        }
        shared.set_mood(Mood::Well);
        for _ in 0..3 {
            drop(limiter.take("carol", &HOURLY, 0).await);
        }
    };
    outage().await;
    let lines = log.read();
    assert_eq!(lines.len(), 2, "{lines:?}");
    let (failed, recovered) = (&lines[0], &lines[1]);
    assert!(failed.contains("WARN") && failed.ends_with("redis://10.0.0.7 is down"), "{failed}");
    assert!(recovered.contains("INFO"), "{recovered}");
    assert!(recovered.contains("the store recovered"), "{recovered}");
    assert!(!["alice", "bob", "carol"].iter().any(|key| lines.concat().contains(key)));
    for _ in 0..20 {
        outage().await;
    }
    assert_eq!(log.read(), [""; 0], "a store that fails now and then does not fill the log");
    for expected in [0, 2, 0, 2] {
        time.pass(secs(6)).await;
        outage().await;
        assert_eq!(log.read().len(), expected, "a failure is logged again after ten seconds");
    }
    shared.set_mood(Mood::FailingSoon);
    for expected in [0, 1, 0] {
        drop(limiter.take("alice", &HOURLY, 1).await);
        assert_eq!(log.read().len(), expected, "an outage that lasts is logged");
        time.pass(secs(10)).await;
    }
}

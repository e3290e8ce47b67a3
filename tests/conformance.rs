//! The conformance kit passes on the embedded store, and finds what a faulty store does wrong.

#[path = "support/tables.rs"]
mod tables;

use std::{convert::Infallible, time::Duration};

use futures::executor::block_on;
use tables::{all_pass, read};
use tower_sluice::{
    Algorithm, Answer, Charge, Decision, LocalStore, Store,
    store::Never,
    testing::{Case, Local, NoLimit, Subject, play, properties},
};

const TICK: Duration = Duration::from_nanos(1);

#[tokio::test]
async fn the_embedded_store_keeps_every_promise() {
    let mut local = Local::default();
    assert_eq!(properties::patience(&mut local, TICK).await, Ok(()));
    assert_eq!(properties::all_or_nothing(&mut local).await, Ok(()));
    assert_eq!(properties::no_over_admission(&mut local, block_on), Ok(()));
}

/// A store that forgets to charge the last account of a decision.
struct Forgetful(LocalStore);

impl Store for Forgetful {
    type Error = Infallible;
    type Future = Never<Result<Decision, Infallible>>;

    fn take(&self, charges: &[Charge<'_>]) -> Answer<Self::Future> {
        match charges {
            [all @ .., last] if !all.is_empty() => {
                let free: Vec<_> = all.iter().copied().chain([last.cost(0)]).collect();
                self.0.take(&free)
            }
            _ => self.0.take(charges),
        }
    }

    fn settle(&self, charge: &Charge<'_>, units: i64) -> Answer<Self::Future> {
        self.0.settle(charge, units)
    }

    fn reset(&self, charge: &Charge<'_>) -> Answer<Self::Future> {
        self.0.reset(charge)
    }

    fn block(&self, charge: &Charge<'_>, time: Duration) -> Answer<Self::Future> {
        self.0.block(charge, time)
    }

    fn unblock(&self, charge: &Charge<'_>) -> Answer<Self::Future> {
        self.0.unblock(charge)
    }
}

#[derive(Default)]
struct ForgetfulOne(Local);

impl Subject for ForgetfulOne {
    type Store = Forgetful;

    fn open(&mut self) -> Forgetful {
        Forgetful(self.0.open())
    }

    fn set(&mut self, now: Duration) {
        self.0.set(now);
    }
}

#[tokio::test]
async fn a_store_that_forgets_an_account_is_found_out() {
    let broken = properties::all_or_nothing(&mut ForgetfulOne::default()).await;
    assert!(broken.is_err_and(|broken| broken.contains("5 of each left")));
}

/// A store that limits nobody.
struct Open;

impl Subject for Open {
    type Store = NoLimit;

    fn open(&mut self) -> NoLimit {
        NoLimit
    }

    fn set(&mut self, _: Duration) {}
}

#[test]
fn a_store_that_admits_everything_is_found_out() {
    let broken = properties::no_over_admission(&mut Open, block_on);
    assert_eq!(broken, Err("1600 calls were allowed by a quota of 500/day".into()));
}

/// A store that counts by GCRA alone.
#[derive(Default)]
struct Gcra(Local);

impl Subject for Gcra {
    type Store = LocalStore;

    fn open(&mut self) -> LocalStore {
        self.0.open()
    }

    fn set(&mut self, now: Duration) {
        self.0.set(now);
    }

    fn supports(&self, algorithm: Algorithm) -> bool {
        algorithm == Algorithm::Gcra
    }
}

#[tokio::test]
async fn cases_of_other_algorithms_are_skipped() {
    for (file, played) in [
        ("gcra.json", (18, 1)),
        ("token_bucket.json", (0, 17)),
        ("fixed_window.json", (0, 24)),
        ("combined.json", (4, 2)),
    ] {
        assert_eq!(all_pass(&mut Gcra::default(), file).await, played, "{file}");
    }
}

async fn mismatch(case: &str) -> String {
    let case = Case::read(case).expect("a list of cases").remove(0);
    play(&mut Open, &case).await.expect_err("it differs").to_string()
}

#[tokio::test]
async fn a_mismatch_says_in_words_what_was_expected() {
    let told = mismatch(read("gcra.json")).await;
    assert_eq!(
        told,
        "one_per_second_burst_five (the table most GCRA implementations publish)\n  \
         step 0: take 6 at 0ns\n  \
         expected denied; 5 remaining, full in 0ns, next unit in 0ns, retry never\n  \
         got      allowed"
    );
    let told = mismatch(
        r#"[{"name": "queued", "quotas": [{"algorithm": "gcra", "units": 1, "per": 1000000000}],
            "steps": [{"at": 1500000000, "op": "take", "units": 2, "headroom": 3, "allowed": true,
                       "wait": 2000000000, "overage": true,
                       "outcomes": [{"remaining": 0, "full": 1, "next": 2000, "retry": 0}]}]}]"#,
    )
    .await;
    assert!(told.contains("step 0: take 2 at 1.5s with a headroom of 3\n"), "{told}");
    let expected = "expected allowed after a wait of 2s as overage; \
                    0 remaining, full in 1ns, next unit in 2µs, retry in 0ns\n";
    assert!(told.contains(expected), "{told}");
}

#[tokio::test]
async fn a_case_that_names_other_algorithms_than_its_quotas_is_an_error() {
    let rows = r#"[{"algorithm": "gcra", "units": 1, "per": 1},
                   {"algorithm": "fixed_window", "aligned": false, "units": 1, "per": 1}]"#;
    let read = |named: &str| {
        let case = format!(r#"[{{"name": "x", {named} "quotas": {rows}, "steps": []}}]"#);
        Case::read(&case).expect("a list of cases").remove(0)
    };
    for fine in ["", r#""algorithm": ["gcra", "anchored_window"],"#] {
        assert!(play(&mut Local::default(), &read(fine)).await.is_ok(), "{fine}");
    }
    for wrong in [
        r#""algorithm": "gcra","#,
        r#""algorithm": ["gcra", "fixed_window"],"#,
        r#""algorithm": ["gcra", "anchored_window", "sliding_log"],"#,
    ] {
        let error = play(&mut Local::default(), &read(wrong)).await.expect_err("names differ");
        assert!(error.to_string().contains("name each algorithm of the quotas"), "{error}");
    }
}

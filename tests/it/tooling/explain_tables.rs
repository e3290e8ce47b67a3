//! Explanations of the published tables, before and after each charge.

use std::time::Duration;

use serde_json::Value;
use tower_sluice::{
    Algorithm, Key, Quota, StoreExt,
    explain::Explanation,
    rule::RuleName,
    store::Charge,
    testing::{FakeClock, Subject},
};

use crate::support::tables::read;

fn nanos(value: &Value) -> Duration {
    Duration::from_nanos(value.as_u64().expect("nanoseconds"))
}

/// Defaults to 0.
fn number(value: &Value) -> u32 {
    value.as_u64().unwrap_or(0).try_into().expect("units")
}

/// Returns the quotas of a case, by the names in the tables.
fn quotas(case: &Value) -> Vec<Quota> {
    let quota = |row: &Value| {
        let algorithm = match (row["algorithm"].as_str().expect("a name"), &row["aligned"]) {
            ("gcra", _) => Algorithm::Gcra,
            ("token_bucket", _) => Algorithm::TokenBucket,
            ("fixed_window", Value::Bool(false)) => Algorithm::AnchoredWindow,
            ("fixed_window", _) => Algorithm::FixedWindow {
                carry_over: number(&row["carry_over"]),
                paced: row["paced"] == true,
            },
            ("sliding_window", _) => Algorithm::SlidingWindow { buckets: number(&row["buckets"]) },
            ("sliding_log", _) => Algorithm::SlidingLog,
            (other, _) => panic!("algorithm {other}"),
        };
        let units = number(&row["units"]);
        let burst = row["burst"].as_u64().map_or(units, |n| n.try_into().expect("units"));
        let quota =
            Quota::new(units, nanos(&row["per"])).and_then(|quota| quota.try_with_burst(burst));
        let quota = quota.and_then(|quota| quota.try_with_algorithm(algorithm)).expect("a quota");
        let quota = quota.with_soft(number(&row["soft"]));
        if row["initial"].is_null() { quota } else { quota.with_initial(number(&row["initial"])) }
    };
    case["quotas"].as_array().expect("quotas").iter().map(quota).collect()
}

/// Plays a case and returns the number of charges.
async fn play(case: &Value) -> usize {
    let name = &case["name"];
    let mut subject = FakeClock::new();
    let (store, quotas, key) = (subject.open(), quotas(case), Key::from("somebody"));
    let patience = Duration::from_nanos(case["max_wait"].as_u64().unwrap_or(0));
    let mut charges = 0;
    for (at, step) in case["steps"].as_array().expect("steps").iter().enumerate() {
        subject.set(nanos(&step["at"]));
        let units = step["units"].as_i64().expect("units");
        let headroom = number(&step["headroom"]);
        let charge = Charge::new(RuleName::default(), &key, &quotas).with_headroom(headroom);
        if step["op"] == "settle" {
            drop(store.adjust(&charge, -units).now());
            continue;
        }
        let charge =
            charge.with_cost(u32::try_from(units).expect("a cost")).with_max_wait(patience);
        let would = Explanation::look(&store, &[charge]).await.expect("infallible");
        let is = store.take(&[charge]).now();
        let said = is.explain().charges(&[charge]).to_string();
        let place = format!("{name}, step {at}:\n{would}{said}");

        let expected = would.decision.as_ref().expect("a decision");
        assert_eq!(would.is_allowed(), step["allowed"] == true, "{place}");
        assert_eq!(expected.wait(), is.wait(), "{place}");
        assert_eq!(expected.is_overage(), step["overage"] == true, "{place}");
        assert_eq!(would.to_string().split_once(' '), Some(("would", &*format!("be {said}"))));
        let rows = step["outcomes"].as_array().expect("outcomes");
        let lines: Vec<_> = said.lines().skip(1).collect();
        assert_eq!((would.quota_reports.len(), lines.len()), (rows.len(), rows.len()), "{place}");
        for (row, line) in rows.iter().zip(lines) {
            let left = format!(": {} of ", row["remaining"]);
            assert!(line.contains(&left), "{left:?} is not in {place}");
            match row["retry"].as_u64() {
                Some(0) => assert!(!line.contains("denied"), "{place}"),
                None => assert!(line.ends_with("; denied: waiting does not help"), "{place}"),
                Some(_) => {
                    let wait = format!("; denied for {:?}", nanos(&row["retry"]));
                    assert!(line.ends_with(&wait), "{wait:?} is not in {place}");
                }
            }
            let full = format!(", full in {:?}", nanos(&row["full"]));
            assert_eq!(line.contains(&full), row["full"] != 0, "{place}");
        }
        let longest = rows
            .iter()
            .map(|row| row["retry"].as_u64())
            .max_by_key(|wait| wait.unwrap_or(u64::MAX));
        match longest.flatten().filter(|wait| *wait > 0) {
            Some(wait) => {
                let reported = format!(" → retry after {:?}\n", Duration::from_nanos(wait));
                assert!(said.contains(&reported), "{reported:?} is not in {place}");
            }
            None => assert!(!said.contains("retry after"), "{place}"),
        }
        charges += 1;
    }
    charges
}

#[tokio::test]
async fn explanations_have_the_values_of_the_tables() {
    let mut charges = 0;
    for file in [
        "gcra.json",
        "token_bucket.json",
        "fixed_window.json",
        "sliding_window.json",
        "sliding_log.json",
        "combined.json",
    ] {
        let cases: Vec<Value> = serde_json::from_str(read(file)).expect("a list of cases");
        for case in cases.iter().filter(|case| case["wall_clock"] != true) {
            charges += play(case).await;
        }
    }
    assert!(charges > 1_400, "{charges}");
}

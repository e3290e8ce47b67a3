//! Quotas that are replaced while their accounts exist.

use std::time::Duration;

use tower_sluice::{Key, Quota, StoreExt, rule::RuleName, store::Charge, testing::Subject};

/// The start of each case: Unix time in seconds.
const START: u64 = 1_700_000_000;

/// A charge after a number of minutes, and the units that are left after it. `None` is a denial.
type Step = (u64, Quota, u32, Option<u32>);

fn cases() -> Vec<(&'static str, Vec<Step>)> {
    let three = Quota::per_hour(3).burst(4);
    let ten = Quota::per_hour(10);
    vec![
        (
            "`initial` is added",
            vec![
                (0, three, 4, Some(0)),
                (0, three.initial(1), 1, None),
                (20, three.initial(1), 1, Some(0)),
            ],
        ),
        (
            "`initial` is removed from an idle account",
            vec![
                (0, three.initial(1), 1, Some(0)),
                (81, three, 1, Some(3)),
                (81, three, 3, Some(0)),
            ],
        ),
        (
            "`initial` is changed",
            vec![
                (0, three.initial(4), 4, Some(0)),
                (0, three.initial(1), 1, None),
                (0, three, 1, None),
            ],
        ),
        (
            "`burst` is raised under `initial`",
            vec![
                (0, ten.initial(10), 10, Some(0)),
                (0, ten.burst(20).initial(20), 0, Some(10)),
                (0, ten.initial(10), 1, None),
            ],
        ),
        (
            "`burst` is lowered under `initial`",
            vec![
                (0, ten.burst(20).initial(20), 5, Some(15)),
                (0, ten.initial(10), 0, Some(5)),
                (0, ten.burst(20).initial(20), 15, Some(0)),
            ],
        ),
    ]
}

/// A replaced quota reads the debt of the account. It refills no account and locks none out.
pub(crate) async fn replaced_quotas<S: Subject>(subject: &mut S) {
    let (rule, key) = (RuleName::default(), Key::from("one"));
    for (name, steps) in cases() {
        let store = subject.open();
        for (at, (minutes, quota, units, left)) in steps.into_iter().enumerate() {
            subject.set(Duration::from_secs(START + 60 * minutes));
            let charge = Charge::new(rule, &key, quota.as_ref()).with_cost(units);
            let decision = store.take(&[charge]).await.map_err(Into::into).expect("a decision");
            let seen = decision.is_allowed().then(|| decision.remaining()).flatten();
            assert_eq!(seen, left, "{name}, step {at}: {decision:?}");
        }
    }
}

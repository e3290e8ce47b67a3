//! Header fields that parsers of other projects read.

#[path = "../../support/corpus.rs"]
mod corpus;

use corpus::{Case, Limit, Policy, corpus};
use rate_limits::{RateLimit, Status};
use sfv::{BareItem, Dictionary, Item, List, ListEntry, Parameters, Parser};

use crate::support::header;

fn natural(item: &BareItem) -> u64 {
    u64::try_from(i64::from(item.as_integer().expect("an integer"))).expect("not negative")
}

fn parameter(parameters: &Parameters, name: &str) -> Option<u64> {
    let mut found = parameters.iter().filter(|(key, _)| key.as_str() == name);
    found.next().map(|(_, value)| natural(value))
}

fn text(item: &BareItem) -> &str {
    item.as_string().expect("a string").as_str()
}

/// Returns the items of the list in this field.
fn list(case: &Case, name: &str) -> Vec<Item> {
    let field = header(&case.headers, name);
    let list: List = Parser::new(field).parse().unwrap_or_else(|why| panic!("{field}: {why}"));
    let item = |entry| match entry {
        ListEntry::Item(item) => item,
        ListEntry::InnerList(_) => panic!("{field}: a list in it"),
    };
    list.into_iter().map(item).collect()
}

fn of_family<'a>(cases: &'a [Case], family: &str) -> impl Iterator<Item = &'a Case> {
    let found: Vec<_> = cases.iter().filter(|case| case.family == family).collect();
    assert!(found.len() >= 10, "a corpus of {family}");
    found.into_iter()
}

#[tokio::test]
async fn sfv_reads_the_lists_of_revision_11() {
    for case in of_family(&corpus().await, "ratelimit") {
        let policies = list(case, "ratelimit-policy");
        assert_eq!(policies.len(), case.policies.len());
        for (item, Policy { name, q, w }) in policies.iter().zip(&case.policies) {
            assert_eq!((text(&item.bare_item), item.params.len()), (*name, 2));
            let reported = ["q", "w"].map(|key| parameter(&item.params, key));
            assert_eq!(reported, [Some(*q), Some(*w)], "{name}");
        }
        let limits = list(case, "ratelimit");
        assert_eq!(limits.len(), case.limits.len());
        for (item, Limit { name, r, t }) in limits.iter().zip(&case.limits) {
            assert_eq!(text(&item.bare_item), *name);
            let reported = ["r", "t"].map(|key| parameter(&item.params, key));
            assert_eq!(reported, [Some(*r), *t], "{name}");
        }
    }
}

#[tokio::test]
async fn sfv_reads_the_older_revisions() {
    let cases = corpus().await;
    for case in of_family(&cases, "draft07").chain(of_family(&cases, "draft06")) {
        let policies = list(case, "ratelimit-policy");
        let reported: Vec<_> = policies
            .iter()
            .map(|item| (natural(&item.bare_item), parameter(&item.params, "w")))
            .collect();
        let meant: Vec<_> = case.policies.iter().map(|policy| (policy.q, Some(policy.w))).collect();
        assert_eq!(reported, meant);
    }
    for case in of_family(&cases, "draft07") {
        let field = header(&case.headers, "ratelimit");
        let dictionary: Dictionary = Parser::new(field).parse().expect(field);
        let reported = ["limit", "remaining", "reset"].map(|name| match &dictionary[name] {
            ListEntry::Item(item) => natural(&item.bare_item),
            ListEntry::InnerList(_) => panic!("{field}: a list in it"),
        });
        let limit = &case.limits[0];
        assert_eq!(reported, [case.policies[0].q, limit.r, limit.t.unwrap_or(0)]);
    }
}

#[tokio::test]
async fn rate_limits_waits_for_retry_after_under_every_family() {
    for case in corpus().await {
        let Some(wait) = case.retry_after else { continue };
        let Status::Wait(reported) = RateLimit::new(&case.headers).expect("read").status() else {
            panic!("{case:?}: ready");
        };
        assert!(reported.as_secs().abs_diff(wait) <= 2, "{reported:?}, not {wait} s: {case:?}");
    }
}

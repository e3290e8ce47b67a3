//! Header fields, read by a parser of structured fields (RFC 9651).

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, header::RETRY_AFTER};
use sfv::{BareItem, Dictionary, List, ListEntry, Parser};
use tower_sluice::{Decision, Headers, decision::Outcome};

/// A response, and the field that the handler set, if it was called.
pub(crate) struct Fields<'a> {
    pub(crate) headers: &'a HeaderMap,
    pub(crate) decision: &'a Decision,
    pub(crate) there: Option<(&'a HeaderName, &'a HeaderValue)>,
}

impl Fields<'_> {
    /// Checks that the fields of `family` report the decision.
    pub(crate) fn check(&self, family: Headers) {
        self.retry_after();
        let overage = self.decision.is_overage() && family != Headers::None;
        assert!(!overage || self.value("x-ratelimit-overage") == "1");
        let Some(binding) = self.decision.binding() else { return };
        if self.decision.outcomes().iter().any(|outcome| outcome.held().is_some()) {
            return; // the older families leave slots out
        }
        match family {
            Headers::RateLimit => self.lists(),
            Headers::Draft07 => self.dictionary(binding),
            Headers::Draft06 => self.triplet("", binding, true),
            Headers::XRateLimitDelta => self.triplet("x-", binding, true),
            Headers::XRateLimit => self.triplet("x-", binding, false),
            _ => assert!(self.headers.get("ratelimit-policy") == self.own("ratelimit-policy")),
        }
    }

    /// Checks `Retry-After`: at least a second, rounded up, and absent if waiting does not help.
    fn retry_after(&self) {
        if self.decision.is_allowed() {
            return assert!(self.headers.get(RETRY_AFTER) == self.own("retry-after"));
        }
        match self.decision.retry_after() {
            Some(wait) => assert_eq!(self.value("retry-after"), seconds(wait).max(1).to_string()),
            None => assert!(!self.headers.contains_key(RETRY_AFTER)),
        }
    }

    /// Checks the lists: a line each, the last of its name, with an item per quota.
    fn lists(&self) {
        let outcomes = self.decision.outcomes();
        let (limits, policies) = (self.last_list("ratelimit"), self.last_list("ratelimit-policy"));
        assert_eq!((limits.len(), policies.len()), (outcomes.len(), outcomes.len()));
        for ((limit, policy), outcome) in limits.iter().zip(&policies).zip(outcomes) {
            assert_eq!(limit.0, policy.0, "both have one name");
            let [None, None, Some(most), Some(window)] = policy.1 else { panic!("{policy:?}") };
            assert!(most == u64::from(outcome.limit()) && window > 0);
            let needed = (u64::from(outcome.remaining()) * window).div_ceil(most.max(1));
            let time = match self.decision.is_allowed() {
                true => seconds(outcome.next_after()).max(needed),
                false => Self::exhausted_for(outcome),
            };
            let time = (time > 0).then_some(time);
            let left = u64::from(outcome.remaining());
            assert_eq!(limit.1, [Some(left), time, None, None]);
        }
        let names: std::collections::HashSet<_> = limits.iter().map(|(name, _)| name).collect();
        assert_eq!(names.len(), limits.len(), "names are distinct");
    }

    /// The stricter of two dictionaries stays whole.
    fn dictionary(&self, binding: &Outcome) {
        let field = self.headers.get("ratelimit").expect("a field");
        if Some(field) == self.own("ratelimit") {
            return assert!(self.value("ratelimit").contains("remaining="));
        }
        let members: Dictionary = Parser::new(self.value("ratelimit")).parse().expect("valid");
        let numbers = ["limit", "remaining", "reset"].map(|name| match members.get(name) {
            Some(ListEntry::Item(item)) => integer(&item.bare_item),
            other => panic!("{other:?}"),
        });
        let left = u64::from(binding.remaining());
        assert_eq!(numbers[..2], [u64::from(binding.limit()), left]);
        self.reset(binding, numbers[2]);
    }

    /// Returns the seconds until the next unit of a quota that denies a request and has no unit left, and
    /// 0 for other quotas.
    fn exhausted_for(outcome: &Outcome) -> u64 {
        let is_exhausted = outcome.is_denied() && outcome.remaining() == 0;
        if is_exhausted { seconds(outcome.next_after()) } else { 0 }
    }

    /// Checks the time of an older family, whose window is not in the fields.
    fn reset(&self, binding: &Outcome, reset: u64) {
        if self.decision.is_allowed() {
            return assert!(reset >= seconds(binding.next_after()), "{reset}");
        }
        // Without an effective window, the time is that of `Retry-After`.
        let retry = self.decision.retry_after().map_or(0, |wait| seconds(wait).max(1));
        let next = Self::exhausted_for(binding);
        assert_eq!(reset, if next > 0 { next } else { retry });
    }

    fn triplet(&self, prefix: &str, binding: &Outcome, from_now: bool) {
        let name = |field: &str| format!("{prefix}ratelimit-{field}");
        let own = self.own(&name("remaining")).and_then(|own| own.to_str().ok()?.parse().ok());
        if own.is_some_and(|own: u64| own <= binding.remaining().into()) {
            return;
        }
        assert_eq!(self.value(&name("limit")), binding.limit().to_string());
        assert_eq!(self.value(&name("remaining")), binding.remaining().to_string());
        let reset: u64 = self.value(&name("reset")).parse().expect("a number");
        if from_now {
            self.reset(binding, reset);
        } else {
            assert!(reset > seconds(binding.next_after()), "{reset}");
        }
    }

    /// Returns the value that the handler set under this name.
    fn own(&self, name: &str) -> Option<&HeaderValue> {
        self.there.filter(|(there, _)| *there == name).map(|(_, value)| value)
    }

    /// Returns the value of a field that occurs once.
    fn value(&self, name: &str) -> &str {
        assert_eq!(self.headers.get_all(name).iter().count(), 1, "{name}");
        self.headers[name].to_str().expect("text")
    }

    /// Returns the items of the last line: their names, and their numbers `r`, `t`, `q` and `w`.
    fn last_list(&self, name: &str) -> Vec<(String, [Option<u64>; 4])> {
        let last = self.headers.get_all(name).iter().next_back().expect(name);
        let list: List = Parser::new(last.as_bytes()).parse().expect("valid");
        let item = |entry: &ListEntry| {
            let ListEntry::Item(item) = entry else { panic!("{entry:?}") };
            let name = item.bare_item.as_string().expect("a string").to_string();
            (name, ["r", "t", "q", "w"].map(|key| item.params.get(key).map(integer)))
        };
        list.iter().map(item).collect()
    }
}

fn integer(item: &BareItem) -> u64 {
    let number = i64::from(item.as_integer().expect("an integer"));
    u64::try_from(number).expect("not negative")
}

fn seconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000_000_000)).expect("fits")
}

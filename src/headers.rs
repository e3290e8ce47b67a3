//! Decisions as header fields. Seconds exist here and nowhere else, and are always rounded up.

use std::{
    borrow::Cow,
    fmt::Write as _,
    sync::{Arc, OnceLock},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use http::{HeaderMap, HeaderName, HeaderValue, header::RETRY_AFTER};
use smallvec::SmallVec;

use crate::{
    decision::{Decision, Outcome},
    name::RuleName,
    quota::Quota,
    rule::{RuleError, Shape},
    store::Charge,
};

const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
/// Ours: the request passed beyond its quota.
const OVERAGE: HeaderName = HeaderName::from_static("x-ratelimit-overage");
const TRIPLET: [HeaderName; 3] = [
    HeaderName::from_static("ratelimit-limit"),
    HeaderName::from_static("ratelimit-remaining"),
    HeaderName::from_static("ratelimit-reset"),
];
const X_TRIPLET: [HeaderName; 3] = [
    HeaderName::from_static("x-ratelimit-limit"),
    HeaderName::from_static("x-ratelimit-remaining"),
    HeaderName::from_static("x-ratelimit-reset"),
];

/// Every header field a layer may set, for a CORS layer's `Access-Control-Expose-Headers`: without
/// it scripts in a browser cannot read them.
///
/// The CORS layer belongs outside the limiter, or refusals lack its headers.
///
/// ```
/// use tower_http::cors::CorsLayer;
/// use tower_sluice::EXPOSED_HEADERS;
///
/// let cors = CorsLayer::new().expose_headers(EXPOSED_HEADERS);
/// ```
pub const EXPOSED_HEADERS: [HeaderName; 10] = [
    RETRY_AFTER,
    RATELIMIT,
    POLICY,
    OVERAGE,
    HeaderName::from_static("ratelimit-limit"),
    HeaderName::from_static("ratelimit-remaining"),
    HeaderName::from_static("ratelimit-reset"),
    HeaderName::from_static("x-ratelimit-limit"),
    HeaderName::from_static("x-ratelimit-remaining"),
    HeaderName::from_static("x-ratelimit-reset"),
];

/// Which header fields tell a client how much is left. `Retry-After` is sent on refusals whatever
/// the choice, because it is the one field every client obeys.
///
/// With the feature `serde`: `"draft11"`, `"draft07"`, `"draft06"`, `"x-ratelimit"`,
/// `"x-ratelimit-delta"` or `"none"`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
#[non_exhaustive]
pub enum Headers {
    /// `RateLimit: "default";r=4;t=1` and `RateLimit-Policy: "default";q=5;w=1`, one item per
    /// quota: Internet-Draft `draft-ietf-httpapi-ratelimit-headers`, revision 11.
    ///
    /// `q` is the most at once (the burst) and `w` the seconds in which that many come back, so that
    /// 50 a minute with a burst of 100 is `q=100;w=120`. `r` is left now, and `t` are the seconds until
    /// more is; a full account has no `t`.
    #[default]
    Draft11,
    /// `RateLimit: limit=5, remaining=4, reset=1` and `RateLimit-Policy: 5;w=1`: revision 07.
    Draft07,
    /// `RateLimit-Limit`, `RateLimit-Remaining`, `RateLimit-Reset` (seconds from now) and
    /// `RateLimit-Policy`: revision 06.
    Draft06,
    /// `X-RateLimit-Limit`, `-Remaining` and `-Reset`, the last as Unix time in seconds, as
    /// GitHub sends it and most parsers read it.
    #[cfg_attr(feature = "serde", serde(rename = "x-ratelimit"))]
    XRateLimit,
    /// The same with `-Reset` in seconds from now, which some parsers read as a date in 1970.
    #[cfg_attr(feature = "serde", serde(rename = "x-ratelimit-delta"))]
    XRateLimitDelta,
    /// None of them.
    None,
}

/// A quota as it is called on the wire.
#[derive(Clone, Debug)]
pub(crate) struct Item {
    rule: RuleName,
    place: usize,
    name: Cow<'static, str>,
    limit: u32,
    window: u64,
}

impl Item {
    /// The quotas that one request is charged under.
    pub(crate) fn charged(charges: &[Charge<'_>]) -> Vec<Self> {
        let shapes: Vec<_> = charges.iter().map(Shape::of).collect();
        Self::named(&shapes)
    }

    /// The quotas of the rules, in order. Their names are unique.
    pub(crate) fn list(shapes: &[Shape<'_>]) -> Result<Vec<Self>, RuleError> {
        let items = Self::named(shapes);
        for (at, item) in items.iter().enumerate() {
            if items[..at].iter().any(|earlier| earlier.name == item.name) {
                return Err(RuleError::SameQuotaName(item.name.to_string()));
            }
        }
        Ok(items)
    }

    /// What clients read it is called.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn named(shapes: &[Shape<'_>]) -> Vec<Self> {
        let of = |shape: &Shape<'_>| {
            let quotas = shape.quotas.filter(|_| !shape.report_only).unwrap_or_default();
            let (rule, alone) = (shape.name, quotas.len() == 1);
            let item = move |(place, quota): (usize, &Quota)| Self {
                rule,
                place,
                name: match quota.name() {
                    Some(name) => name.into(),
                    None if alone => rule.as_str().into(),
                    None => format!("{rule}-{}", quota.period_text()).into(),
                },
                limit: quota.limit(),
                window: window(quota),
            };
            quotas.iter().enumerate().map(item).collect::<Vec<_>>()
        };
        shapes.iter().flat_map(of).collect()
    }
}

/// What is known of the header fields before the first request.
#[derive(Debug)]
pub(crate) struct Template {
    family: Headers,
    items: Vec<Item>,
    /// A string of structured fields (RFC 9651) per item: quoted, escaped.
    quoted: Vec<String>,
    policy: Option<HeaderValue>,
    /// Whether quotas are chosen per request.
    dynamic: bool,
}

impl Template {
    pub(crate) fn new(family: Headers, items: Vec<Item>, dynamic: bool) -> Self {
        let escape = |item: &Item| item.name.replace('\\', "\\\\").replace('"', "\\\"");
        let quoted: Vec<_> = items.iter().map(|item| format!("\"{}\"", escape(item))).collect();
        let policy = |(item, name): (&Item, &String)| match family {
            Headers::Draft11 => format!("{name};q={};w={}", item.limit, item.window),
            _ => format!("{};w={}", item.limit, item.window),
        };
        let policies: Vec<_> = items.iter().zip(&quoted).map(policy).collect();
        let policy = HeaderValue::try_from(policies.join(", ")).ok();
        let policy = policy.filter(|_| !items.is_empty());
        Self { family, items, quoted, policy, dynamic }
    }

    /// A template for one request, where its quotas are not those known beforehand.
    #[inline]
    pub(crate) fn for_charges(&self, charges: &[Charge<'_>]) -> Option<Arc<Self>> {
        self.dynamic.then(|| Arc::new(Self::new(self.family, Item::charged(charges), false)))
    }

    /// The name on the wire of the quota an outcome speaks of.
    pub(crate) fn name(&self, outcome: &Outcome) -> &str {
        self.find(outcome).map_or(outcome.rule().as_str(), |at| &self.items[at].name)
    }

    fn find(&self, outcome: &Outcome) -> Option<usize> {
        let known = |item: &Item| item.rule == outcome.rule() && item.place == outcome.place();
        self.items.iter().position(known)
    }

    /// The numbers to tell, small enough to wait for the response with.
    #[inline]
    pub(crate) fn read(self: &Arc<Self>, decision: &Decision) -> Option<Lines> {
        if self.family == Headers::None { None } else { self.readings(decision) }
    }

    fn readings(self: &Arc<Self>, decision: &Decision) -> Option<Lines> {
        let listed = match self.family {
            Headers::Draft11 => decision.outcomes(),
            _ => decision.binding().map_or(&[][..], std::slice::from_ref),
        };
        let known = listed.iter().filter(|outcome| outcome.is_known());
        let reading = |outcome: &Outcome| {
            let item = u16::try_from(self.find(outcome)?).ok()?;
            let next = u32::try_from(seconds(outcome.next_after())).unwrap_or(u32::MAX);
            let overage = decision.is_overage();
            Some(Reading { item, overage, remaining: outcome.remaining(), next })
        };
        let readings: SmallVec<_> = known.filter_map(reading).collect();
        (!readings.is_empty()).then(|| Lines { template: self.clone(), readings })
    }
}

/// Numbers of one decision, to be written when the response is there.
#[derive(Debug)]
pub(crate) struct Lines {
    template: Arc<Template>,
    readings: SmallVec<[Reading; 2]>,
}

#[derive(Clone, Copy, Debug)]
struct Reading {
    item: u16,
    /// Of the whole decision; here it takes no room.
    overage: bool,
    remaining: u32,
    /// Seconds until there is more; 0 when nothing is to come.
    next: u32,
}

impl Lines {
    /// Adds the fields to a response, beside what an inner limiter has already said.
    pub(crate) fn write(self, headers: &mut HeaderMap) {
        let Some(first) = self.readings.first().copied() else { return };
        if first.overage {
            headers.insert(OVERAGE, HeaderValue::from_static("1"));
        }
        let limit = self.template.items[usize::from(first.item)].limit;
        match self.template.family {
            Headers::None => {}
            Headers::Draft11 => {
                self.policy(headers);
                // a list, which may stand on several lines
                self.list().map(|list| headers.append(RATELIMIT, list));
            }
            Headers::Draft07 => {
                if insert_dictionary(headers, limit, first.remaining, first.next) {
                    self.policy(headers);
                }
            }
            Headers::Draft06 => {
                if insert_triplet(headers, TRIPLET, limit, first.remaining, first.next.into()) {
                    self.policy(headers);
                }
            }
            Headers::XRateLimit => {
                let reset = unix_seconds_in(Duration::from_secs(first.next.into()));
                insert_triplet(headers, X_TRIPLET, limit, first.remaining, reset);
            }
            Headers::XRateLimitDelta => {
                insert_triplet(headers, X_TRIPLET, limit, first.remaining, first.next.into());
            }
        }
    }

    fn policy(&self, headers: &mut HeaderMap) {
        if let Some(policy) = &self.template.policy {
            headers.append(POLICY, policy.clone());
        }
    }

    /// A list of structured fields: `"burst";r=0;t=2, "hour";r=612;t=4`.
    fn list(&self) -> Option<HeaderValue> {
        // on the stack first, so that the value is allocated once and whole
        let mut text = SmallVec::<[u8; 256]>::new();
        let mut digits = itoa::Buffer::new();
        for (at, reading) in self.readings.iter().enumerate() {
            if at > 0 {
                text.extend_from_slice(b", ");
            }
            text.extend_from_slice(self.template.quoted[usize::from(reading.item)].as_bytes());
            text.extend_from_slice(b";r=");
            text.extend_from_slice(digits.format(reading.remaining).as_bytes());
            if reading.next > 0 {
                text.extend_from_slice(b";t=");
                text.extend_from_slice(digits.format(reading.next).as_bytes());
            }
        }
        HeaderValue::from_bytes(&text).ok()
    }
}

/// Sets `limit=5, remaining=4, reset=1`, unless what is there leaves less: of a dictionary on two
/// lines the last would win.
fn insert_dictionary(headers: &mut HeaderMap, limit: u32, remaining: u32, reset: u32) -> bool {
    let there = headers.get(RATELIMIT).and_then(|value| value.to_str().ok());
    let mut members = there.into_iter().flat_map(|text| text.split(','));
    let left = members.find_map(|member| member.trim().strip_prefix("remaining=")?.parse().ok());
    if left.is_some_and(|left: u32| left <= remaining) {
        return false;
    }
    let text = format!("limit={limit}, remaining={remaining}, reset={reset}");
    HeaderValue::try_from(text).is_ok_and(|value| {
        headers.insert(RATELIMIT, value);
        true
    })
}

/// Sets three single-valued fields, unless those that are there leave less.
fn insert_triplet(
    headers: &mut HeaderMap,
    names: [HeaderName; 3],
    limit: u32,
    remaining: u32,
    reset: u64,
) -> bool {
    let there = headers.get(&names[1]).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if there.is_some_and(|there| there <= remaining.into()) {
        return false;
    }
    let [first, second, third] = names;
    headers.insert(first, limit.into());
    headers.insert(second, remaining.into());
    headers.insert(third, reset.into());
    true
}

/// Waits up to here, in seconds, are put into words once and kept.
pub(crate) const COMMON_WAITS: usize = 4_096;

/// Sets `Retry-After` unless it is there: at least 1, because clients retry at once on 0.
pub(crate) fn write_retry_after(headers: &mut HeaderMap, wait: Duration) {
    static COMMON: [OnceLock<HeaderValue>; COMMON_WAITS] =
        [const { OnceLock::new() }; COMMON_WAITS];
    let n = retry_seconds(wait);
    let common = usize::try_from(n).ok().and_then(|n| COMMON.get(n));
    let value = || common.map_or_else(|| n.into(), |kept| kept.get_or_init(|| n.into()).clone());
    headers.entry(RETRY_AFTER).or_insert_with(value);
}

/// The wait of a refusal in whole seconds.
pub(crate) fn retry_seconds(wait: Duration) -> u64 {
    seconds(wait).max(1)
}

/// The seconds an empty account takes to refill at the rate asked for. The interval would not do:
/// it is rounded up, and three a second would be told as `q=3;w=2`.
fn window(quota: &Quota) -> u64 {
    let nanos = quota.period().as_nanos() * u128::from(quota.limit());
    let refill = nanos.div_ceil(quota.units().max(1).into()).div_ceil(1_000_000_000);
    u64::try_from(refill).unwrap_or(u64::MAX).max(1)
}

fn seconds(time: Duration) -> u64 {
    time.as_secs().saturating_add((time.subsec_nanos() > 0).into())
}

fn unix_seconds_in(wait: Duration) -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    seconds(now.saturating_add(wait))
}

/// `"a", "b"` in JSON: the names are printable ASCII, so that only two characters need a bar.
pub(crate) fn push_json_string(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c < ' ' => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

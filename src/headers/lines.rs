//! The header fields of one response.

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use http::{HeaderMap, HeaderName, HeaderValue};
use smallvec::SmallVec;

use super::{Headers, OVERAGE, POLICY, RATELIMIT, TRIPLET, X_TRIPLET, seconds, template::Template};

/// Numbers of one decision, to be written when the response is there.
#[derive(Debug)]
pub(crate) struct Lines {
    pub(super) template: Arc<Template>,
    pub(super) readings: SmallVec<[Reading; 2]>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Reading {
    pub(super) item: u16,
    /// Of the whole decision; here it takes no room.
    pub(super) overage: bool,
    pub(super) remaining: u32,
    /// Seconds until there is more; 0 when nothing is to come.
    pub(super) next: u32,
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

fn unix_seconds_in(wait: Duration) -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    seconds(now.saturating_add(wait))
}

//! The header fields of one response.

use std::{
    io::{self, Write},
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use http::{
    HeaderMap, HeaderName, HeaderValue,
    header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER},
};
use smallvec::SmallVec;

use super::{
    Headers, OVERAGE, POLICY, RATELIMIT, TRIPLET, X_TRIPLET, cache::ValueCache, digits::number,
    seconds, template::Template,
};

/// The header values of one decision.
#[derive(Debug)]
pub(crate) struct Lines {
    pub(super) template: Arc<Template>,
    pub(super) readings: SmallVec<[Reading; 2]>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Reading {
    pub(super) item: u16,
    /// `true` if the request was allowed beyond the quota.
    pub(super) overage: bool,
    pub(super) remaining: u32,
    /// The seconds until more units are available, or 0 if waiting adds no units.
    pub(super) next: u32,
}

/// Returns the names of the quota fields, and `true` if the family has a policy field.
fn names(family: Headers) -> (Vec<HeaderName>, bool) {
    match family {
        Headers::None => (Vec::new(), false),
        Headers::Draft11 | Headers::Draft07 => (vec![RATELIMIT], true),
        Headers::Draft06 => (TRIPLET.into(), true),
        Headers::XRateLimit | Headers::XRateLimitDelta => (X_TRIPLET.into(), false),
    }
}

/// Returns the quota fields with placeholder values.
///
/// Copying this map is faster than building a new one.
pub(super) fn prepared(family: Headers, policy: Option<&HeaderValue>) -> HeaderMap {
    let mut fields = HeaderMap::new();
    prepare(&mut fields, family, policy);
    fields
}

/// Returns the fields of a plain-text rejection with placeholder values. `Retry-After` is first.
pub(super) fn denial(family: Headers, policy: Option<&HeaderValue>) -> HeaderMap {
    let mut fields = HeaderMap::new();
    fields.insert(RETRY_AFTER, TO_FILL_IN);
    prepare(&mut fields, family, policy);
    fields.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    fields.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    fields
}

const TO_FILL_IN: HeaderValue = HeaderValue::from_static("0");

fn prepare(fields: &mut HeaderMap, family: Headers, policy: Option<&HeaderValue>) {
    let (names, ruled) = names(family);
    for name in names {
        fields.insert(name, TO_FILL_IN);
    }
    if let Some(policy) = policy.filter(|_| ruled) {
        fields.insert(POLICY, policy.clone());
    }
}

impl Lines {
    /// Adds the fields to a response, which may already have fields of an inner limiter.
    pub(crate) fn write(self, headers: &mut HeaderMap) {
        let Some(first) = self.readings.first() else { return };
        if headers.is_empty() {
            *headers = self.template.prepared();
            self.fill_in(headers.values_mut());
        } else {
            self.add(first, headers);
        }
        if first.overage {
            headers.insert(OVERAGE, HeaderValue::from_static("1"));
        }
    }

    /// Replaces the placeholders with the values of the decision.
    pub(super) fn fill_in<'a>(&self, mut fields: impl Iterator<Item = &'a mut HeaderValue>) {
        let Some(first) = self.readings.first() else { return };
        let mut fill_in = |value| {
            if let Some(field) = fields.next() {
                *field = value;
            }
        };
        match self.template.family {
            Headers::None => {}
            Headers::Draft11 => self.list().into_iter().for_each(fill_in),
            Headers::Draft07 => self.dictionary(first).into_iter().for_each(fill_in),
            Headers::Draft06 | Headers::XRateLimit | Headers::XRateLimitDelta => {
                let [limit, remaining, reset] = self.triplet(first);
                fill_in(limit);
                fill_in(remaining);
                fill_in(reset);
            }
        }
    }

    fn add(&self, first: &Reading, headers: &mut HeaderMap) {
        match self.template.family {
            Headers::None => {}
            Headers::Draft11 => {
                self.policy(headers);
                // A list may span several lines.
                self.list().map(|list| headers.append(RATELIMIT, list));
            }
            Headers::Draft07 => self.add_dictionary(first, headers),
            Headers::Draft06 => {
                if self.add_triplet(first, headers, TRIPLET) {
                    self.policy(headers);
                }
            }
            Headers::XRateLimit | Headers::XRateLimitDelta => {
                self.add_triplet(first, headers, X_TRIPLET);
            }
        }
    }

    fn policy(&self, headers: &mut HeaderMap) {
        if let Some(policy) = &self.template.policy {
            headers.append(POLICY, policy.clone());
        }
    }

    /// Renders a list of structured fields: `"burst";r=0;t=2, "hour";r=612;t=4`.
    fn list(&self) -> Option<HeaderValue> {
        if let ([reading], Some(cache)) = (&*self.readings, &self.template.cache)
            && let Some(slot) = cache.get_or_init(ValueCache::new).slot(reading)
        {
            if slot.get().is_none() {
                slot.set(self.make_list()?).ok();
            }
            return slot.get().cloned();
        }
        self.make_list()
    }

    fn make_list(&self) -> Option<HeaderValue> {
        // A stack buffer, so that one allocation of the exact size is enough.
        let mut text = [0; 256];
        let mut rest = &mut text[..];
        if self.put_list(&mut rest).is_ok() {
            let length = 256 - rest.len();
            return HeaderValue::from_bytes(&text[..length]).ok();
        }
        let mut text = Vec::new();
        self.put_list(&mut text).ok()?;
        HeaderValue::from_bytes(&text).ok()
    }

    fn put_list(&self, text: &mut impl Write) -> io::Result<()> {
        let mut digits = itoa::Buffer::new();
        for (at, reading) in self.readings.iter().enumerate() {
            if at > 0 {
                text.write_all(b", ")?;
            }
            text.write_all(self.template.quoted[usize::from(reading.item)].as_bytes())?;
            text.write_all(b";r=")?;
            text.write_all(digits.format(reading.remaining).as_bytes())?;
            if reading.next > 0 {
                text.write_all(b";t=")?;
                text.write_all(digits.format(reading.next).as_bytes())?;
            }
        }
        Ok(())
    }

    /// Sets `limit=5, remaining=4, reset=1`.
    ///
    /// A value of an inner limiter is replaced only if it reports more units left.
    fn add_dictionary(&self, first: &Reading, headers: &mut HeaderMap) {
        let there = headers.get(RATELIMIT).and_then(|value| value.to_str().ok());
        let mut members = there.into_iter().flat_map(|text| text.split(','));
        let left =
            members.find_map(|member| member.trim().strip_prefix("remaining=")?.parse().ok());
        if left.is_none_or(|left: u32| left > first.remaining)
            && let Some(dictionary) = self.dictionary(first)
        {
            headers.insert(RATELIMIT, dictionary);
            self.policy(headers);
        }
    }

    fn dictionary(&self, first: &Reading) -> Option<HeaderValue> {
        let Reading { item, remaining, next, .. } = first;
        let limit = self.template.items.list[usize::from(*item)].limit;
        HeaderValue::try_from(format!("limit={limit}, remaining={remaining}, reset={next}")).ok()
    }

    /// Sets the three fields, and returns `true`.
    ///
    /// Returns `false` if an inner limiter has set the fields and reports no more units left.
    fn add_triplet(
        &self,
        first: &Reading,
        headers: &mut HeaderMap,
        names: [HeaderName; 3],
    ) -> bool {
        let there = headers.get(&names[1]).and_then(|value| value.to_str().ok());
        let left = there.and_then(|there| there.parse::<u64>().ok());
        if left.is_some_and(|left| left <= first.remaining.into()) {
            return false;
        }
        for (name, value) in names.into_iter().zip(self.triplet(first)) {
            headers.insert(name, value);
        }
        true
    }

    /// Returns the values of the limit, remaining and reset fields.
    fn triplet(&self, first: &Reading) -> [HeaderValue; 3] {
        let reset = match self.template.family {
            Headers::XRateLimit => unix_seconds_in(Duration::from_secs(first.next.into())),
            _ => first.next.into(),
        };
        let limit = self.template.items.list[usize::from(first.item)].told.clone();
        [limit, number(first.remaining.into()), number(reset)]
    }
}

fn unix_seconds_in(wait: Duration) -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    seconds(now.saturating_add(wait))
}

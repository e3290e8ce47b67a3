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
    Headers, OVERAGE, POLICY, RATELIMIT, TRIPLET, X_TRIPLET, digits::number, seconds,
    template::Template,
};

/// The header values of one decision.
#[derive(Debug)]
pub(crate) struct Lines {
    pub(super) template: Arc<Template>,
    pub(super) readings: Readings,
}

pub(super) type Readings = SmallVec<[Reading; 2]>;

#[derive(Clone, Copy, Debug)]
pub(super) struct Reading {
    pub(super) item: u16,
    /// `true` if the request was allowed beyond the quota.
    pub(super) overage: bool,
    /// `true` if the time depends only on the units left.
    pub(super) is_usual: bool,
    pub(super) remaining: u32,
    /// The seconds of the effective window, or 0 without one.
    pub(super) time: u32,
}

/// Returns the names of the quota fields, and `true` if the family has a policy field.
fn names(family: Headers) -> (&'static [HeaderName], bool) {
    match family {
        Headers::None => (&[], false),
        Headers::RateLimit | Headers::Draft07 => (&RATELIMIT, true),
        Headers::Draft06 => (&TRIPLET, true),
        Headers::XRateLimit | Headers::XRateLimitDelta => (&X_TRIPLET, false),
    }
}

/// Returns the quota fields with placeholder values.
pub(super) fn fields(family: Headers, policy: Option<&HeaderValue>) -> HeaderMap {
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
        fields.insert(name.clone(), TO_FILL_IN);
    }
    if let Some(policy) = policy.filter(|_| ruled) {
        fields.insert(POLICY, policy.clone());
    }
}

impl Lines {
    /// Adds the fields to a response, which may already have fields of an inner limiter.
    #[inline]
    pub(crate) fn write(self, headers: &mut HeaderMap) {
        self.template.write(&self.readings, headers);
    }
}

/// Rendering.
impl Template {
    /// Adds the fields to a response. The [module](super) documents existing fields.
    pub(super) fn write(&self, readings: &[Reading], headers: &mut HeaderMap) {
        let Some(first) = readings.first() else { return };
        match &self.prepared {
            Some(prepared) if headers.is_empty() => {
                *headers = prepared.fields.clone();
                self.fill_in(readings, headers.values_mut());
            }
            _ => self.add(readings, first, headers),
        }
        if first.overage {
            headers.insert(OVERAGE, HeaderValue::from_static("1"));
        }
    }

    /// Replaces the placeholders with the values of the decision.
    #[inline(always)]
    pub(super) fn fill_in<'a>(
        &self,
        readings: &[Reading],
        mut fields: impl Iterator<Item = &'a mut HeaderValue>,
    ) {
        let Some(first) = readings.first() else { return };
        let value = match self.family {
            Headers::None => return,
            Headers::RateLimit => self.list(readings),
            Headers::Draft07 => self.dictionary(first),
            Headers::Draft06 | Headers::XRateLimit | Headers::XRateLimitDelta => {
                fields.zip(self.triplet(first)).for_each(|(field, value)| *field = value);
                return;
            }
        };
        if let (Some(field), Some(value)) = (fields.next(), value) {
            *field = value;
        }
    }

    #[inline(never)]
    fn add(&self, readings: &[Reading], first: &Reading, headers: &mut HeaderMap) {
        let (names, ruled) = names(self.family);
        let is_list = self.family == Headers::RateLimit;
        let left = if is_list { None } else { self.left_inside(headers) };
        if left.is_some_and(|left| left <= first.remaining.into()) {
            return;
        }
        let mut values = [TO_FILL_IN; 3];
        self.fill_in(readings, values.iter_mut());
        let fields = names.iter().cloned().zip(values);
        let policy = self.policy.clone().filter(|_| ruled).map(|policy| (POLICY, policy));
        for (name, value) in fields.chain(policy) {
            if is_list {
                headers.append(name, value);
            } else {
                headers.insert(name, value);
            }
        }
    }

    /// Returns the units left that an inner limiter reports in fields of one quota.
    fn left_inside(&self, headers: &HeaderMap) -> Option<u64> {
        let (names, _) = names(self.family);
        let field = |name| headers.get(name)?.to_str().ok();
        match names {
            [_, remaining, _] => field(remaining)?.parse().ok(),
            [dictionary] => {
                let mut members = field(dictionary)?.split(',');
                members.find_map(|member| member.trim().strip_prefix("remaining=")?.parse().ok())
            }
            _ => None,
        }
    }

    /// Renders a list of structured fields: `"burst";r=0;t=2, "hour";r=612;t=4`.
    #[inline(always)]
    fn list(&self, readings: &[Reading]) -> Option<HeaderValue> {
        match readings {
            [one] => self.value(one, || self.make_list(readings)),
            _ => self.make_list(readings),
        }
    }

    #[inline(never)]
    fn make_list(&self, readings: &[Reading]) -> Option<HeaderValue> {
        // A stack buffer, so that one allocation of the exact size is enough.
        let mut text = [0; 128];
        let mut rest = &mut text[..];
        if self.put_list(readings, &mut rest).is_ok() {
            let length = 128 - rest.len();
            return HeaderValue::from_bytes(&text[..length]).ok();
        }
        let mut text = Vec::new();
        self.put_list(readings, &mut text).ok()?;
        HeaderValue::from_bytes(&text).ok()
    }

    fn put_list(&self, readings: &[Reading], text: &mut impl Write) -> io::Result<()> {
        let mut digits = itoa::Buffer::new();
        for (at, reading) in readings.iter().enumerate() {
            if at > 0 {
                text.write_all(b", ")?;
            }
            text.write_all(self.prefixes[usize::from(reading.item)].as_bytes())?;
            text.write_all(digits.format(reading.remaining).as_bytes())?;
            if reading.time > 0 {
                text.write_all(b";t=")?;
                text.write_all(digits.format(reading.time).as_bytes())?;
            }
            if let Some(pk) = &self.items.list[usize::from(reading.item)].pk {
                text.write_all(pk.as_bytes())?;
            }
        }
        Ok(())
    }

    /// Renders `limit=5, remaining=4, reset=1`.
    fn dictionary(&self, first: &Reading) -> Option<HeaderValue> {
        self.value(first, || {
            let Reading { item, remaining, time, .. } = first;
            let limit = self.items.list[usize::from(*item)].limit;
            HeaderValue::try_from(format!("limit={limit}, remaining={remaining}, reset={time}"))
                .ok()
        })
    }

    /// Returns the values of the limit, remaining and reset fields.
    fn triplet(&self, first: &Reading) -> [HeaderValue; 3] {
        let reset = match self.family {
            Headers::XRateLimit => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                seconds(now.saturating_add(Duration::from_secs(first.time.into())))
            }
            _ => first.time.into(),
        };
        let limit = self.items.list[usize::from(first.item)].told.clone();
        [limit, number(first.remaining.into()), number(reset)]
    }
}

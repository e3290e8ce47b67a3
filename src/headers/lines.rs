//! The header fields of one decision, and how they join those of a response.

use std::{
    collections::BTreeSet,
    mem,
    sync::{Arc, OnceLock},
    time::Duration,
};

use http::{HeaderMap, HeaderName, HeaderValue};
use parking_lot::Mutex;

use super::{Headers, OVERAGE, POLICY, RATELIMIT, TRIPLET, X_TRIPLET, item::UNIT_FIELDS};

/// The rendered header fields of one decision.
#[derive(Clone, Debug)]
pub(crate) struct Lines(pub(super) Arc<Fields>);

#[derive(Clone, Debug)]
pub(super) struct Fields {
    pub(super) family: Headers,
    /// The units left under the first quota.
    pub(super) remaining: u32,
    /// `true` if the request was allowed beyond a quota.
    pub(super) overage: bool,
    pub(super) map: HeaderMap,
}

pub(super) const TO_FILL_IN: HeaderValue = HeaderValue::from_static("0");
pub(super) const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
pub(super) const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");

/// Returns the names of the quota fields, except for the policy and the fields by unit.
pub(super) fn names(family: Headers) -> &'static [HeaderName] {
    match family {
        Headers::None => &[],
        Headers::RateLimit | Headers::ByUnit | Headers::Draft07 => &RATELIMIT,
        Headers::Draft06 => &TRIPLET,
        Headers::XRateLimit | Headers::XRateLimitDelta => &X_TRIPLET,
    }
}

impl Lines {
    pub(super) fn new(family: Headers, remaining: u32, overage: bool, map: HeaderMap) -> Self {
        Self(Arc::new(Fields {
            family,
            remaining,
            overage,
            map,
        }))
    }

    /// Adds the fields to a response, which may already have fields of an inner limiter. The
    /// [module](super) documents existing fields.
    #[inline(always)]
    pub(crate) fn write(self, headers: &mut HeaderMap) {
        let Fields {
            family, overage, ..
        } = *self.0;
        if headers.capacity() == 0 {
            self.replace(headers);
        } else {
            self.0.add_to(headers);
        }
        if overage && family != Headers::None {
            headers.insert(OVERAGE, HeaderValue::from_static("1"));
        }
    }

    /// Replaces a map that has allocated nothing.
    #[inline(always)]
    pub(super) fn replace(self, headers: &mut HeaderMap) {
        let map = match Arc::strong_count(&self.0) {
            1 => Arc::unwrap_or_clone(self.0).map,
            _ => self.0.map.clone(),
        };
        // There is nothing to free. A drop would check it again.
        mem::forget(mem::replace(headers, map));
    }
}

impl Fields {
    #[inline(never)]
    fn add_to(&self, headers: &mut HeaderMap) {
        match self.family {
            Headers::ByUnit => self.add_by_unit(headers),
            Headers::RateLimit => {
                for (name, value) in &self.map {
                    headers.append(name, value.clone());
                }
            }
            family => {
                let left = left_inside(family, headers);
                if left.is_some_and(|left| left <= self.remaining.into()) {
                    return;
                }
                for (name, value) in &self.map {
                    headers.insert(name, value.clone());
                }
            }
        }
    }

    /// Appends the lists. Of each unit, the fields with fewer units left stay.
    fn add_by_unit(&self, headers: &mut HeaderMap) {
        for (name, ours) in &self.map {
            if *name == POLICY || RATELIMIT.contains(name) {
                headers.append(name, ours.clone());
                continue;
            }
            let Some(unit) = name.as_str().strip_prefix(UNIT_FIELDS[1]) else {
                continue;
            };
            let theirs = headers.get(name).and_then(units);
            if theirs.is_none_or(|theirs| units(ours).is_some_and(|ours| ours < theirs)) {
                self.insert_unit(unit, headers);
            }
        }
    }

    fn insert_unit(&self, unit: &str, headers: &mut HeaderMap) {
        for field in UNIT_FIELDS {
            let Ok(name) = HeaderName::try_from(format!("{field}{unit}")) else {
                continue;
            };
            if let Some(value) = self.map.get(&name) {
                headers.insert(name, value.clone());
            }
        }
    }
}

fn units(field: &HeaderValue) -> Option<u64> {
    field.to_str().ok()?.parse().ok()
}

/// Returns the units left that an inner limiter reports in fields of one quota.
fn left_inside(family: Headers, headers: &HeaderMap) -> Option<u64> {
    match names(family) {
        [_, remaining, _] => text(headers, remaining)?.parse().ok(),
        [dictionary] => {
            let mut members = text(headers, dictionary)?.split(',');
            members.find_map(|member| member.trim().strip_prefix("remaining=")?.parse().ok())
        }
        _ => None,
    }
}

fn text<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Option<&'h str> {
    headers.get(name)?.to_str().ok()
}

/// Returns a time as `120ms`, `1s`, `6m0s` or `1h0m0s`, rounded up.
pub(super) fn time_text(time: Duration) -> String {
    let millis = time.as_nanos().div_ceil(1_000_000);
    if (1..1_000).contains(&millis) {
        return format!("{millis}ms");
    }
    let seconds = millis.div_ceil(1_000);
    let (hours, minutes) = (seconds / 3_600, seconds / 60 % 60);
    match (hours, minutes) {
        (0, 0) => format!("{seconds}s"),
        (0, _) => format!("{minutes}m{}s", seconds % 60),
        _ => format!("{hours}h{minutes}m{}s", seconds % 60),
    }
}

/// Returns the wait in whole seconds, at least 1, because clients retry immediately on 0.
pub(crate) fn retry_seconds(wait: Duration) -> u64 {
    let seconds = wait
        .as_secs()
        .saturating_add((wait.subsec_nanos() > 0).into());
    seconds.max(1)
}

/// Returns a number as a header value. Small numbers are rendered once, as static texts: their clones count
/// no references, and threads would contend for such a counter.
pub(super) fn number(n: u64) -> HeaderValue {
    static SMALL: [OnceLock<HeaderValue>; 4_096] = [const { OnceLock::new() }; 4_096];
    match usize::try_from(n).ok().and_then(|n| SMALL.get(n)) {
        Some(value) => value
            .get_or_init(|| HeaderValue::from_static(n.to_string().leak()))
            .clone(),
        None => n.into(),
    }
}

/// Returns a field whose clones have no common counter, which threads would contend for.
///
/// Its text stays in memory for the life of the process. Beyond 1,024 texts, the field is returned as it
/// is.
pub(super) fn permanent(field: HeaderValue) -> HeaderValue {
    const MOST: usize = 1_024;
    static TEXTS: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let Ok(text) = field.to_str() else {
        return field;
    };
    let mut texts = TEXTS.lock();
    if let Some(known) = texts.get(text) {
        return HeaderValue::from_static(known);
    }
    if texts.len() >= MOST {
        return field;
    }
    let known: &'static str = Box::leak(text.into());
    texts.insert(known);
    HeaderValue::from_static(known)
}

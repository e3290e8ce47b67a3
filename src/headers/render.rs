//! Renders the numbers of a decision as header fields.

use std::{
    io::{self, Write},
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use http::{
    HeaderMap, HeaderName, HeaderValue,
    header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER},
};

use super::{
    Headers, POLICY,
    item::policy,
    lines::{Lines, NO_STORE, TEXT, TO_FILL_IN, names, number, retry_seconds, time_text},
    recent::Reading,
    template::{FieldSet, Template},
};
use crate::{
    decision::{Decision, Outcome},
    store::Charge,
};

impl Template {
    /// Returns fields with placeholders.
    pub(super) fn blank(&self, set: FieldSet) -> HeaderMap {
        let policy = self.policy.clone().filter(|_| self.family.has_policy());
        let fields = names(self.family)
            .iter()
            .map(|name| (name.clone(), TO_FILL_IN))
            .chain(policy.map(|policy| (POLICY, policy)));
        if set == FieldSet::Quotas {
            return fields.collect();
        }
        let denial = [(RETRY_AFTER, TO_FILL_IN)].into_iter().chain(fields);
        denial
            .chain([(CONTENT_TYPE, TEXT), (CACHE_CONTROL, NO_STORE)])
            .collect()
    }

    /// Returns the quota fields or, with the seconds until a retry, those of a plain-text rejection.
    #[inline(never)]
    pub(super) fn render(
        &self,
        readings: &[Reading],
        charges: &[Charge<'_>],
        retry: u64,
        overage: bool,
    ) -> Lines {
        let mut map = match &self.prepared {
            Some(prepared) if retry > 0 => prepared.denial.clone(),
            Some(prepared) => prepared.fields.clone(),
            None if retry > 0 => self.blank(FieldSet::PlainRejection),
            None => self.blank(FieldSet::Quotas),
        };
        let mut values = map.values_mut();
        if retry > 0
            && let Some(field) = values.next()
        {
            *field = number(retry);
        }
        self.set(readings, values);
        if !self.are_all(readings) && self.family.has_policy() {
            self.set_policy(readings, charges, &mut map);
        }
        let remaining = readings.first().map_or(0, |reading| reading.remaining);
        Lines::new(self.family, remaining, overage, map)
    }

    /// Sets the policy field to the rules that charge a request.
    ///
    /// A rule that did not deny the request may have no reading, so its charge tells that it is one of them.
    #[inline(never)]
    fn set_policy(&self, readings: &[Reading], charges: &[Charge<'_>], map: &mut HeaderMap) {
        let is_read = |rule| {
            readings
                .iter()
                .any(|reading| self.item(reading).rule == rule)
        };
        let charges = charges.iter().filter(|charge| !charge.report_only);
        let is_charged = |rule| charges.clone().any(|charge| charge.rule == rule);
        let items = self.items.iter();
        let charging = items.filter(|item| is_read(item.rule) || is_charged(item.rule));
        match (policy(charging), map.get_mut(POLICY)) {
            (Some(policy), Some(field)) => *field = policy,
            (Some(policy), None) => drop(map.insert(POLICY, policy)),
            (None, _) => drop(map.remove(POLICY)),
        }
    }

    /// Returns the lists, and the fields of each unit. The times of these change too often for a cache.
    #[inline(never)]
    pub(super) fn fields_by_unit(
        &self,
        decision: &Decision,
        charges: &[Charge<'_>],
        readings: &[Reading],
    ) -> Option<Lines> {
        let mut map = match readings {
            [] => HeaderMap::new(),
            _ => Arc::unwrap_or_clone(self.render(readings, charges, 0, false).0).map,
        };
        let units = self.items.iter();
        for names in units.filter_map(|item| item.unit_fields.as_ref()) {
            self.add_unit(decision, names, &mut map);
        }
        let overage = decision.is_overage();
        (overage || !map.is_empty()).then(|| Lines::new(self.family, 0, overage, map))
    }

    /// Adds the fields of a unit, unless they are there. They report the decisive quota of the unit.
    fn add_unit(
        &self,
        decision: &Decision,
        [limit, remaining, reset]: &[HeaderName; 3],
        map: &mut HeaderMap,
    ) {
        if map.contains_key(limit) {
            return;
        }
        let is_of_unit = |outcome: &Outcome| {
            let item = self.find(outcome).map(|at| &self.items[at]);
            let fields = item.and_then(|item| item.unit_fields.as_ref());
            outcome.is_known() && fields.is_some_and(|fields| fields[0] == *limit)
        };
        let Some(outcome) = decision.binding_among(is_of_unit) else {
            return;
        };
        map.insert(limit.clone(), number(outcome.limit().into()));
        map.insert(remaining.clone(), number(outcome.remaining().into()));
        if let Ok(time) = HeaderValue::try_from(time_text(outcome.reset_after())) {
            map.insert(reset.clone(), time);
        }
    }

    /// Sets the values of the fields, except for the policy.
    fn set<'a>(&self, readings: &[Reading], mut fields: impl Iterator<Item = &'a mut HeaderValue>) {
        let Some(first) = readings.first() else {
            return;
        };
        let value = match self.family {
            Headers::None => return,
            Headers::RateLimit | Headers::ByUnit => self.list(readings),
            Headers::Draft07 => self.dictionary(first),
            Headers::Draft06 | Headers::XRateLimit | Headers::XRateLimitDelta => {
                let values = self.triplet(first);
                return values
                    .into_iter()
                    .zip(fields)
                    .for_each(|(value, field)| *field = value);
            }
        };
        if let (Some(field), Some(value)) = (fields.next(), value) {
            *field = value;
        }
    }

    /// Renders a list of structured fields: `"burst";r=0;t=2, "hour";r=612;t=4`.
    fn list(&self, readings: &[Reading]) -> Option<HeaderValue> {
        const MOST: usize = 128;
        // A stack buffer, so that one allocation of the exact size is enough.
        let mut text = [0; MOST];
        let mut rest = &mut text[..];
        if self.put_list(readings, &mut rest).is_ok() {
            let length = MOST - rest.len();
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
            let item = self.item(reading);
            text.write_all(item.prefix.as_bytes())?;
            text.write_all(digits.format(reading.remaining).as_bytes())?;
            if reading.time > 0 {
                text.write_all(b";t=")?;
                text.write_all(digits.format(reading.time).as_bytes())?;
            }
            if let Some(pk) = &item.pk {
                text.write_all(pk.as_bytes())?;
            }
        }
        Ok(())
    }

    /// Renders `limit=5, remaining=4, reset=1`.
    fn dictionary(&self, first: &Reading) -> Option<HeaderValue> {
        let limit = self.item(first).limit;
        let remaining = first.remaining;
        let reset = first.time;
        let text = format!("limit={limit}, remaining={remaining}, reset={reset}");
        HeaderValue::try_from(text).ok()
    }

    /// Returns the values of the limit, remaining and reset fields.
    fn triplet(&self, first: &Reading) -> [HeaderValue; 3] {
        let reset = match self.family {
            Headers::XRateLimit => {
                let now = SystemTime::now()
                    .duration_since(UNIX_EPOCH)
                    .unwrap_or_default();
                retry_seconds(now.saturating_add(Duration::from_secs(first.time.into())))
            }
            _ => first.time.into(),
        };
        [self.item(first).limit.into(), first.remaining.into(), reset].map(number)
    }
}

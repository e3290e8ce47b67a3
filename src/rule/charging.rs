//! The path of a request through one rule: `applies_to`, `key`, and then the charge.

use http::StatusCode;

use super::{
    Applies, Bypass, Candidates, OnMissingKey, Rule,
    plan::longest_wait,
    rules::{self, Then, append_charge, sealed::Sealed},
};
use crate::{
    key::{Key, KeyError, KeyExtractor, RequestHead, share_unless_client},
    store::Charge,
};

impl<K: KeyExtractor> Rule<K> {
    /// Returns how the rule treats a request. A rule that limits nothing skips it.
    #[inline]
    pub(super) fn applies_to(&self, head: &RequestHead<'_>) -> Applies {
        if self.plan.is_unlimited() && self.if_no_key.is_none() {
            return Applies::Skip;
        }
        self.applies
            .as_ref()
            .map_or(Applies::Charge, |applies| applies(head))
    }

    /// Calls `then` with the charge of a request to which the rule applies, unless it has no key.
    #[inline(always)]
    fn with_charge<T>(
        &self,
        head: &RequestHead<'_>,
        applies: Applies,
        then: impl FnOnce(&Charge<'_>) -> T,
    ) -> Result<Option<T>, KeyError> {
        let mut found = self.extractor.extract(head);
        share_unless_client(&self.extractor, &mut found);
        let key = self.key(&mut found, applies).map_err(Clone::clone)?;
        Ok(key.map(|key| self.with_charge_of(key, head, then)))
    }

    /// Returns the key to charge, of the one that was found. Returns `None` if the request has no key, or if
    /// the key is unusable and the rule is report-only.
    ///
    /// Borrows the key, because moving it costs as much as hashing it.
    #[inline(always)]
    pub(super) fn key<'k>(
        &self,
        found: &'k mut Result<Option<Key>, KeyError>,
        applies: Applies,
    ) -> Result<Option<&'k Key>, &'k KeyError> {
        let is_plain =
            matches!(found, Ok(Some(key)) if !key.is_blank() && key.len() <= self.max_key_len);
        if !is_plain {
            *found = self.resolve_missing(found, applies);
            if found.is_err() && self.report_only.is_on() {
                return Ok(None);
            }
        }
        found.as_ref().map(Option::as_ref)
    }

    /// Calls `then` with the charge of a request that has this key.
    #[inline(always)]
    pub(super) fn with_charge_of<T>(
        &self,
        key: &Key,
        head: &RequestHead<'_>,
        then: impl FnOnce(&Charge<'_>) -> T,
    ) -> T {
        let mut made = None;
        let quotas = self.plan.quotas(head, key, &mut made);
        let mut charge = Charge::new(self.name, key, quotas);
        charge.cost = self.cost.of(head);
        charge.headroom = self.headroom.of(head);
        charge.report_only = self.report_only.is_on();
        if let Some(max_wait) = self.max_wait {
            charge.max_wait = longest_wait(head, max_wait);
        }
        then(&charge)
    }

    /// Applies the policy for a missing key, and rejects a key that is too long.
    #[cold]
    fn resolve_missing(
        &self,
        found: &Result<Option<Key>, KeyError>,
        applies: Applies,
    ) -> Result<Option<Key>, KeyError> {
        let is_required = applies == Applies::Require;
        let error = match found {
            Ok(Some(key)) if key.len() > self.max_key_len => return Err(self.too_long(key)),
            Err(error) if !error.is_missing() => return Err(error.clone()),
            Err(error) => error.clone(),
            // The extractor says that the rule does not apply to the request.
            Ok(None) if !is_required => return Ok(None),
            // The key is blank.
            Ok(_) => KeyError::missing("key"),
        };
        if self.if_no_key.is_some() && !is_required {
            return Ok(None);
        }
        match self.on_missing_key {
            OnMissingKey::Reject(status) => Err(error.with_status(status)),
            _ if is_required => Err(error),
            OnMissingKey::Skip => Ok(None),
            OnMissingKey::Share => Ok(Some(Key::unidentified())),
        }
    }

    fn too_long(&self, key: &Key) -> KeyError {
        let bytes = key.len();
        let most = self.max_key_len;
        let why = format!("key of {bytes} bytes is too long; send at most {most}");
        KeyError::unusable(StatusCode::BAD_REQUEST, why)
    }
}

impl<K: KeyExtractor> Sealed for Rule<K> {
    #[inline]
    fn append_charges(
        &self,
        head: &RequestHead<'_>,
        before: Candidates<'_, '_>,
        then: &mut Then<'_>,
    ) -> Result<(), Bypass> {
        let applies = self.applies_to(head);
        if applies == Applies::Skip {
            then(before);
            return Ok(());
        }
        let charged = self.with_charge(head, applies, |charge| {
            if self.plan.is_unlimited() {
                then(before);
            } else {
                append_charge(charge, before, then);
            }
        });
        match (charged?, &self.if_no_key) {
            (None, Some(rules)) => return rules.append_charges(head, before, then),
            (None, None) => then(before),
            (Some(()), _) => {}
        }
        Ok(())
    }

    #[inline(always)]
    fn with_charges<T>(
        &self,
        head: &RequestHead<'_>,
        one: impl FnOnce(&Charge<'_>) -> T,
        several: impl FnOnce(Candidates<'_, '_>) -> T,
        bypassed: impl FnOnce(Bypass) -> T,
    ) -> T {
        if self.if_no_key.is_some() {
            return rules::with_charges(self, head, several, bypassed);
        }
        let applies = self.applies_to(head);
        if applies == Applies::Skip {
            return bypassed(Bypass::NO_RULE);
        }
        match self.with_charge(head, applies, one) {
            Ok(Some(result)) => result,
            Ok(None) => bypassed(Bypass::NO_RULE),
            Err(error) => bypassed(error.into()),
        }
    }
}

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

    /// Returns the key to charge, or `None` if the request has no key, or if the key is unusable and the
    /// rule is report-only.
    ///
    /// Borrows the key, because moving it costs as much as hashing it. Stores the key in `made` if
    /// it is not the one that was `found`.
    #[inline(always)]
    pub(super) fn key<'k>(
        &self,
        found: &'k Result<Option<Key>, KeyError>,
        made: &'k mut Option<Result<Option<Key>, KeyError>>,
        applies: Applies,
    ) -> Result<Option<&'k Key>, &'k KeyError> {
        if let Ok(Some(key)) = found
            && key.len() <= self.max_key_len
            && !key.is_blank()
        {
            return Ok(Some(key));
        }
        let resolved = made.insert(self.resolve_missing(found, applies));
        if resolved.is_err() && self.report_only.is_on() {
            return Ok(None);
        }
        resolved.as_ref().map(Option::as_ref)
    }

    /// Calls `then` with the charge of a request that has this key.
    #[inline(always)]
    pub(super) fn with_charge<T>(
        &self,
        head: &RequestHead<'_>,
        key: &Key,
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
        let mut found = self.extractor.extract(head);
        share_unless_client(&self.extractor, &mut found);
        let mut made = None;
        let key = self.key(&found, &mut made, applies).map_err(Clone::clone)?;
        match (key, &self.if_no_key) {
            (None, Some(rules)) => return rules.append_charges(head, before, then),
            (Some(key), _) if !self.plan.is_unlimited() => {
                self.with_charge(head, key, |charge| append_charge(charge, before, then));
            }
            _ => then(before),
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
        // Found here, since a helper that returned it would copy the key.
        let mut found = self.extractor.extract(head);
        share_unless_client(&self.extractor, &mut found);
        let mut made = None;
        match self.key(&found, &mut made, applies) {
            Ok(Some(key)) => self.with_charge(head, key, one),
            Ok(None) => bypassed(Bypass::NO_RULE),
            Err(error) => bypassed(error.clone().into()),
        }
    }
}

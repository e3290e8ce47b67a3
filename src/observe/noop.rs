//! No-op records, used without the features `admin`, `metrics` and `tracing`.

#[cfg(not(feature = "admin"))]
pub(super) mod denial_log {
    use std::time::Duration;

    use super::super::Verdict;
    use crate::{fingerprint::Fingerprint, key::Key, name::RuleName};

    #[derive(Clone, Debug, Default)]
    pub(crate) struct DenialLog(());

    impl DenialLog {
        #[expect(clippy::unused_self, reason = "matches the `admin` version")]
        pub(in crate::observe) fn is_enabled(&self) -> bool {
            false
        }

        pub(in crate::observe) fn record<'a>(
            &self,
            _: RuleName,
            _: Verdict,
            _: impl FnOnce() -> (Option<(&'a Key, Fingerprint)>, Option<Duration>),
        ) {
        }

        pub(in crate::observe) fn record_all(&self, _: Verdict, _: Option<Duration>) {}
    }
}

#[cfg(not(feature = "metrics"))]
pub(super) mod metered {
    use super::super::{DenialLog, Verdict};
    use crate::{
        decision::{Decision, Outcome},
        name::RuleName,
    };

    #[derive(Clone, Debug)]
    pub(crate) struct Meter(DenialLog);

    #[derive(Clone, Copy, Debug, Default)]
    pub(crate) struct Started;

    impl Started {
        #[inline]
        pub(crate) fn now() -> Self {
            Self
        }
    }

    impl Meter {
        pub(in crate::observe) const COUNTS: bool = false;

        pub(crate) fn new(_: impl IntoIterator<Item = RuleName>) -> Self {
            Self(DenialLog::default())
        }

        pub(crate) fn denial_log(&self) -> &DenialLog {
            &self.0
        }

        #[cfg(feature = "admin")]
        #[expect(clippy::unused_self, reason = "matches the `metrics` version")]
        pub(crate) fn with_denial_log(self, denial_log: DenialLog) -> Self {
            Self(denial_log)
        }

        /// Does nothing.
        #[inline]
        pub(crate) fn answered(&self, _: &Decision, _: Started) {}

        pub(in crate::observe) fn count(&self, _: RuleName, _: Verdict) {}

        pub(in crate::observe) fn count_all(&self, _: Verdict) {}

        pub(in crate::observe) fn count_near(&self, _: RuleName) {}

        pub(in crate::observe) fn is_near(&self, _: &Outcome) -> bool {
            false
        }
    }

    pub(crate) fn unidentified() {}

    pub(crate) fn store_failed(_: &'static str) {}

    pub(crate) fn circuit(_: Option<&str>, _: u8) {}

    pub(crate) fn overflowed() {}

    pub(crate) fn block_denied() {}

    pub(crate) fn set_keys(_: usize, _: usize, _: u64) {}
}

#[cfg(not(feature = "tracing"))]
pub(super) mod traced {
    use super::super::Verdict;
    use crate::{decision::Decision, fingerprint::Fingerprint, name::RuleName, quota::Quota};

    #[inline]
    pub(in crate::observe) fn trace(
        _: &Decision,
        _: Verdict,
        _: impl Fn(RuleName) -> Option<Fingerprint>,
    ) {
    }

    pub(crate) fn late_charge_cut(_: &Quota) {}
}

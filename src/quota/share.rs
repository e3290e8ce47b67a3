//! Divides a quota among several processes.

use std::num::NonZeroU32;

use super::{Algorithm, MAX_REFILL, Quota};

impl Quota {
    /// Returns the part of the quota for one of `n` processes, which is the same for every charge.
    ///
    /// All parts together allow no more than the quota, except that each part allows at least one
    /// unit. The part of a token bucket refills continuously.
    pub(crate) fn share(&self, n: NonZeroU32) -> Self {
        if self.is_blocked() || n == NonZeroU32::MIN {
            return *self;
        }
        let part = |units: u32| units / n;
        let (burst, soft) = (part(self.burst).max(1), part(self.soft));
        if self.is_concurrent() {
            return Self { units: burst, burst, soft, ..*self };
        }
        let algorithm = match self.algorithm {
            Algorithm::TokenBucket => Algorithm::Gcra,
            Algorithm::FixedWindow { carry_over, paced } => {
                Algorithm::FixedWindow { carry_over: part(carry_over), paced }
            }
            other => other,
        };
        let (units, interval) = match algorithm {
            Algorithm::Gcra => (self.units, self.interval.saturating_mul(n.get().into())),
            _ => (burst, self.period.div_ceil(burst.into())),
        };
        let interval = interval.min(MAX_REFILL / (u64::from(burst) + u64::from(soft)));
        let initial = self.initial.map(part);
        let share = Self { units, burst, interval, algorithm, initial, soft, ..*self };
        let longest = u32::try_from(share.longest_debt()).unwrap_or(u32::MAX);
        Self { max_debt: self.max_debt.map(|units| part(units).min(longest)), ..share }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ALGORITHMS: [Algorithm; 7] = [
        Algorithm::Gcra,
        Algorithm::TokenBucket,
        Algorithm::fixed_window(),
        Algorithm::FixedWindow { carry_over: 7, paced: true },
        Algorithm::AnchoredWindow,
        Algorithm::SlidingWindow { buckets: 1 },
        Algorithm::SlidingLog,
    ];

    fn n(processes: u32) -> NonZeroU32 {
        NonZeroU32::new(processes).expect("above 0")
    }

    /// Generates valid quotas of every algorithm.
    fn quota() -> impl Strategy<Value = Quota> {
        let units = prop_oneof![1..20_u32, 1..10_000_u32, 1..=u32::MAX];
        let period = prop_oneof![1..100_u64, 1..=MAX_REFILL, MAX_REFILL - 20..=MAX_REFILL];
        let more = prop_oneof![Just(0), 1..20_u32, 1..=u32::MAX];
        let algorithm = prop::sample::select(ALGORITHMS.to_vec());
        let initial = prop::option::of(0..100_u32);
        let debt = prop::option::of(prop_oneof![0..20_u32, 1..=u32::MAX]);
        let parts = (units.clone(), period, units, more, algorithm, initial, debt);
        parts.prop_filter_map("valid", |parts| {
            let (units, period, burst, soft, algorithm, initial, max_debt) = parts;
            let quota = Quota::plain(units, period).ok()?;
            let burst = match algorithm {
                Algorithm::Gcra | Algorithm::TokenBucket => burst,
                _ => units,
            };
            let quota = Quota { burst, soft, algorithm, initial, max_debt, ..quota };
            quota.fault().is_none().then_some(quota)
        })
    }

    proptest! {
        #![proptest_config(crate::keeping_regressions())]

        #[test]
        fn a_share_is_valid_and_at_most_its_part(
            quota in quota(),
            processes in prop_oneof![1..10_u32, 1..=u32::MAX],
        ) {
            let share = quota.share(n(processes));
            prop_assert_eq!(share.fault(), None, "{:?}", share);
            prop_assert_eq!(share.burst, (quota.burst / processes).max(1));
            prop_assert_eq!(share.soft, quota.soft / processes);
            prop_assert!(share.interval >= quota.interval, "{:?}", share);
            prop_assert!(share.max_debt <= quota.max_debt, "{:?}", share);
            prop_assert_eq!(quota.share(n(1)), quota);
        }
    }

    #[test]
    fn a_share_divides_the_settings_of_each_algorithm() {
        let share = |quota: Quota| quota.share(n(4));
        let gcra = share(Quota::per_second(10).burst(9).soft(5).initial(7));
        assert_eq!((gcra.interval, gcra.burst, gcra.soft), (400_000_000, 2, 1));
        assert_eq!(gcra.initial, Some(1));
        let late = share(Quota::per_second(10).max_debt(9));
        assert_eq!((late.max_debt, share(late).max_debt), (Some(2), Some(0)));
        let bucket = Quota::per_minute(10).burst(9);
        assert_eq!(share(bucket.algorithm(Algorithm::TokenBucket)), share(bucket));
        let lending = Algorithm::fixed_window().carry_over(6);
        let window = share(Quota::per_day(100).algorithm(lending));
        assert_eq!((window.units, window.burst, window.period), (25, 25, 86_400_000_000_000));
        assert_eq!(window.algorithm, Algorithm::fixed_window().carry_over(1));
        let few = share(Quota::per_hour(3).algorithm(Algorithm::SlidingLog));
        assert_eq!((few.units, few.burst), (1, 1));
        assert_eq!(share(Quota::blocked()), Quota::blocked());
        assert_eq!(share(Quota::concurrent(9).soft(5)), Quota::concurrent(2).soft(1));
        assert_eq!(share(Quota::concurrent(3)), Quota::concurrent(1));
    }

    #[test]
    fn a_share_refills_within_ten_years() {
        let slow = Quota::per_day(1).burst(3650);
        assert_eq!(slow.share(n(10)).interval, 864_000_000_000_000);
        let bucket = slow.algorithm(Algorithm::TokenBucket);
        assert_eq!(bucket.share(n(10)), slow.share(n(10)));
        assert_eq!(slow.share(n(u32::MAX)).interval, MAX_REFILL);
    }
}

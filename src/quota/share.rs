//! Divides a quota among several processes.

use std::num::NonZeroU32;

use super::{Algorithm, MAX_REFILL, Quota};

impl Quota {
    /// Returns the part of the quota for one of `n` processes.
    ///
    /// All parts together allow no more than the quota, with two exceptions:
    ///
    /// - Each part allows at least one unit.
    /// - Each part allows a charge of `need` units to a full account, if the whole quota does. The
    ///   account then refills as it would with any other charge, so the part of a sequence of charges
    ///   does not depend on the cost of each.
    ///
    /// The part of a token bucket refills continuously, and a window carries nothing over: both would
    /// otherwise depend on `need`.
    pub(crate) fn share(&self, n: NonZeroU32, need: u64) -> Self {
        if self.is_blocked() || self.is_adaptive() || n == NonZeroU32::MIN {
            return *self;
        }
        let part = |units: u32| units / n;
        let usual = part(self.burst).max(1);
        let (burst, soft) = self.shared_burst(usual, part(self.soft), need);
        if self.is_concurrent() {
            return Self { units: burst, burst, soft, ..*self };
        }
        let algorithm = match self.algorithm {
            Algorithm::TokenBucket => Algorithm::Gcra,
            Algorithm::FixedWindow { paced, .. } => Algorithm::FixedWindow { carry_over: 0, paced },
            other => other,
        };
        let (units, interval) = match algorithm {
            Algorithm::Gcra => (self.units, self.interval.saturating_mul(n.get().into())),
            _ => (burst, self.period.div_ceil(burst.into())),
        };
        let interval = interval.min(MAX_REFILL / (u64::from(burst) + u64::from(soft)));
        // A new account lacks the same units at any burst.
        let initial = self.initial.map(|units| part(units) + (burst - usual));
        let share = Self { units, burst, interval, algorithm, initial, soft, ..*self };
        let longest = u32::try_from(share.longest_debt()).unwrap_or(u32::MAX);
        Self { max_debt: self.max_debt.map(|units| part(units).min(longest)), ..share }
    }

    /// Returns the burst and the soft units of one part.
    ///
    /// Raises them as far as necessary for a charge of `need` units, if the whole quota allows it.
    fn shared_burst(&self, burst: u32, soft: u32, need: u64) -> (u32, u32) {
        let whole = u64::from(self.burst) + u64::from(self.soft);
        if need <= u64::from(burst) + u64::from(soft) || need > whole {
            return (burst, soft);
        }
        let plain = u32::try_from(need).map_or(self.burst, |need| need.min(self.burst));
        let beyond = u32::try_from(need - u64::from(plain)).unwrap_or(self.soft);
        (burst.max(plain), soft.max(beyond))
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
            need in prop_oneof![0..30_u64, 0..=u64::from(u32::MAX)],
        ) {
            let whole = u64::from(quota.burst) + u64::from(quota.soft);
            for need in [0, need, whole, whole + 1] {
                let share = quota.share(n(processes), need);
                prop_assert_eq!(share.fault(), None, "{:?}", share);
                let has = u64::from(share.burst) + u64::from(share.soft);
                prop_assert!(has >= need || need > whole, "{:?}", share);
                prop_assert!(share.burst <= quota.burst && share.soft <= quota.soft);
                prop_assert!(share.interval >= quota.interval, "{:?}", share);
                prop_assert!(share.max_debt <= quota.max_debt, "{:?}", share);
            }
            let share = quota.share(n(processes), 0);
            prop_assert_eq!(share.burst, (quota.burst / processes).max(1));
            prop_assert_eq!(quota.share(n(1), 0), quota);
        }
    }

    #[test]
    fn a_share_divides_the_settings_of_each_algorithm() {
        let share = |quota: Quota, need| quota.share(n(4), need);
        let gcra = share(Quota::per_second(10).burst(9).soft(5).initial(7), 0);
        assert_eq!((gcra.interval, gcra.burst, gcra.soft), (400_000_000, 2, 1));
        assert_eq!(gcra.initial, Some(1));
        // A cost above the share raises both, so a new account lacks the same units.
        let large = share(Quota::per_second(10).burst(9).soft(5).initial(7), 6);
        assert_eq!((large.burst, large.initial), (6, Some(5)));
        let late = share(Quota::per_second(10).max_debt(9), 0);
        assert_eq!((late.max_debt, share(late, 0).max_debt), (Some(2), Some(0)));
        let bucket = Quota::per_minute(10).burst(9);
        assert_eq!(share(bucket.algorithm(Algorithm::TokenBucket), 0), share(bucket, 0));
        let lending = Algorithm::fixed_window().carry_over(6);
        let window = share(Quota::per_day(100).algorithm(lending), 0);
        assert_eq!((window.units, window.burst, window.period), (25, 25, 86_400_000_000_000));
        assert_eq!(window.algorithm, Algorithm::fixed_window());
        let few = share(Quota::per_hour(3).algorithm(Algorithm::SlidingLog), 0);
        assert_eq!((few.units, few.burst), (1, 1));
        assert_eq!(share(Quota::blocked(), 0), Quota::blocked());
        assert_eq!(share(Quota::concurrent(9).soft(5), 0), Quota::concurrent(2).soft(1));
        assert_eq!(share(Quota::concurrent(3), 0), Quota::concurrent(1));
    }

    #[test]
    fn a_larger_need_raises_the_burst_and_keeps_the_rate() {
        let quota = Quota::per_second(10).burst(40).soft(8);
        let share = |need| {
            let share = quota.share(n(4), need);
            (share.burst, share.soft, share.interval)
        };
        const INTERVAL: u64 = 400_000_000;
        assert_eq!(share(12), (10, 2, INTERVAL), "fits without a change");
        assert_eq!(share(13), (13, 2, INTERVAL));
        assert_eq!(share(45), (40, 5, INTERVAL), "units above the limit stay overage");
        assert_eq!(share(49), (10, 2, INTERVAL), "denied forever by the whole quota too");
    }

    #[test]
    fn a_share_refills_within_ten_years() {
        let slow = Quota::per_day(1).burst(3650);
        assert_eq!(slow.share(n(10), 3650).interval, 86_400_000_000_000);
        let bucket = slow.algorithm(Algorithm::TokenBucket);
        assert_eq!(bucket.share(n(10), 3650), slow.share(n(10), 3650));
        assert_eq!(slow.share(n(u32::MAX), 0).interval, MAX_REFILL);
    }
}

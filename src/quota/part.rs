//! The part of a quota for one of several processes, and the share of one of several clients.

use std::num::NonZeroU32;

use super::{MAX_REFILL, Quota, SECOND};
use crate::store::instances::Part;

impl Quota {
    /// Returns the part of the quota for one of several processes, which is the same for every charge.
    ///
    /// All parts together allow no more than the quota, with two exceptions: each part of unranked processes
    /// allows at least one unit, and the parts of a client's share keep its burst. The part of a token bucket
    /// refills continuously.
    pub(crate) fn for_process(&self, of: Part) -> Self {
        if self.is_blocked() || of.instances == NonZeroU32::MIN {
            return *self;
        }
        if self.is_client_share {
            return self.slower(of.instances);
        }
        let burst = of.of_burst(self.burst);
        if burst == 0 {
            return self.without_units();
        }
        let mut part = Self {
            burst,
            soft: of.of(self.soft),
            algorithm: self.algorithm.for_process(of),
            initial: self.initial.map(|units| of.of(units).min(burst)),
            ..*self
        };
        if self.is_concurrent() {
            return Self {
                units: burst,
                ..part
            };
        }
        part.set_rate_of(self, of);
        part.set_max_debt(self.max_debt.map(|units| of.of(units)));
        part
    }

    /// Sets the rate to the part of that of `whole`.
    fn set_rate_of(&mut self, whole: &Self, of: Part) {
        if self.algorithm.is_window() {
            self.units = self.burst;
            self.interval = self.period.div_ceil(self.burst.into());
        } else {
            // Without a unit of the burst, a process refills nothing either.
            let holders = of.holders(whole.burst);
            self.interval = whole.interval.saturating_mul(holders.into());
        }
        self.interval = self.interval.min(MAX_REFILL / self.raised_limit());
    }

    /// Returns a quota that denies all requests, with the account and the names of this one.
    fn without_units(&self) -> Self {
        Self {
            name: self.name,
            unit: self.unit,
            address: self.address,
            ..Self::blocked()
        }
    }

    /// Sets the maximum debt, which is lowered to the longest that is valid.
    fn set_max_debt(&mut self, units: Option<u32>) {
        let longest = u32::try_from(self.longest_debt()).unwrap_or(u32::MAX);
        self.max_debt = units.map(|units| units.min(longest));
    }

    /// Returns the share of a client with a weight, of all weights: its part of the rate, with a burst of
    /// half a second that has at least `cost` units. Its late limit is that of the pool.
    pub(crate) fn client_share(&self, weight: u32, of: u64, cost: u32) -> Self {
        let longest = MAX_REFILL / u64::from(cost.max(1));
        let interval = u128::from(self.interval) * u128::from(of) / u128::from(weight.max(1));
        let interval = u64::try_from(interval).unwrap_or(longest).clamp(1, longest);
        let half_second = (SECOND / 2).div_ceil(interval);
        let burst = u32::try_from(half_second).unwrap_or(u32::MAX).max(cost);
        let mut share = Self {
            units: 1,
            burst,
            period: interval,
            interval,
            is_client_share: true,
            address: self.address,
            ..Self::blocked()
        };
        let debt = self.late_limit().saturating_sub(burst.into());
        share.set_max_debt(Some(u32::try_from(debt).unwrap_or(u32::MAX)));
        share
    }

    /// Returns `true` for the share of a client.
    pub(crate) fn is_client_share(&self) -> bool {
        self.is_client_share
    }

    /// Returns the share of a client in one of `n` processes, whose pool is smaller as well.
    fn slower(&self, n: NonZeroU32) -> Self {
        let interval = self.interval.saturating_mul(u64::from(n.get()));
        let interval = interval.min(MAX_REFILL / u64::from(self.burst.max(1)));
        let mut share = Self {
            period: interval,
            interval,
            ..*self
        };
        share.set_max_debt(self.max_debt);
        share
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::quota::{Algorithm, EXAMPLES};

    #[cfg(feature = "redis")]
    #[test]
    fn the_parts_of_counted_processes_add_up_to_the_rate_and_the_burst() {
        for (burst, instances) in [(1, 4), (2, 4), (5, 4), (200, 7)] {
            let quota = Quota::per_second(100).with_burst(burst);
            let parts = (0..instances).filter_map(|rank| Part::ranked(instances, rank));
            let parts: Vec<_> = parts.map(|part| quota.for_process(part)).collect();
            assert_eq!(parts.iter().map(Quota::limit).sum::<u32>(), burst);
            let with_units = parts.iter().filter(|part| part.limit() > 0);
            let rate: f64 = with_units
                .map(|part| 1.0 / part.interval().as_secs_f64())
                .sum();
            assert!(
                (rate - 100.0).abs() < 0.1,
                "{rate} of {quota}, {instances} processes"
            );
        }
    }

    fn n(processes: u32) -> Part {
        Part::equal(NonZeroU32::new(processes).expect("above 0"))
    }

    /// Generates valid quotas of every algorithm.
    fn quota() -> impl Strategy<Value = Quota> {
        let units = prop_oneof![1..20_u32, 1..10_000_u32, 1..=u32::MAX];
        let period = prop_oneof![1..100_u64, 1..=MAX_REFILL, MAX_REFILL - 20..=MAX_REFILL];
        let more = prop_oneof![Just(0), 1..20_u32, 1..=u32::MAX];
        let algorithm = prop::sample::select(EXAMPLES.to_vec());
        let initial = prop::option::of(0..100_u32);
        let debt = prop::option::of(prop_oneof![0..20_u32, 1..=u32::MAX]);
        let parts = (units.clone(), period, units, more, algorithm, initial, debt);
        parts.prop_filter_map("valid", |parts| {
            let (units, period, burst, soft, algorithm, initial, max_debt) = parts;
            let quota = Quota::rate(units, period).ok()?;
            let burst = match algorithm {
                Algorithm::Gcra | Algorithm::TokenBucket => burst,
                _ => units,
            };
            let quota = Quota {
                burst,
                soft,
                algorithm,
                initial,
                max_debt,
                ..quota
            };
            quota.fault().is_none().then_some(quota)
        })
    }

    proptest! {
        #![proptest_config(crate::keeping_regressions())]

        #[test]
        fn a_part_is_valid_and_at_most_the_quota(
            quota in quota(),
            processes in prop_oneof![1..10_u32, 1..=u32::MAX],
        ) {
            let share = quota.for_process(n(processes));
            prop_assert_eq!(share.fault(), None, "{:?}", share);
            prop_assert_eq!(share.burst, (quota.burst / processes).max(1));
            prop_assert_eq!(share.soft, quota.soft / processes);
            prop_assert!(share.interval >= quota.interval, "{:?}", share);
            prop_assert!(share.max_debt <= quota.max_debt, "{:?}", share);
            prop_assert_eq!(quota.for_process(n(1)), quota);
        }
    }

    #[test]
    fn a_share_divides_the_settings_of_each_algorithm() {
        let share = |quota: Quota| quota.for_process(n(4));
        let gcra = share(
            Quota::per_second(10)
                .with_burst(9)
                .with_soft(5)
                .with_initial(7),
        );
        assert_eq!((gcra.interval, gcra.burst, gcra.soft), (400_000_000, 2, 1));
        assert_eq!(gcra.initial, Some(1));
        let late = share(Quota::per_second(10).with_max_debt(9));
        assert_eq!((late.max_debt, share(late).max_debt), (Some(2), Some(0)));
        let bucket = Quota::per_minute(10).with_burst(9);
        // The share keeps the account of the whole.
        let tokens = bucket.with_algorithm(Algorithm::TokenBucket);
        assert_eq!(
            share(tokens),
            Quota {
                address: tokens.address,
                ..share(bucket)
            }
        );
        let lending = Algorithm::FixedWindow {
            carry_over: 6,
            paced: false,
        };
        let window = share(Quota::per_day(100).with_algorithm(lending));
        assert_eq!(
            (window.units, window.burst, window.period),
            (25, 25, 86_400_000_000_000)
        );
        assert_eq!(
            window.algorithm,
            Algorithm::FixedWindow {
                carry_over: 1,
                paced: false
            }
        );
        let few = share(Quota::per_hour(3).with_algorithm(Algorithm::SlidingLog));
        assert_eq!((few.units, few.burst), (1, 1));
        assert_eq!(share(Quota::blocked()), Quota::blocked());
        assert_eq!(
            share(Quota::concurrent(9).with_soft(5)),
            Quota::concurrent(2).with_soft(1)
        );
        assert_eq!(share(Quota::concurrent(3)), Quota::concurrent(1));
    }

    /// It refills more slowly than its units suggest: as text it would be less strict.
    #[cfg(feature = "serde")]
    #[test]
    fn a_share_is_not_written() {
        let share = Quota::per_second(10).for_process(n(4));
        assert!(share.interval() > Quota::per_second(10).interval());
        let wrong = serde_json::to_string(&share).unwrap_err().to_string();
        assert!(wrong.contains("write the whole quota"), "{wrong}");
    }

    #[test]
    fn a_share_refills_within_ten_years() {
        let slow = Quota::per_day(1).with_burst(3650);
        assert_eq!(slow.for_process(n(10)).interval, 864_000_000_000_000);
        let bucket = slow.with_algorithm(Algorithm::TokenBucket);
        let share = Quota {
            address: bucket.address,
            ..slow.for_process(n(10))
        };
        assert_eq!(bucket.for_process(n(10)), share);
        assert_eq!(slow.for_process(n(u32::MAX)).interval, MAX_REFILL);
    }
}

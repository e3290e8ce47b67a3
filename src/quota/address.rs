//! Addresses of accounts. A quota finds its account by what it counts, so that the order and the number
//! of a rule's quotas, and a changed limit, mean nothing.

use super::Quota;

/// Identifies what a quota counts: its algorithm, its period and its unit.
///
/// The number is the 32-bit FNV-1a hash of the letter of the algorithm, the period in nanoseconds (8
/// bytes, little-endian), the number of buckets of a sliding window (4 bytes), and the unit unless it is
/// requests. Slots and calendar periods have no period in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct QuotaAddress(u32);

impl QuotaAddress {
    /// The address of a quota that denies all requests, which has no account.
    pub(super) const BLOCKED: Self = Self(0);

    /// Returns the address of a quota.
    pub(super) const fn of(quota: &Quota) -> Self {
        if quota.is_blocked() {
            return Self::BLOCKED;
        }
        let letter = match quota.anchor {
            Some(anchor) => anchor.letter(),
            None => quota.algorithm.letter(),
        };
        let mut hash = Fnv::new().byte(letter);
        if !quota.is_concurrent() && !quota.is_calendar() {
            hash = hash.bytes(&quota.period.to_le_bytes());
        }
        if let Some(buckets) = quota.algorithm.counted_buckets() {
            hash = hash.bytes(&buckets.to_le_bytes());
        }
        if let Some(unit) = quota.unit {
            hash = hash.bytes(unit.as_bytes());
        }
        Self(hash.0)
    }

    /// Returns the address of the quota at `index` of a charge.
    ///
    /// Several quotas that count the same have an account each. A layer accepts no such
    /// rule.
    #[inline]
    pub(crate) fn at(quotas: &[Quota], index: usize) -> Self {
        let address = quotas[index].address;
        let earlier = quotas[..index]
            .iter()
            .filter(|quota| quota.address == address);
        let number = u32::try_from(earlier.count()).unwrap_or(0);
        // An odd constant (from the golden ratio).
        Self(address.0.wrapping_add(number.wrapping_mul(0x9e37_79b9)))
    }

    /// Returns the number that stores keep.
    pub(crate) const fn number(self) -> u32 {
        self.0
    }
}

/// A 32-bit FNV-1a hash (draft-eastlake-fnv). The hash is a constant, and stored by Redis, so it must
/// not depend on the process or the release.
#[derive(Clone, Copy)]
struct Fnv(u32);

impl Fnv {
    const fn new() -> Self {
        Self(0x811c_9dc5)
    }

    const fn byte(self, byte: u8) -> Self {
        Self((self.0 ^ byte as u32).wrapping_mul(0x0100_0193))
    }

    const fn bytes(self, bytes: &[u8]) -> Self {
        let mut hash = self;
        let mut at = 0;
        while at < bytes.len() {
            hash = hash.byte(bytes[at]);
            at += 1;
        }
        hash
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::quota::Algorithm;

    #[test]
    fn the_hash_is_fnv_1a() {
        // Test vectors of the draft.
        assert_eq!(Fnv::new().0, 0x811c_9dc5);
        assert_eq!(Fnv::new().bytes(b"a").0, 0xe40c_292c);
        assert_eq!(Fnv::new().bytes(b"foobar").0, 0xbf9c_f968);
    }

    #[test]
    fn the_address_is_a_hash_of_the_bytes_that_are_stored() {
        let hourly = Quota::per_hour(5).address();
        let bytes = [&b"g"[..], &3_600_000_000_000_u64.to_le_bytes()].concat();
        assert_eq!(hourly.number(), Fnv::new().bytes(&bytes).0);
        let sliding = Quota::per_minute(60).with_algorithm(Algorithm::SlidingWindow { buckets: 6 });
        let sliding = sliding.with_unit("tokens").address();
        let minute = 60_000_000_000_u64.to_le_bytes();
        let bytes = [&b"s"[..], &minute, &6_u32.to_le_bytes(), b"tokens"].concat();
        assert_eq!(sliding.number(), Fnv::new().bytes(&bytes).0);
        assert_eq!(
            Quota::concurrent(3).address().number(),
            Fnv::new().bytes(b"c").0
        );
    }

    #[test]
    fn quotas_of_one_charge_that_count_the_same_have_accounts_of_their_own() {
        let quotas = [
            Quota::per_hour(5),
            Quota::per_day(9),
            Quota::per_hour(7),
            Quota::per_hour(8),
        ];
        let all: Vec<_> = (0..4)
            .map(|index| QuotaAddress::at(&quotas, index))
            .collect();
        assert_eq!(all[..2], [quotas[0].address(), quotas[1].address()]);
        assert!((0..4).all(|at| !all[..at].contains(&all[at])), "{all:?}");
    }

    /// Quotas that count something else, with others that count the same under another limit.
    fn kinds() -> Vec<Vec<Quota>> {
        let five = Quota::per_hour(5);
        let lending = Algorithm::FixedWindow {
            carry_over: 2,
            paced: false,
        };
        let paced = Algorithm::FixedWindow {
            carry_over: 0,
            paced: true,
        };
        vec![
            vec![
                five,
                Quota::per_hour(7).with_burst(3).with_soft(2),
                Quota::per(9, Duration::from_secs(3_600))
                    .with_initial(1)
                    .with_name("x"),
                five.with_max_debt(1).with_unit("requests"),
            ],
            vec![Quota::per_minute(5)],
            vec![five.with_unit("tokens")],
            vec![five.with_algorithm(Algorithm::TokenBucket)],
            vec![
                five.with_algorithm(Algorithm::fixed_window()),
                five.with_algorithm(lending),
                five.with_algorithm(paced),
            ],
            vec![five.with_algorithm(Algorithm::AnchoredWindow)],
            vec![five.with_algorithm(Algorithm::SlidingWindow { buckets: 4 })],
            vec![five.with_algorithm(Algorithm::SlidingWindow { buckets: 5 })],
            vec![five.with_algorithm(Algorithm::SlidingLog)],
            vec![Quota::concurrent(5), Quota::concurrent(9).with_soft(1)],
        ]
    }

    #[test]
    fn a_limit_is_no_part_of_the_address_and_all_else_is() {
        let kinds = kinds();
        for (at, quotas) in kinds.iter().enumerate() {
            let address = quotas[0].address();
            for quota in quotas {
                assert_eq!(quota.address(), address, "{quota:?}");
            }
            for other in kinds[..at].iter().flatten() {
                assert_ne!(other.address(), address, "{other:?} {:?}", quotas[0]);
            }
        }
    }

    #[cfg(feature = "calendar")]
    #[test]
    fn calendar_periods_have_addresses_of_their_own_without_the_anchor() {
        let start = "2024-01-31T09:00[Europe/Berlin]"
            .parse()
            .expect("an instant");
        let month = Quota::per_month(5);
        assert_eq!(month.address(), month.anchored_at(&start).address());
        let day = Quota::per_day(5).with_algorithm(Algorithm::fixed_window());
        let all = [month, Quota::per_year(5), day, day.anchored_at(&start)];
        for (at, quota) in all.iter().enumerate() {
            assert!(
                all[..at]
                    .iter()
                    .all(|other| other.address() != quota.address()),
                "{quota}"
            );
        }
    }
}

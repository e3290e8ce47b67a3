//! Prefixes of addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{Key, KeyKind};

/// Bit masks that cut an address to its leading bits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prefix {
    v4: u32,
    v6: u128,
}

impl Prefix {
    /// All bits of an IPv4 address, and the first 64 bits of an IPv6 address.
    pub(crate) const DEFAULT: Self = Self { v4: u32::MAX, v6: u128::MAX << 64 };

    /// Creates a prefix of `v4` and `v6` bits. Larger numbers mean all bits.
    #[cfg(feature = "admin")]
    pub(crate) fn of(v4: u8, v6: u8) -> Self {
        Self {
            v4: u32::MAX.checked_shl(32_u32.saturating_sub(v4.into())).unwrap_or(0),
            v6: u128::MAX.checked_shl(128_u32.saturating_sub(v6.into())).unwrap_or(0),
        }
    }

    #[track_caller]
    pub(crate) const fn v4(self, bits: u8) -> Self {
        assert!(bits >= 1 && bits <= 32, "ipv4_prefix: give 1 to 32 bits");
        Self { v4: u32::MAX << (32 - bits), ..self }
    }

    #[track_caller]
    pub(crate) const fn v6(self, bits: u8) -> Self {
        assert!(bits >= 1 && bits <= 128, "ipv6_prefix: give 1 to 128 bits");
        Self { v6: u128::MAX << (128 - bits), ..self }
    }

    /// Returns the kind of the keys.
    pub(crate) fn kind(self) -> KeyKind {
        let bits = |ones: u32| u8::try_from(ones).unwrap_or(u8::MAX);
        KeyKind::Address {
            ipv4_prefix: bits(self.v4.count_ones()),
            ipv6_prefix: bits(self.v6.count_ones()),
        }
    }

    /// Returns the network of all addresses that share a key with `address`, as text.
    pub(crate) fn network(self, address: IpAddr) -> String {
        match address {
            IpAddr::V4(it) => {
                format!("{}/{}", Ipv4Addr::from_bits(it.to_bits() & self.v4), self.v4.count_ones())
            }
            IpAddr::V6(it) => {
                format!("{}/{}", Ipv6Addr::from_bits(it.to_bits() & self.v6), self.v6.count_ones())
            }
        }
    }

    /// Returns the key of an address. IPv4-mapped addresses are converted to IPv4.
    #[inline]
    pub(crate) fn key(self, address: IpAddr) -> Key {
        match address.to_canonical() {
            IpAddr::V4(address) => Ipv4Addr::from_bits(address.to_bits() & self.v4).into(),
            IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & self.v6).into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(of: Prefix, address: &str) -> Key {
        of.key(address.parse().expect("an address"))
    }

    #[test]
    fn mapped_addresses_are_converted_before_the_mask() {
        let one = key(Prefix::DEFAULT, "::ffff:203.0.113.1");
        assert_eq!(one, key(Prefix::DEFAULT, "203.0.113.1"));
        assert_ne!(one, key(Prefix::DEFAULT, "::ffff:203.0.113.2"));
    }

    #[test]
    fn one_slash_64_is_one_key() {
        let one = key(Prefix::DEFAULT, "2001:db8:0:1::1");
        assert_eq!(one, key(Prefix::DEFAULT, "2001:DB8:0:1:ffff:ffff:ffff:ffff"));
        assert_ne!(one, key(Prefix::DEFAULT, "2001:db8:0:2::1"));
    }

    #[test]
    fn each_family_has_its_own_prefix() {
        let site = Prefix::DEFAULT.v6(48).v4(24);
        assert_eq!(key(site, "2001:db8:1:1::1"), key(site, "2001:db8:1:2::1"));
        assert_eq!(key(site, "203.0.113.1"), key(site, "203.0.113.200"));
        let whole = Prefix::DEFAULT.v6(128);
        assert_ne!(key(whole, "2001:db8::1"), key(whole, "2001:db8::2"));
    }
}

//! Networks, by their definition.

use std::net::IpAddr;

/// An address and the number of its significant bits.
pub(crate) struct Network(IpAddr, u32);

impl Network {
    /// Reads `10.0.0.0/8`, or an address; `None` unless all other bits are zero.
    pub(crate) fn read(text: &str) -> Option<Self> {
        let text = text.trim();
        let (address, bits) = match text.split_once('/') {
            None => (text, None),
            Some((address, bits)) => (address, Some(bits)),
        };
        let address: IpAddr = address.parse().ok()?;
        let width = width(address);
        let bits = match bits {
            None => width,
            Some(bits) if bits.bytes().all(|byte| byte.is_ascii_digit()) => bits.parse().ok()?,
            Some(_) => return None,
        };
        let mapped = address.to_canonical();
        let network = match bits.checked_sub(width - self::width(mapped)) {
            Some(bits) => Self(mapped, bits),
            None => Self(address, bits),
        };
        let spare = self::width(network.0).checked_sub(network.1)?;
        // For zero, all 128 bits are trailing.
        (number(network.0).trailing_zeros() >= spare).then_some(network)
    }

    pub(crate) fn holds(&self, address: IpAddr) -> bool {
        let spare = width(self.0) - self.1;
        let differ = number(self.0) ^ number(address);
        width(self.0) == width(address) && differ.checked_shr(spare).unwrap_or(0) == 0
    }

    /// Returns `true` if the network holds every address of its family.
    pub(crate) fn holds_all(&self) -> bool {
        self.1 == 0
    }
}

/// Returns an address with all but its leading bits cleared.
pub(crate) fn masked(address: IpAddr, bits: u32) -> IpAddr {
    let spare = width(address) - bits;
    let kept = (number(address) >> spare) << spare;
    match address {
        IpAddr::V4(_) => IpAddr::V4(u32::try_from(kept).unwrap_or(0).into()),
        IpAddr::V6(_) => IpAddr::V6(kept.into()),
    }
}

fn width(address: IpAddr) -> u32 {
    if address.is_ipv4() { 32 } else { 128 }
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u32::from(address).into(),
        IpAddr::V6(address) => address.into(),
    }
}

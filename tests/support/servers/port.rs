use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};

use super::random;

const FIRST: u16 = 12_000;
const COUNT: u16 = 10_000;
/// The difference between a node's port for other nodes and its port for clients.
pub(super) const BUS: u16 = 10_000;

/// A TCP port on the loopback interface that no other test uses while this value lives.
///
/// It stays reserved while nothing listens on it, as between a crash and a restart.
///
/// Its UDP port is bound as a lock. The ports are below those that Linux assigns to clients (32 768
/// and up).
#[derive(Debug)]
pub(super) struct Port {
    address: SocketAddr,
    _sign: UdpSocket,
}

impl Port {
    pub(super) fn reserve() -> Self {
        let start = u16::try_from(random() % u64::from(COUNT)).expect("below COUNT");
        let numbers = (0..COUNT).map(|n| FIRST + (start + n) % COUNT);
        numbers.into_iter().find_map(Self::try_reserve).expect("a free port")
    }

    fn try_reserve(number: u16) -> Option<Self> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, number));
        let sign = UdpSocket::bind(address).ok()?;
        TcpListener::bind(address).ok()?;
        TcpListener::bind((Ipv4Addr::LOCALHOST, number + BUS)).ok()?;
        Some(Self { address, _sign: sign })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn number(&self) -> u16 {
        self.address.port()
    }
}

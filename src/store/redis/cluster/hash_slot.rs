//! The slots of a cluster, and the reply of `CLUSTER SLOTS`.

use redis::{RedisError, Value};

/// The number of slots of a cluster.
pub(crate) const SLOTS: u16 = 16_384;

/// Consecutive slots with one master.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SlotRange {
    pub(crate) first: u16,
    pub(crate) last: u16,
    /// The address of the master, then those of its replicas.
    pub(crate) servers: Vec<(String, u16)>,
}

/// The CRC-16 of each byte, as defined by Redis Cluster.
const CRC: [u16; 256] = {
    let (mut table, mut byte) = ([0; 256], 0_u16);
    while byte < 256 {
        let (mut crc, mut bit) = (byte << 8, 0);
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 };
            bit += 1;
        }
        table[byte as usize] = crc;
        byte += 1;
    }
    table
};

/// Returns the slot of a key.
pub(crate) fn slot(key: &[u8]) -> u16 {
    // Each key of this store contains braces, and the text inside of them selects the slot.
    let inside =
        key.split(|byte| *byte == b'{').nth(1).and_then(|rest| rest.split(|b| *b == b'}').next());
    let crc = inside.unwrap_or(key).iter().fold(0, |crc: u16, byte| {
        let [high, low] = crc.to_be_bytes();
        CRC[usize::from(high ^ byte)] ^ u16::from(low) << 8
    });
    crc % SLOTS
}

/// Parses the reply to `CLUSTER SLOTS`. An empty host in the reply stands for `host`, the host of
/// the server that replied.
pub(crate) fn ranges(reply: &Value, host: &str) -> Result<Vec<SlotRange>, RedisError> {
    let ranges: Vec<_> = items(reply).iter().filter_map(|range| read(range, host)).collect();
    if ranges.is_empty() {
        return Err(std::io::Error::other("the server reports no slots; is it a cluster?").into());
    }
    Ok(ranges)
}

/// Splits an address `host:port`. The host of an IPv6 address contains colons, too.
pub(crate) fn split_address(address: &str) -> Option<(&str, u16)> {
    let (host, port) = address.rsplit_once(':')?;
    Some((host, port.parse().ok()?))
}

fn read(range: &Value, host: &str) -> Option<SlotRange> {
    let [first, last, servers @ ..] = items(range) else { return None };
    let (first, last) = (int(first)?, int(last)?);
    let address = |server: &Value| {
        let [name, port, ..] = items(server) else { return None };
        let name = match name {
            Value::BulkString(name) if !name.is_empty() => std::str::from_utf8(name).ok()?,
            _ => host,
        };
        // A question mark is the host of a server that the replying server does not know.
        (name != "?").then_some((name.to_owned(), int(port)?))
    };
    // Without its master, a range has no server for writes.
    address(servers.first()?)?;
    let servers = servers.iter().filter_map(address).collect();
    (first <= last && last < SLOTS).then_some(SlotRange { first, last, servers })
}

fn items(value: &Value) -> &[Value] {
    match value {
        Value::Array(items) => items,
        _ => &[],
    }
}

fn int(value: &Value) -> Option<u16> {
    match value {
        Value::Int(int) => u16::try_from(*int).ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(host: &str, port: i64) -> Value {
        let name = Value::BulkString(host.into());
        Value::Array(vec![name, Value::Int(port), Value::BulkString("id".into())])
    }

    fn range(first: i64, last: i64, servers: Vec<Value>) -> Value {
        Value::Array([vec![Value::Int(first), Value::Int(last)], servers].concat())
    }

    #[test]
    fn slots_match_those_of_redis_cluster() {
        // The output of CLUSTER KEYSLOT.
        for (key, expected) in [("sluice:3:{foo}", 12_182), ("{bar}:0", 5_061), ("a", 15_495)] {
            assert_eq!(slot(key.as_bytes()), expected, "{key}");
        }
    }

    #[test]
    fn ranges_without_a_known_master_are_dropped() {
        let reply = Value::Array(vec![
            range(0, 99, vec![server("10.0.0.1", 7_000), server("", 7_001)]),
            range(100, 199, vec![server("?", 0), server("10.0.0.1", 7_000)]),
            range(200, 199, vec![server("10.0.0.1", 7_000)]),
            range(200, 16_384, vec![server("10.0.0.1", 7_000)]),
            range(300, 399, vec![]),
            Value::Nil,
        ]);
        let servers = vec![("10.0.0.1".into(), 7_000), ("me".into(), 7_001)];
        let expected = [SlotRange { first: 0, last: 99, servers }];
        assert_eq!(ranges(&reply, "me").expect("one range"), expected);
        assert!(ranges(&Value::Array(vec![]), "me").is_err());
        assert!(ranges(&Value::Int(1), "me").is_err());
    }

    #[test]
    fn addresses_are_split_at_the_last_colon() {
        assert_eq!(split_address("10.0.0.1:7000"), Some(("10.0.0.1", 7_000)));
        assert_eq!(split_address("2001:db8::1:7000"), Some(("2001:db8::1", 7_000)));
        assert_eq!(split_address(":7000"), Some(("", 7_000)));
        assert!(split_address("7000").is_none() && split_address("a:70000").is_none());
    }
}

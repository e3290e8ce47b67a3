//! The hash slots of a cluster, and the servers that have them, as `CLUSTER SLOTS` reports.

use redis::{RedisError, Value, from_redis_value_ref};

/// The number of hash slots of a cluster.
pub(crate) const HASH_SLOTS: u16 = 16_384;

/// Consecutive hash slots with one master.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HashSlotRange {
    pub(super) first: u16,
    pub(super) last: u16,
    /// The address of the master, then those of its replicas.
    pub(super) servers: Vec<(String, u16)>,
}

/// Returns the hash slot of a key: its CRC-16, as defined by Redis Cluster.
pub(crate) fn hash_slot(key: &[u8]) -> u16 {
    // The text inside of braces selects the hash slot. Only the key of the processes that run has none.
    let inside = key
        .split(|byte| *byte == b'{')
        .nth(1)
        .and_then(|rest| rest.split(|b| *b == b'}').next());
    let mut crc = 0;
    for byte in inside.unwrap_or(key) {
        crc ^= u16::from(*byte) << 8;
        for _ in 0..8 {
            crc = if crc & 0x8000 == 0 {
                crc << 1
            } else {
                crc << 1 ^ 0x1021
            };
        }
    }
    crc % HASH_SLOTS
}

/// Parses the reply to `CLUSTER SLOTS`. An empty host in the reply stands for `host`, the host of
/// the server that replied.
pub(super) fn ranges(reply: &Value, host: &str) -> Result<Vec<HashSlotRange>, RedisError> {
    let ranges = reply.as_sequence().unwrap_or_default().iter();
    let ranges: Vec<_> = ranges.filter_map(|range| read(range, host)).collect();
    if ranges.is_empty() {
        return Err(
            std::io::Error::other("the server reports no hash slots; is it a cluster?").into(),
        );
    }
    Ok(ranges)
}

/// Splits an address `host:port`. The host of an IPv6 address contains colons, too.
pub(super) fn split_address(address: &str) -> Option<(&str, u16)> {
    let (host, port) = address.rsplit_once(':')?;
    Some((host, port.parse().ok()?))
}

fn read(range: &Value, host: &str) -> Option<HashSlotRange> {
    let [first, last, servers @ ..] = range.as_sequence()? else {
        return None;
    };
    let first = int(first)?;
    let last = int(last)?;
    // Without its master, a range has no server for writes.
    read_address(servers.first()?, host)?;
    let servers = servers
        .iter()
        .filter_map(|server| read_address(server, host))
        .collect();
    (first <= last && last < HASH_SLOTS).then_some(HashSlotRange {
        first,
        last,
        servers,
    })
}

fn read_address(server: &Value, host: &str) -> Option<(String, u16)> {
    let [name, port, ..] = server.as_sequence()? else {
        return None;
    };
    let name = from_redis_value_ref::<Option<String>>(name)
        .ok()?
        .unwrap_or_default();
    let name = if name.is_empty() {
        host.to_owned()
    } else {
        name
    };
    // A question mark is the host of a server that the replying server does not know.
    (name != "?").then_some((name, int(port)?))
}

fn int(value: &Value) -> Option<u16> {
    from_redis_value_ref(value).ok()
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
    fn hash_slots_match_those_of_redis_cluster() {
        // The output of CLUSTER KEYSLOT.
        for (key, expected) in [
            ("sluice:3:{foo}", 12_182),
            ("{bar}:0", 5_061),
            ("a", 15_495),
        ] {
            assert_eq!(hash_slot(key.as_bytes()), expected, "{key}");
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
        let expected = [HashSlotRange {
            first: 0,
            last: 99,
            servers,
        }];
        assert_eq!(ranges(&reply, "me").expect("one range"), expected);
        assert!(ranges(&Value::Array(vec![]), "me").is_err());
        assert!(ranges(&Value::Int(1), "me").is_err());
    }

    #[test]
    fn addresses_are_split_at_the_last_colon() {
        assert_eq!(split_address("10.0.0.1:7000"), Some(("10.0.0.1", 7_000)));
        assert_eq!(
            split_address("2001:db8::1:7000"),
            Some(("2001:db8::1", 7_000))
        );
        assert_eq!(split_address(":7000"), Some(("", 7_000)));
        assert!(split_address("7000").is_none() && split_address("a:70000").is_none());
    }
}

//! The hash slots of a cluster as its servers see them: the shard of each one, the primary of each shard,
//! and a hash slot that moves.

use crate::node::{Node, Reply, Request};

const COUNT: u16 = 16_384;

/// The view of a server. Shards and servers are indices.
#[derive(Clone, Debug)]
pub struct HashSlots {
    owners: Vec<u8>,
    pub primaries: Vec<usize>,
    pub moving: Option<Moving>,
}

/// A hash slot whose keys move one at a time.
#[derive(Clone, Copy, Debug)]
pub struct Moving {
    pub hash_slot: u16,
    pub from: usize,
    pub to: usize,
}

impl HashSlots {
    pub fn new(shards: usize) -> Self {
        let owner = |hash_slot| u8::try_from(hash_slot * shards / usize::from(COUNT)).expect("few");
        let owners = (0..usize::from(COUNT)).map(owner).collect();
        Self { owners, primaries: (0..shards).map(|shard| 2 * shard).collect(), moving: None }
    }

    pub fn shard(&self, hash_slot: u16) -> usize {
        self.owners[usize::from(hash_slot)].into()
    }

    /// Ends the move.
    pub fn moved(&mut self) {
        if let Some(Moving { hash_slot, to, .. }) = self.moving.take() {
            self.owners[usize::from(hash_slot)] = u8::try_from(to).expect("few");
        }
    }

    /// Returns the reply of the server `me` to a command whose keys it does not serve. `has` says
    /// which keys it has.
    pub fn redirect(
        &self,
        me: usize,
        keys: &[Vec<u8>],
        asking: bool,
        has: impl Fn(&Vec<u8>) -> bool,
    ) -> Option<Reply> {
        let hash_slot = hash_slot(keys.first()?);
        if keys.iter().any(|key| self::hash_slot(key) != hash_slot) {
            return Some(Reply::error("CROSSSLOT Keys in request don't hash to the same slot"));
        }
        let there = keys.iter().filter(|key| has(key)).count();
        let to_try_again =
            || Reply::error("TRYAGAIN Multiple keys request during rehashing of slot");
        let to = |code, server| Reply::error(format!("{code} {hash_slot} node{server}:{server}"));
        let owner = self.primaries[self.shard(hash_slot)];
        match self.moving.filter(|moving| moving.hash_slot == hash_slot) {
            Some(moving) if me == owner && there < keys.len() => Some(match there {
                0 => to("ASK", self.primaries[moving.to]),
                _ => to_try_again(),
            }),
            Some(moving) if me == self.primaries[moving.to] && asking => {
                (there < keys.len() && keys.len() > 1).then(to_try_again)
            }
            _ if me != owner => Some(to("MOVED", owner)),
            _ => None,
        }
    }

    /// Returns the reply to `CLUSTER SLOTS`.
    pub fn reply(&self) -> Reply {
        let server = |index: usize| {
            let (name, port) = (format!("node{index}"), i64::try_from(index).unwrap_or(0));
            Reply::Array(vec![Reply::bulk(name), Reply::Integer(port), Reply::bulk("id")])
        };
        let ranges = self.owners.chunk_by(|one, other| one == other).scan(0, |first, range| {
            let last = *first + i64::try_from(range.len()).unwrap_or(0) - 1;
            // The two servers of a shard have the numbers 2n and 2n + 1.
            let primary = self.primaries[usize::from(range[0])];
            let numbers = [Reply::Integer(*first), Reply::Integer(last)];
            *first = last + 1;
            let servers = [server(primary), server(primary ^ 1)];
            Some(Reply::Array(numbers.into_iter().chain(servers).collect()))
        });
        Reply::Array(ranges.collect())
    }
}

/// Returns the keys of a script call, or the key of a command.
pub fn keys(request: &Request) -> &[Vec<u8>] {
    let range = match request.get(..3) {
        Some([name, _, count]) if name.to_ascii_lowercase().starts_with(b"eval") => {
            let count = str::from_utf8(count).ok().and_then(|count| count.parse::<usize>().ok());
            3..3 + count.unwrap_or(0)
        }
        Some([name, ..]) if Node::writes(name) => 1..2,
        _ => 0..0,
    };
    request.get(range).unwrap_or_default()
}

/// Returns the hash slot of a key: the CRC-16 of the text in its braces.
pub fn hash_slot(key: &[u8]) -> u16 {
    let inside = key.split(|byte| *byte == b'{').nth(1);
    let inside = inside.and_then(|rest| rest.split(|byte| *byte == b'}').next());
    let bit = |crc: u16, _| if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 };
    let byte = |crc: u16, byte: &u8| (0..8).fold(crc ^ u16::from(*byte) << 8, bit);
    inside.unwrap_or(key).iter().fold(0, byte) % COUNT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_slots_match_those_of_redis_cluster() {
        // The output of CLUSTER KEYSLOT.
        for (key, expected) in [("sluice:3:{foo}", 12_182), ("{bar}:0", 5_061), ("a", 15_495)] {
            assert_eq!(hash_slot(key.as_bytes()), expected, "{key}");
        }
    }

    #[test]
    fn keys_of_a_moving_hash_slot_are_asked_for_where_they_are() {
        let mut hash_slots = HashSlots::new(3);
        let (key, list) = (b"{bar}".to_vec(), b"{bar}:0".to_vec());
        hash_slots.moving = Some(Moving { hash_slot: 5_061, from: 0, to: 2 });
        let show = |me, keys: &[Vec<u8>], asking, has: &[&Vec<u8>]| {
            let reply = hash_slots.redirect(me, keys, asking, |key| has.contains(&key));
            match reply {
                Some(Reply::Error(text)) => text.split(' ').next().unwrap_or_default().to_owned(),
                other => format!("{other:?}"),
            }
        };
        let (one, both) = ([key.clone()], [key.clone(), list.clone()]);
        assert_eq!(show(0, &one, false, &[&key]), "None");
        assert_eq!(show(0, &one, false, &[]), "ASK");
        assert_eq!(show(0, &both, false, &[&key]), "TRYAGAIN");
        assert_eq!(show(4, &one, true, &[]), "None");
        assert_eq!(show(4, &both, true, &[&key]), "TRYAGAIN");
        assert_eq!(show(4, &one, false, &[&key]), "MOVED");
        assert_eq!(show(2, &one, false, &[]), "MOVED");
        assert_eq!(show(0, &[key, b"a".to_vec()], false, &[]), "CROSSSLOT");
    }
}

//! Numbers in the replies of a script.

use crate::store::redis::error::RedisError;

/// The latest valid instant in microseconds. The sum of two instants fits into 64 bits.
const LATEST: u64 = 1 << 53;

/// A reader of little-endian numbers.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn take(&mut self, length: usize) -> Result<&'a [u8], RedisError> {
        let Some((taken, rest)) = self.0.split_at_checked(length) else {
            return Err(RedisError::invalid_reply("too short"));
        };
        self.0 = rest;
        Ok(taken)
    }

    pub(super) fn int<const N: usize>(&mut self) -> Result<u64, RedisError> {
        let mut bytes = [0; 8];
        bytes[..N].copy_from_slice(self.take(N)?);
        Ok(u64::from_le_bytes(bytes))
    }

    /// Reads a number of two bytes.
    pub(super) fn count(&mut self) -> Result<usize, RedisError> {
        let bytes = self.take(2)?;
        Ok(u16::from_le_bytes([bytes[0], bytes[1]]).into())
    }

    /// Reads an instant, in nanoseconds of Unix time.
    pub(super) fn instant(&mut self) -> Result<u64, RedisError> {
        let micros = self.int::<7>()?;
        let nanos = self.int::<2>()?;
        if micros > LATEST || nanos > 999 {
            return Err(RedisError::invalid_reply("an instant out of range"));
        }
        Ok(micros * 1_000 + nanos)
    }

    /// Reads the remaining pairs of an instant and units, oldest first.
    pub(super) fn entries(&mut self) -> Result<Vec<(u64, u64)>, RedisError> {
        let mut entries = Vec::with_capacity(self.0.len() / 14);
        while !self.0.is_empty() {
            match (self.instant()?, self.int::<5>()?) {
                (_, 0) => return Err(RedisError::invalid_reply("an entry of 0 units")),
                entry => entries.push(entry),
            }
        }
        Ok(entries)
    }
}

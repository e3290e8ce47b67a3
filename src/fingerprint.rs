//! Fingerprints of keys, for log lines, spans and explanations.
//!
//! Keys are never logged, because they may be personal or secret. Logs contain fingerprints
//! instead. A fingerprint is a keyed hash of a key. A key has the same fingerprint in all log
//! lines, and in all processes with the same secret.
//!
//! The hash is SipHash-2-4 with 64 bits (Aumasson and Bernstein, 2012) under a [`FingerprintKey`].
//! A hash without a secret would not be safe: all IPv4 addresses can be hashed in seconds.
//!
//! ```
//! use tower_sluice::{Key, fingerprint::FingerprintKey};
//!
//! let secret = FingerprintKey::from(*b"sixteen bytes ..");
//! let fingerprint = Key::from("alice").fingerprint(&secret);
//! assert_eq!(fingerprint.to_string(), "bc6ccc7043dc9acb");
//! ```
//!
//! Enable the fingerprints of a layer with [`RateLimitLayer::fingerprint`]:
//!
//! ```
//! use tower_sluice::{Quota, RateLimitLayer, fingerprint::FingerprintKey};
//!
//! # let from_configuration = "correct horse battery staple";
//! let secret = FingerprintKey::new(from_configuration)?;
//! let layer = RateLimitLayer::per_ip(Quota::per_second(10)).fingerprint(secret);
//! # Ok::<(), tower_sluice::fingerprint::FingerprintKeyError>(())
//! ```
//!
//! # Limitations
//!
//! Anyone with the secret can find a short key by trying all candidates. A reader of the log can
//! see which lines belong to one key. After a change of the secret, all fingerprints differ.
//!
//! [`RateLimitLayer::fingerprint`]: crate::RateLimitLayer::fingerprint

use std::{
    fmt,
    hash::{BuildHasher, Hasher, RandomState},
};

use siphasher::{
    sip::SipHasher24,
    sip128::{Hasher128, SipHasher24 as SipHasher128},
};

/// The length of a `SipHash` key, in bytes.
const LENGTH: usize = 16;

/// Secret of fingerprints: 128 bits that only the operator knows.
///
/// Use sixteen random bytes (`head -c 16 /dev/urandom | base64`), or a text with at least 128 bits
/// of entropy. `Debug` never prints the secret.
#[derive(Clone, Copy)]
pub struct FingerprintKey([u8; LENGTH]);

/// Error for a secret that is too short.
///
/// See [troubleshooting](crate::guide::troubleshooting#errors).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FingerprintKeyError(usize);

/// Fingerprint of a key: 64 bits, written as 16 hexadecimal digits.
///
/// Created by [`Key::fingerprint`](crate::Key::fingerprint). Feature `serde` writes the same text.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint(pub(crate) u64);

impl FingerprintKey {
    /// Creates a secret from at least sixteen bytes.
    ///
    /// Longer input is hashed to sixteen bytes.
    ///
    /// ```
    /// use tower_sluice::fingerprint::FingerprintKey;
    ///
    /// assert!(FingerprintKey::new("correct horse battery staple").is_ok());
    /// assert!(FingerprintKey::new("too short").is_err());
    /// ```
    ///
    /// # Errors
    ///
    /// Fails if there are fewer than 16 bytes. The error contains the number of bytes, never the
    /// bytes themselves.
    pub fn new(bytes: impl AsRef<[u8]>) -> Result<Self, FingerprintKeyError> {
        let bytes = bytes.as_ref();
        match <[u8; LENGTH]>::try_from(bytes) {
            Ok(whole) => Ok(Self(whole)),
            Err(_) if bytes.len() < LENGTH => Err(FingerprintKeyError(bytes.len())),
            Err(_) => Ok(Self(Self::PUBLIC.hash128(&[bytes]))),
        }
    }

    /// Creates a random secret for this process.
    ///
    /// Fingerprints change after a restart.
    ///
    /// ```
    /// use tower_sluice::{Key, fingerprint::FingerprintKey};
    ///
    /// let one = FingerprintKey::random();
    /// let other = FingerprintKey::random();
    /// assert_ne!(Key::from("alice").fingerprint(&one), Key::from("alice").fingerprint(&other));
    /// ```
    #[must_use]
    pub fn random() -> Self {
        // Its keys come from the operating system.
        let random = RandomState::new();
        let [low, high] = [0, 1].map(|half| random.hash_one(half));
        Self((u128::from(high) << 64 | u128::from(low)).to_le_bytes())
    }

    /// A fixed, public secret, for hashes that need not be secret.
    pub(crate) const PUBLIC: Self = Self([0; LENGTH]);

    /// Returns the fingerprint of the joined parts.
    pub(crate) fn fingerprint(&self, parts: &[&[u8]]) -> Fingerprint {
        let mut hasher = SipHasher24::new_with_key(&self.0);
        parts.iter().for_each(|part| hasher.write(part));
        Fingerprint(hasher.finish())
    }

    /// Returns a 128-bit hash of the joined parts, which replaces a key in Redis.
    pub(crate) fn hash128(&self, parts: &[&[u8]]) -> [u8; 16] {
        let mut hasher = SipHasher128::new_with_key(&self.0);
        parts.iter().for_each(|part| hasher.write(part));
        hasher.finish128().as_bytes()
    }
}

impl From<[u8; LENGTH]> for FingerprintKey {
    fn from(bytes: [u8; LENGTH]) -> Self {
        Self(bytes)
    }
}

impl fmt::Debug for FingerprintKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FingerprintKey(..)")
    }
}

impl fmt::Display for FingerprintKeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n = self.0;
        write!(
            f,
            "secret: {n} bytes; give at least {LENGTH}, of `head -c 16 /dev/urandom | base64`"
        )
    }
}

impl std::error::Error for FingerprintKeyError {}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for Fingerprint {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first and the last test vector of the reference implementation.
    #[test]
    fn the_hash_matches_the_reference_vectors() {
        let secret = FingerprintKey(std::array::from_fn(|at| u8::try_from(at).expect("small")));
        let bytes: Vec<u8> = (0..63).collect();
        assert_eq!(secret.fingerprint(&[]).to_string(), "726fdb47dd0e0e31");
        assert_eq!(
            secret.fingerprint(&[&bytes]).to_string(),
            "958a324ceb064572"
        );
        assert_eq!(
            secret.fingerprint(&[&bytes[..5], &bytes[5..]]),
            secret.fingerprint(&[&bytes])
        );
    }

    #[test]
    fn a_short_secret_is_an_error_with_a_fix_and_every_byte_of_a_long_one_counts() {
        for n in 0..LENGTH {
            let error = FingerprintKey::new("hunter2".repeat(3).get(..n).expect("long enough"));
            let said = error.expect_err("too short").to_string();
            assert!(
                said.starts_with(&format!("secret: {n} bytes; give at least 16")),
                "{said}"
            );
            assert!(!said.contains("hunter2"));
        }
        let of = |text: &str| {
            FingerprintKey::new(text)
                .expect("long enough")
                .fingerprint(&[b"key"])
        };
        assert_eq!(
            of("sixteen bytes .."),
            FingerprintKey(*b"sixteen bytes ..").fingerprint(&[b"key"])
        );
        assert_ne!(of("sixteen bytes .."), of("sixteen bytes ..!"));
        assert_ne!(of("sixteen bytes ..!"), of("sixteen bytes ..?"));
        assert_eq!(
            format!("{:?}", FingerprintKey(*b"sixteen bytes ..")),
            "FingerprintKey(..)"
        );
    }
}

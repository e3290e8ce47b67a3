//! The key type.

use std::{
    borrow::Cow,
    fmt,
    hash::{BuildHasher, Hash, Hasher, RandomState},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::{Arc, LazyLock},
};

use foldhash::{SharedSeed, quality::SeedableRandomState};
use http::HeaderValue;
use smallvec::SmallVec;

use crate::fingerprint::{Fingerprint, FingerprintKey};

const WORDS: usize = 5;
/// The maximum length of an inline key, in bytes. A UUID in text form has 36 bytes.
const INLINE: usize = WORDS * 8;

/// The bits of the head that say whose the key is.
const OWNER: u64 = 0b1110_0000;
const OWNER_SHIFT: u32 = 5;

/// Key of an account: bytes with a kind.
///
/// The kind is part of the key, so an IP address and its text form are different keys.
///
/// A key also says if it is that of one client, see [`is_client`](Key::is_client). This is no part of
/// the account: keys that differ only in it are equal.
///
/// Keys of up to 40 bytes need no allocation. `Debug` never prints the key, because it may be
/// personal or secret.
///
/// ```
/// use std::net::IpAddr;
/// use tower_sluice::Key;
///
/// let address: IpAddr = "203.0.113.9".parse().unwrap();
/// assert_ne!(Key::from(address), Key::from("203.0.113.9"));
/// assert_eq!(format!("{:?}", Key::from("secret")), "Key(..)");
/// ```
#[derive(Clone)]
pub struct Key {
    /// The length, shifted left by eight bits, plus the owner and the kind.
    head: u64,
    /// The bytes in little-endian words, padded with zeros. All zero for a longer key.
    words: [u64; WORDS],
    /// The bytes of a key that is longer than the words.
    long: Option<Arc<[u8]>>,
}

/// The kind of a key.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tag {
    Everyone,
    Unidentified,
    Text,
    Number,
    V4,
    V6,
    Parts,
}

/// The party that a key stands for. Of the parts of a joined key, the last in this order decides.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Owner {
    /// All clients.
    All,
    /// Any client that uses one thing, such as a route.
    Any,
    /// A client, by its address.
    Address,
    /// A client, by a name that it may have chosen.
    Name,
    /// Clients that are not known.
    Unknown,
}

impl Tag {
    const fn owner(self) -> Owner {
        match self {
            Self::Everyone => Owner::All,
            Self::Unidentified => Owner::Unknown,
            Self::V4 | Self::V6 => Owner::Address,
            Self::Text | Self::Number | Self::Parts => Owner::Name,
        }
    }
}

impl Key {
    /// Returns the key that all requests share.
    #[must_use]
    pub fn everyone() -> Self {
        Self::words(Tag::Everyone, 0, [0; WORDS])
    }

    /// Returns `true` if the key is that of one client.
    ///
    /// Only such a key is blocked by a [`Penalty`](crate::middleware::Penalty) or a
    /// [`ChargeHandle`](crate::middleware::ChargeHandle::block).
    ///
    /// | key | `is_client` |
    /// |---|---|
    /// | an address, a text or a number | `true`, unless the next rows apply |
    /// | [`Key::everyone`], and each key of an extractor that [never finds a client](crate::KeyExtractor::can_be_client) | `false` |
    /// | the account of requests without a readable identity | `false` |
    /// | [of a proxy](Key::of_proxy) | `false` |
    /// | [joined](Key::join) | `true` if a part is that of a client, and no part is unknown or of a proxy |
    ///
    /// ```
    /// use std::net::Ipv4Addr;
    /// use tower_sluice::Key;
    ///
    /// let address = Key::from(Ipv4Addr::new(203, 0, 113, 9));
    /// assert!(address.is_client() && !Key::everyone().is_client());
    /// assert!(Key::join(&[Key::everyone(), address]).is_client());
    /// ```
    #[must_use]
    #[inline]
    pub fn is_client(&self) -> bool {
        matches!(self.owner(), Owner::Address | Owner::Name)
    }

    /// Marks the key as one that stands for clients which are not known, such as the address of a proxy.
    ///
    /// The account stays the same, but the key is no longer that of [one client](Key::is_client).
    /// [`ClientIp`](crate::ClientIp) does this for a request that names no client. Use it in an extractor of
    /// your own.
    ///
    /// ```
    /// use std::net::Ipv4Addr;
    /// use tower_sluice::Key;
    ///
    /// let proxy = Key::from(Ipv4Addr::new(10, 0, 0, 1)).of_proxy();
    /// assert_eq!(proxy, Key::from(Ipv4Addr::new(10, 0, 0, 1)));
    /// assert!(!proxy.is_client());
    /// ```
    #[must_use]
    pub fn of_proxy(mut self) -> Self {
        self.set_owner(Owner::Unknown);
        self
    }

    /// Marks the key of a client as one of any client.
    pub(super) fn mark_shared(&mut self) {
        if self.is_client() {
            self.set_owner(Owner::Any);
        }
    }

    /// Returns `true` if the key has a queue of its own: that of a client, of a route and such.
    pub(crate) fn has_own_queue(&self) -> bool {
        !matches!(self.owner(), Owner::All | Owner::Unknown)
    }

    /// Returns `true` for an address or a network, alone or joined with shared parts, such as a route.
    pub(crate) fn is_address(&self) -> bool {
        self.owner() == Owner::Address
    }

    fn owner(&self) -> Owner {
        match (self.head & OWNER) >> OWNER_SHIFT {
            0 => Owner::All,
            1 => Owner::Any,
            2 => Owner::Address,
            3 => Owner::Name,
            _ => Owner::Unknown,
        }
    }

    fn set_owner(&mut self, owner: Owner) {
        self.head = self.head & !OWNER | (owner as u64) << OWNER_SHIFT;
    }

    /// Returns the length and the kind.
    #[inline(always)]
    fn account_head(&self) -> u64 {
        self.head & !OWNER
    }

    /// Returns the tag of the kind.
    #[inline(always)]
    fn kind(&self) -> u8 {
        self.account_head().to_le_bytes()[0]
    }

    /// Returns the key of requests without an identity.
    pub(crate) fn unidentified() -> Self {
        Self::words(Tag::Unidentified, 0, [0; WORDS])
    }

    /// Joins several keys into one.
    ///
    /// Joined keys are equal only if all their parts are equal, in order.
    ///
    /// ```
    /// use tower_sluice::Key;
    ///
    /// let split = |a: &str, b: &str| Key::join(&[a.into(), b.into()]);
    /// assert_ne!(split("ab", "c"), split("a", "bc"));
    /// ```
    #[must_use]
    pub fn join(parts: &[Self]) -> Self {
        let mut bytes = SmallVec::<[u8; 128]>::new();
        for part in parts {
            bytes.extend_from_slice(&part.account_head().to_le_bytes());
            part.with_bytes(|content| bytes.extend_from_slice(content));
        }
        let mut key = Self::bytes(Tag::Parts, &bytes);
        key.set_owner(parts.iter().map(Self::owner).max().unwrap_or(Owner::All));
        key
    }

    /// Returns the text of a key that is text, such as the value of a header. A short key is copied.
    ///
    /// Returns `None` for an address, a number, a [joined](Key::join) key, and bytes that are not UTF-8.
    ///
    /// ```
    /// use tower_sluice::{Key, Plan, Quota};
    ///
    /// assert_eq!(Key::from("gold").text().as_deref(), Some("gold"));
    /// assert_eq!(Key::from(7_u64).text(), None);
    ///
    /// let plan = Plan::from_fn(|_head, key| match key.text().as_deref() {
    ///     Some("gold") => Quota::per_second(100).into(),
    ///     _ => Quota::per_second(5).into(),
    /// });
    /// ```
    #[must_use]
    pub fn text(&self) -> Option<Cow<'_, str>> {
        if self.kind() != Tag::Text as u8 {
            return None;
        }
        match &self.long {
            Some(bytes) => std::str::from_utf8(bytes).ok().map(Cow::Borrowed),
            None => self
                .with_bytes(|bytes| Some(Cow::Owned(std::str::from_utf8(bytes).ok()?.to_owned()))),
        }
    }

    /// Returns the length of the content in bytes.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        usize::try_from(self.head >> 8).unwrap_or(usize::MAX)
    }

    /// Returns `true` for a text key that is empty or only white space.
    ///
    /// A blank key is a missing identity.
    #[inline]
    pub(crate) fn is_blank(&self) -> bool {
        // The first byte decides for almost every key.
        self.kind() == Tag::Text as u8
            && (self.head >> 8 == 0
                || self.words[0].to_le_bytes()[0].is_ascii_whitespace()
                || self.long.is_some())
            && self.with_bytes(super::is_blank)
    }

    /// Returns the key as bytes, for stores outside the process.
    ///
    /// The bytes identify the key in every process. They contain the key in plain form, so hash the
    /// bytes before you expose them.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        self.small_bytes().into_vec()
    }

    /// Returns the same bytes as [`to_bytes`](Key::to_bytes), without an allocation for short keys.
    pub(crate) fn small_bytes(&self) -> SmallVec<[u8; 64]> {
        let mut bytes = SmallVec::new();
        bytes.push(self.kind());
        self.with_bytes(|content| bytes.extend_from_slice(content));
        bytes
    }

    /// Returns the fingerprint of the key for logs.
    ///
    /// Processes with the same `secret` return the same fingerprint for a key.
    ///
    /// To find a key in the log, build the key as the extractor does. For example,
    /// [`PeerIp`](crate::PeerIp) cuts an IPv6 address to its /64, and a tuple of extractors
    /// [joins](Key::join) its keys.
    ///
    /// ```
    /// use std::net::IpAddr;
    /// use tower_sluice::{Key, fingerprint::FingerprintKey};
    ///
    /// let secret = FingerprintKey::from(*b"sixteen bytes ..");
    /// let fingerprint = |address: &str| Key::from(address.parse::<IpAddr>().unwrap()).fingerprint(&secret);
    /// assert_eq!(fingerprint("203.0.113.9").to_string(), "55bbf4838f29aabc");
    /// assert_eq!(fingerprint("2001:db8:0:1::").to_string(), "6999f5de37f3a617");
    /// ```
    #[must_use]
    pub fn fingerprint(&self, secret: &FingerprintKey) -> Fingerprint {
        let kind = [self.kind()];
        self.with_bytes(|content| secret.fingerprint(&[&kind, content]))
    }

    fn bytes(kind: Tag, content: &[u8]) -> Self {
        if content.len() > INLINE {
            let key = Self::words(kind, content.len(), [0; WORDS]);
            return Self {
                long: Some(content.into()),
                ..key
            };
        }
        let mut words = [0; WORDS];
        for (word, chunk) in words.iter_mut().zip(content.chunks(8)) {
            let mut bytes = [0; 8];
            bytes[..chunk.len()].copy_from_slice(chunk);
            *word = u64::from_le_bytes(bytes);
        }
        Self::words(kind, content.len(), words)
    }

    fn words(kind: Tag, len: usize, words: [u64; WORDS]) -> Self {
        let owner = (kind.owner() as u64) << OWNER_SHIFT;
        Self {
            head: kind as u64 | owner | (len as u64) << 8,
            words,
            long: None,
        }
    }

    fn with_bytes<T>(&self, read: impl FnOnce(&[u8]) -> T) -> T {
        if let Some(bytes) = &self.long {
            return read(bytes);
        }
        let mut bytes = [0; INLINE];
        for (chunk, word) in bytes.chunks_mut(8).zip(self.words) {
            chunk.copy_from_slice(&word.to_le_bytes());
        }
        read(&bytes[..self.len().min(INLINE)])
    }

    /// Returns the key in clear text, for operators. Keys of different kinds may have the same text.
    #[cfg(feature = "admin")]
    pub(crate) fn clear_text(&self) -> String {
        let text = self.with_bytes(|bytes| clear_text(self.kind().into(), bytes));
        text.unwrap_or_default()
    }

    /// Hashes the key and `salt`.
    #[inline(always)]
    pub(crate) fn hash_with<H: Hasher>(&self, salt: u64, state: &mut H) {
        // The odd constant (from the golden ratio) spreads the few significant bits of `head`.
        state.write_u64(salt ^ self.account_head().wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let [first, second, rest @ ..] = &self.words;
        state.write_u64(*first);
        if self.head >= 9 << 8 {
            state.write_u64(*second);
        }
        if self.head >= 17 << 8 {
            rest.iter().for_each(|word| state.write_u64(*word));
            self.long.iter().for_each(|bytes| state.write(bytes));
        }
    }
}

/// Returns the kind and the content of each part of a joined key.
#[cfg(feature = "admin")]
fn parts(mut bytes: &[u8]) -> impl Iterator<Item = (u64, &[u8])> {
    std::iter::from_fn(move || {
        let (head, rest) = bytes.split_first_chunk()?;
        let head = u64::from_le_bytes(*head);
        let (content, rest) = rest.split_at_checked(usize::try_from(head >> 8).ok()?)?;
        bytes = rest;
        Some((head & 0xff, content))
    })
}

/// Returns the text of a key, or `None` for bytes that no constructor creates.
#[cfg(feature = "admin")]
fn clear_text(kind: u64, bytes: &[u8]) -> Option<String> {
    Some(match kind {
        _ if kind == Tag::Everyone as u64 => "everyone".into(),
        _ if kind == Tag::Unidentified as u64 => "unidentified".into(),
        _ if kind == Tag::Text as u64 => String::from_utf8_lossy(bytes).into(),
        _ if kind == Tag::Number as u64 => u128::from_le_bytes(bytes.try_into().ok()?).to_string(),
        _ if kind == Tag::V4 as u64 => Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?).to_string(),
        _ if kind == Tag::V6 as u64 => {
            Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).to_string()
        }
        _ => {
            let texts = parts(bytes).map(|(kind, content)| clear_text(kind, content));
            texts.collect::<Option<Vec<_>>>()?.join(", ")
        }
    })
}

/// Mixes a number into a hash, for numbers that clients cannot choose.
#[inline]
pub(crate) fn mix(hash: u64, part: u64) -> u64 {
    (hash ^ part).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Returns a hasher with random seeds of the operating system. Those of `foldhash` itself come from
/// addresses and the time.
pub(crate) fn random_state() -> SeedableRandomState {
    static SHARED: LazyLock<SharedSeed> =
        LazyLock::new(|| SharedSeed::from_u64(RandomState::new().hash_one(0)));
    SeedableRandomState::with_seed(RandomState::new().hash_one(0), &SHARED)
}

/// Compares the accounts.
impl PartialEq for Key {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.account_head() == other.account_head()
            && self.words == other.words
            && self.long == other.long
    }
}

impl Eq for Key {}

impl Hash for Key {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.hash_with(0, state);
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

impl From<Ipv4Addr> for Key {
    #[inline]
    fn from(address: Ipv4Addr) -> Self {
        let mut words = [0; WORDS];
        words[0] = u32::from_le_bytes(address.octets()).into();
        Self::words(Tag::V4, 4, words)
    }
}

impl From<Ipv6Addr> for Key {
    fn from(address: Ipv6Addr) -> Self {
        Self::bytes(Tag::V6, &address.octets())
    }
}

/// Converts an IPv4-mapped IPv6 address to its IPv4 address.
impl From<IpAddr> for Key {
    #[inline]
    fn from(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => address.into(),
            IpAddr::V6(address) => address.into(),
        }
    }
}

impl From<&[u8]> for Key {
    fn from(text: &[u8]) -> Self {
        Self::bytes(Tag::Text, text)
    }
}

macro_rules! from_text {
    ($($text:ty),*) => {$(
        impl From<$text> for Key {
            fn from(text: $text) -> Self {
                text.as_bytes().into()
            }
        }
    )*};
}

from_text!(&str, String, &String, Cow<'_, str>, Arc<str>);

/// Converts a header value without the white space around it (RFC 9110, §5.5).
///
/// HTTP/2 servers keep this white space. Otherwise a client could send one value as many keys.
impl From<&HeaderValue> for Key {
    fn from(value: &HeaderValue) -> Self {
        value.as_bytes().trim_ascii().into()
    }
}

/// Converts a header value without the white space around it.
impl From<HeaderValue> for Key {
    fn from(value: HeaderValue) -> Self {
        (&value).into()
    }
}

impl From<u64> for Key {
    fn from(number: u64) -> Self {
        Self::from(u128::from(number))
    }
}

impl From<u32> for Key {
    fn from(number: u32) -> Self {
        Self::from(u128::from(number))
    }
}

/// Converts a number to a key. The integer type does not matter: `7_u32` and `7_u128` are equal
/// keys.
impl From<u128> for Key {
    fn from(number: u128) -> Self {
        Self::bytes(Tag::Number, &number.to_le_bytes())
    }
}

#[cfg(test)]
mod tests {
    use std::hash::BuildHasher;

    use super::*;

    fn same(a: &Key, b: &Key) -> bool {
        let state = foldhash::quality::FixedState::default();
        assert_eq!(a == b, state.hash_one(a) == state.hash_one(b));
        a == b
    }

    #[test]
    fn keys_keep_their_bytes_at_every_length() {
        for len in 0..100 {
            let text = "abcdefghij".repeat(10)[..len].to_owned();
            let key = Key::from(&text);
            assert_eq!(key.len(), len);
            assert_eq!(&key.to_bytes()[1..], text.as_bytes());
            assert_eq!(key.text().as_deref(), Some(&*text));
            assert!(same(&key, &key.clone()));
        }
    }

    #[test]
    fn keys_of_different_kinds_or_lengths_differ() {
        assert!(!same(&Key::from("a"), &Key::from("a\0")));
        assert!(!same(&Key::everyone(), &Key::from("")));
        assert!(!same(&Key::everyone(), &Key::unidentified()));
        assert!(!same(&Key::from(7_u32), &Key::from("7")));
        assert!(same(&Key::from(7_u32), &Key::from(7_u64)));
        let mapped: IpAddr = "::ffff:10.0.0.1".parse().expect("an address");
        assert!(same(
            &Key::from(mapped),
            &Key::from(Ipv4Addr::new(10, 0, 0, 1))
        ));
    }

    #[test]
    fn only_text_is_text() {
        let bytes = Key::from(&[0xff_u8][..]);
        let joined = Key::join(&[Key::from("a")]);
        for key in [
            Key::everyone(),
            Key::unidentified(),
            Key::from(7_u32),
            bytes,
            joined,
        ] {
            assert_eq!(key.text(), None);
        }
        assert_eq!(Key::from(Ipv4Addr::new(10, 0, 0, 1)).text(), None);
    }

    #[test]
    fn joined_keys_do_not_collide() {
        let (a, b) = (Key::from("a"), Key::from("b"));
        let pair = Key::join(&[a.clone(), b.clone()]);
        assert!(!same(&pair, &Key::join(&[b.clone(), a.clone()])));
        assert!(!same(&pair, &Key::join(&[Key::from("ab")])));
        assert!(!same(
            &Key::join(&[pair, b.clone()]),
            &Key::join(&[a, b.clone(), b])
        ));
    }

    #[test]
    fn a_joined_key_is_that_of_a_client_unless_a_part_is_unknown() {
        let mut route = Key::from("/login");
        route.mark_shared();
        let (nobody, address) = (Key::unidentified(), Key::from(Ipv4Addr::LOCALHOST));
        let proxy = address.clone().of_proxy();
        let join = |part: &Key| Key::join(&[route.clone(), part.clone()]);
        let long = Key::from("long".repeat(100));
        for shared in [
            Key::everyone(),
            nobody.clone(),
            proxy.clone(),
            route.clone(),
        ] {
            for key in [&shared, &join(&shared), &join(&join(&shared))] {
                assert!(!key.is_client());
            }
        }
        assert!(route.has_own_queue() && join(&Key::everyone()).has_own_queue());
        assert!(!Key::everyone().has_own_queue() && !join(&proxy).has_own_queue());
        for unknown in [nobody, proxy] {
            assert!(!Key::join(&[long.clone(), unknown]).is_client());
        }
        for client in [address.clone(), long.clone(), 7_u32.into()] {
            for key in [&client, &join(&client), &join(&join(&client))] {
                assert!(key.is_client());
            }
        }
        assert!(!Key::join(&[]).is_client());
        assert!(join(&address).is_address() && !join(&long).is_address());
        assert!(!Key::join(&[address, long]).is_address());
    }

    #[test]
    fn the_owner_of_a_key_changes_no_account() {
        let secret = FingerprintKey::from(*b"sixteen bytes ..");
        let keys = [
            Key::from("a"),
            Ipv4Addr::LOCALHOST.into(),
            Key::from("long".repeat(100)),
        ];
        for key in keys {
            let mut shared = key.clone();
            shared.mark_shared();
            for other in [key.clone().of_proxy(), shared] {
                assert!(same(&key, &other) && key.is_client() != other.is_client());
                assert_eq!(key.to_bytes(), other.to_bytes());
                assert_eq!(key.fingerprint(&secret), other.fingerprint(&secret));
                assert_eq!((key.len(), key.is_blank()), (other.len(), other.is_blank()));
                let joined = [key.clone(), other].map(|part| Key::join(&[part]));
                assert!(same(&joined[0], &joined[1]));
            }
        }
    }

    #[cfg(feature = "admin")]
    #[test]
    fn operators_read_keys_of_every_kind() {
        let long = "long".repeat(100);
        for (key, text) in [
            (Key::everyone(), "everyone"),
            (Key::unidentified(), "unidentified"),
            (Key::from("alice"), "alice"),
            (Key::from(&b"caf\xe9"[..]), "caf\u{fffd}"),
            (Key::from(&long), &*long),
            (Key::from(7_u32), "7"),
            (
                Key::from(u128::MAX),
                "340282366920938463463374607431768211455",
            ),
            (Ipv4Addr::new(203, 0, 113, 9).into(), "203.0.113.9"),
            (
                Ipv6Addr::new(0x2001, 0xdb8, 0, 1, 0, 0, 0, 0).into(),
                "2001:db8:0:1::",
            ),
            (
                Key::join(&["GET".into(), Key::join(&["a".into(), 7_u32.into()])]),
                "GET, a, 7",
            ),
        ] {
            assert_eq!(key.clear_text(), text);
        }
    }

    #[test]
    fn only_text_keys_are_blank() {
        assert!(Key::from("").is_blank() && Key::from(" \t ").is_blank());
        assert!(!Key::from("x").is_blank() && !Key::everyone().is_blank());
    }
}

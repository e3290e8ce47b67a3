//! The kind of key that an extractor makes.

/// The kind of key that a [`KeyExtractor`](super::KeyExtractor) makes.
///
/// Operators name an account by its key. By the kind of the rule's keys the `admin` router reads what
/// they write, and rejects a key that no request can have. It changes no decision.
///
/// ```
/// use tower_sluice::key::{Header, KeyExtractor, KeyKind, PeerIp};
///
/// assert_eq!(Header::new("x-api-key").kind(), KeyKind::Text);
/// assert_eq!(
///     (Header::new("x-api-key"), PeerIp::new().ipv6_prefix(48)).kind(),
///     KeyKind::Tuple(vec![KeyKind::Text, KeyKind::Address { ipv4_prefix: 32, ipv6_prefix: 48 }]),
/// );
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyKind {
    /// Not known: any key is read as it is written.
    #[default]
    Any,
    /// Text, or bytes that are no text.
    Text,
    /// A whole number.
    Number,
    /// An IP address, of which so many leading bits count.
    Address {
        /// The leading bits of an IPv4 address that count, 32 at most.
        ipv4_prefix: u8,
        /// The leading bits of an IPv6 address that count, 128 at most.
        ipv6_prefix: u8,
    },
    /// The one key of all requests, [`Key::everyone`](super::Key::everyone).
    Everyone,
    /// The one key of all requests without an identity
    /// ([`Missing::Share`](crate::Missing::Share)).
    Unidentified,
    /// A key of one of these kinds.
    OneOf(Vec<Self>),
    /// One key [joined](super::Key::join) of keys of these kinds, in this order.
    Tuple(Vec<Self>),
}

impl KeyKind {
    /// A key of this kind or of the other.
    ///
    /// ```
    /// use tower_sluice::key::KeyKind;
    ///
    /// let text_or_number = KeyKind::OneOf(vec![KeyKind::Text, KeyKind::Number]);
    /// assert_eq!(KeyKind::Text.or(KeyKind::Number), text_or_number);
    /// assert_eq!(KeyKind::Text.or(KeyKind::Text), KeyKind::Text);
    /// assert_eq!(KeyKind::Text.or(KeyKind::Any), KeyKind::Any);
    /// ```
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        let mut kinds = Vec::new();
        for kind in [self, other] {
            match kind {
                Self::Any => return Self::Any,
                Self::OneOf(more) => kinds.extend(more),
                kind => kinds.push(kind),
            }
        }
        let mut distinct: Vec<Self> = Vec::with_capacity(kinds.len());
        for kind in kinds {
            if !distinct.contains(&kind) {
                distinct.push(kind);
            }
        }
        match distinct.len() {
            1 => distinct.remove(0),
            _ => Self::OneOf(distinct),
        }
    }
}

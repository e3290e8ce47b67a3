//! Kinds of keys.

/// Kind of key that a [`KeyExtractor`](super::KeyExtractor) returns.
///
/// The `admin` router parses keys from operators by their kind, and rejects keys of another kind.
/// Decisions do not depend on the kind.
///
/// ```
/// use tower_sluice::key::{HeaderKey, KeyExtractor, KeyKind, PeerIp};
///
/// assert_eq!(HeaderKey::new("x-api-key").kind(), KeyKind::Text);
/// assert_eq!(
///     (HeaderKey::new("x-api-key"), PeerIp::new().ipv6_prefix(48)).kind(),
///     KeyKind::Tuple(vec![KeyKind::Text, KeyKind::Address { ipv4_prefix: 32, ipv6_prefix: 48 }]),
/// );
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum KeyKind {
    /// Text, or bytes that are not valid text.
    Text,
    /// A whole number.
    Number,
    /// An IP address cut to its leading bits.
    Address {
        /// The number of leading bits of an IPv4 address, at most 32.
        ipv4_prefix: u8,
        /// The number of leading bits of an IPv6 address, at most 128.
        ipv6_prefix: u8,
    },
    /// The key that all requests share, [`Key::everyone`](super::Key::everyone).
    Everyone,
    /// The key that all requests without an identity share
    /// ([`OnMissingKey::Share`](crate::rule::OnMissingKey::Share)).
    Unidentified,
    /// A key of one of these kinds.
    OneOf(Vec<Self>),
    /// Several keys, [joined](super::Key::join) in this order.
    #[cfg_attr(feature = "serde", serde(untagged))]
    Tuple(Vec<Self>),
    /// An unknown kind. The `admin` router accepts any key.
    #[default]
    #[cfg_attr(feature = "serde", serde(untagged))]
    Any,
}

impl KeyKind {
    /// Returns a kind that includes this kind and `other`.
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

//! Headers that contain the address of the client.

use std::net::IpAddr;

use http::{HeaderMap, HeaderName, header::FORWARDED};

use super::{
    super::{
        entries::{HeaderEntries, TooMuch},
        is_blank,
    },
    entry,
    forwarded::{self, ElementError, Elements},
};

static X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The header with the address of the client.
///
/// No other header is read, because a client can send any header that the proxy does not set.
#[derive(Clone, Debug)]
pub(super) enum ClientHeader {
    XForwardedFor,
    Forwarded,
    /// A header with a single address.
    Single(HeaderName),
}

/// The reason why an address cannot be read, such as "is sent more than once". Messages put the
/// name of the header before the reason.
pub(super) type HeaderFault = &'static str;

const REPEATED: HeaderFault = "is sent more than once";
const TOO_LONG: HeaderFault = "names more than 32 proxies, or is too long";
const OPEN_QUOTE: HeaderFault = "has a quoted string that does not end";
const NO_ADDRESS: HeaderFault = "has an entry without a valid address";

impl ClientHeader {
    pub(super) fn name(&self) -> &HeaderName {
        match self {
            Self::XForwardedFor => &X_FORWARDED_FOR,
            Self::Forwarded => &FORWARDED,
            Self::Single(name) => name,
        }
    }

    /// Returns `true` if the header is absent or blank.
    pub(super) fn is_blank(&self, headers: &HeaderMap) -> bool {
        headers.get_all(self.name()).iter().all(|line| is_blank(line.as_bytes()))
    }

    /// Returns the addresses in the header, from right to left.
    pub(super) fn addresses(
        &self,
        headers: &HeaderMap,
    ) -> impl Iterator<Item = Result<IpAddr, HeaderFault>> {
        let lines = headers.get_all(self.name());
        let (mut single, mut listed, mut elements) = (None, None, None);
        match self {
            Self::Single(_) => single = lines.iter().next(),
            Self::XForwardedFor => listed = Some(HeaderEntries::from_right(&lines)),
            Self::Forwarded => elements = Some(Elements::of(&lines)),
        }
        let repeated = lines.iter().nth(1).is_some();
        let single = single.map(move |line| match line.as_bytes().trim_ascii() {
            _ if repeated => Err(REPEATED),
            line => entry::address(line).ok_or(NO_ADDRESS),
        });
        let listed = listed.into_iter().flatten().map(|entry| {
            let entry = entry.map_err(|TooMuch| TOO_LONG)?;
            entry::address(entry).ok_or(NO_ADDRESS)
        });
        let elements = elements.into_iter().flatten().map(|element| match element {
            Ok(element) => forwarded::for_address(element).ok_or(NO_ADDRESS),
            Err(ElementError::TooMuch) => Err(TOO_LONG),
            Err(ElementError::OpenQuote) => Err(OPEN_QUOTE),
        });
        single.into_iter().chain(listed).chain(elements)
    }
}

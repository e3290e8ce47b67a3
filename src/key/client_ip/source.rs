//! Which header tells the client, and what it says.

use std::net::IpAddr;

use http::{HeaderMap, HeaderName, header::FORWARDED};

use super::{
    entries::{Entries, TooMuch},
    entry,
    forwarded::{self, Elements, Fault},
};

static X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// One header, since whoever may choose between several takes the one that no proxy sets.
#[derive(Clone, Debug)]
pub(super) enum Source {
    XForwardedFor,
    Forwarded,
    /// Holds one address.
    Single(HeaderName),
}

/// Why an address cannot be read, in the words behind the header's name.
pub(super) type Why = &'static str;

const REPEATED: Why = "is sent more than once";
const TOO_LONG: Why = "names more than 32 proxies, or is too long";
const OPEN_QUOTE: Why = "has a quoted string that does not end";
const NO_ADDRESS: Why = "has no address where the client or a proxy should stand";

impl Source {
    pub(super) fn name(&self) -> &HeaderName {
        match self {
            Self::XForwardedFor => &X_FORWARDED_FOR,
            Self::Forwarded => &FORWARDED,
            Self::Single(name) => name,
        }
    }

    /// The addresses it tells, that of the nearest caller first.
    pub(super) fn addresses(
        &self,
        headers: &HeaderMap,
    ) -> impl Iterator<Item = Result<IpAddr, Why>> {
        let lines = headers.get_all(self.name());
        let (mut single, mut listed, mut elements) = (None, None, None);
        match self {
            Self::Single(_) => single = lines.iter().next(),
            Self::XForwardedFor => listed = Some(Entries::of(&lines)),
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
            Err(Fault::TooMuch) => Err(TOO_LONG),
            Err(Fault::OpenQuote) => Err(OPEN_QUOTE),
        });
        single.into_iter().chain(listed).chain(elements)
    }
}

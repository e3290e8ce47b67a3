//! A line of an access log: the common or combined format of Apache and nginx.
//!
//! ```text
//! [VHOST] ADDRESS IDENT USER [TIME] "REQUEST" STATUS BYTES ["REFERER" "AGENT" ["FORWARDED"]] …
//! ```

use std::{
    net::{IpAddr, SocketAddr},
    str,
    time::Duration,
};

use axum::http::{Method, Uri};
use jiff::Timestamp;

/// The format of a time, as of `strptime`.
const TIME: &str = "%d/%b/%Y:%H:%M:%S %z";

/// The content of a line, as the server has escaped it.
pub(crate) struct Entry<'a> {
    pub(crate) at: Duration,
    pub(crate) peer: SocketAddr,
    pub(crate) user: Option<&'a [u8]>,
    pub(crate) method: Method,
    pub(crate) target: Uri,
    pub(crate) referer: Option<&'a [u8]>,
    pub(crate) agent: Option<&'a [u8]>,
    pub(crate) forwarded: Option<&'a [u8]>,
}

/// The reason why a line cannot be read.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Reason {
    Empty,
    TooLong,
    Address,
    Time,
    Request,
    Status,
    Quote,
    Header,
}

impl Reason {
    /// Returns the fault and its fix.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Empty => "the line is empty",
            Self::TooLong => "the line is longer than 64 KiB",
            Self::Address => "no address where one should be (a log with host names? log %a)",
            Self::Time => "no time where one should be, as [10/Oct/2000:13:55:36 -0700]",
            Self::Request => "no request that a service would see, as \"GET / HTTP/1.1\"",
            Self::Status => "no status and size behind the request, as 200 2326",
            Self::Quote => "a quote is missing or not closed",
            Self::Header => "no header may have such a value",
        }
    }
}

/// The reason, and the faulty part of the line.
pub(crate) type Fault<'a> = (Reason, &'a [u8]);

/// Parses times. Times within one second are parsed once.
#[derive(Default)]
pub(crate) struct Instants {
    last: Option<(Vec<u8>, Duration)>,
}

impl Instants {
    fn read(&mut self, text: &[u8]) -> Option<Duration> {
        if let Some((last, at)) = &self.last
            && last == text
        {
            return Some(*at);
        }
        let time = Timestamp::strptime(TIME, text).ok()?;
        let at = Duration::from_secs(time.as_second().try_into().ok()?);
        self.last = Some((text.to_vec(), at));
        Some(at)
    }
}

impl<'a> Entry<'a> {
    pub(crate) fn read(line: &'a [u8], instants: &mut Instants) -> Result<Self, Fault<'a>> {
        if line.trim_ascii().is_empty() {
            return Err((Reason::Empty, line));
        }
        let (who, rest) = line.split_at(bracket(line).ok_or((Reason::Time, line))?);
        let (peer, user) = who_asks(who)?;
        let rest = &rest[" [".len()..];
        let end = find(rest, b"]").ok_or((Reason::Time, rest))?;
        let (time, rest) = (&rest[..end], &rest[end + 1..]);
        let at = instants.read(time).ok_or((Reason::Time, time))?;
        let (request, rest) = quoted(rest.trim_ascii_start())?;
        let (method, target) = asked(request).ok_or((Reason::Request, request))?;
        let rest = answered(rest.trim_ascii_start()).ok_or((Reason::Status, rest))?;
        let mut rest = rest.trim_ascii_start();
        let mut texts = [None; 3];
        for text in &mut texts {
            if rest.first() == Some(&b'"') {
                let (found, behind) = quoted(rest)?;
                rest = behind.trim_ascii_start();
                *text = given(found);
            }
        }
        let [referer, agent, forwarded] = texts;
        Ok(Self { at, peer, user, method, target, referer, agent, forwarded })
    }
}

fn find(text: &[u8], part: &[u8]) -> Option<usize> {
    text.windows(part.len()).position(|it| it == part)
}

/// Returns the start of the time. The user, whose name a client chooses, and the request may
/// contain brackets. Servers escape quotes, so the first quote after a bracket starts the request.
fn bracket(line: &[u8]) -> Option<usize> {
    const STAMP: usize = " [10/Oct/2000:13:55:36 -0700] \"".len();
    let is_stamp = |part: &[u8]| part.starts_with(b" [") && part.ends_with(b"] \"");
    // Without a stamp, the error shows the first bracket.
    line.windows(STAMP).position(is_stamp).or_else(|| find(line, b" ["))
}

/// Returns the value, or `None` for `-`, which a log writes for an absent value.
fn given(text: &[u8]) -> Option<&[u8]> {
    (!text.is_empty() && text != b"-").then_some(text)
}

/// Returns the address and the user. A user name may contain spaces, and a virtual host may come
/// first.
fn who_asks(who: &[u8]) -> Result<(SocketAddr, Option<&[u8]>), Fault<'_>> {
    let mut words = who.splitn(4, |byte| *byte == b' ');
    let [first, second, _ident] = [(); 3].map(|()| words.next().unwrap_or_default());
    if let (Some(peer), Some(user)) = (address(second), words.next()) {
        return Ok((peer, given(user)));
    }
    let peer = address(first).ok_or((Reason::Address, first))?;
    // The third word and the rest.
    let user = who.get(first.len() + second.len() + 2..).unwrap_or_default();
    Ok((peer, given(user)))
}

fn address(text: &[u8]) -> Option<SocketAddr> {
    let text = str::from_utf8(text).ok()?;
    let alone = text.parse::<IpAddr>().map(|address| SocketAddr::new(address, 0));
    alone.or_else(|_| text.parse()).ok()
}

/// Returns the text between quotes, and the rest.
fn quoted(text: &[u8]) -> Result<(&[u8], &[u8]), Fault<'_>> {
    let inside = text.strip_prefix(b"\"").ok_or((Reason::Quote, text))?;
    let mut escaped = false;
    let end = inside.iter().position(|byte| {
        let ends = *byte == b'"' && !escaped;
        escaped = *byte == b'\\' && !escaped;
        ends
    });
    let end = end.ok_or((Reason::Quote, text))?;
    Ok((&inside[..end], &inside[end + 1..]))
}

/// Parses `GET / HTTP/1.1`, or the old form `GET /`.
fn asked(request: &[u8]) -> Option<(Method, Uri)> {
    let mut words = request.split(|byte| *byte == b' ');
    let method = Method::from_bytes(words.next()?).ok()?;
    let target = Uri::try_from(words.next()?).ok()?;
    let known = words.next().is_none_or(|version| version.starts_with(b"HTTP/"));
    (known && words.next().is_none()).then_some((method, target))
}

/// Returns the rest after a status and a number of bytes.
fn answered(text: &[u8]) -> Option<&[u8]> {
    let (status, rest) = text.split_at_checked(3)?;
    let rest = rest.strip_prefix(b" ")?;
    let end = rest.iter().position(|byte| *byte == b' ').unwrap_or(rest.len());
    let (bytes, rest) = rest.split_at(end);
    let digits = |text: &[u8]| !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    (digits(status) && (bytes == b"-" || digits(bytes))).then_some(rest)
}

/// Returns the bytes in printable form, with an escape for all but plain text.
pub(crate) fn shown(text: &[u8]) -> String {
    let mut shown = String::with_capacity(text.len());
    for byte in text {
        match byte {
            b' '..=b'~' => shown.push(char::from(*byte)),
            other => shown.extend(other.escape_ascii().map(char::from)),
        }
    }
    shown
}

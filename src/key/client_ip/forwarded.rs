//! Elements of `Forwarded`, last first (RFC 7239, 4; RFC 9110, 5.6).
//!
//! A proxy appends its element behind whatever a client sent, in the same line or in a line of its
//! own, and may quote what a client chose, such as the `Host`. So lines are read apart, since a
//! quoted string does not go on in another one. A line that the walk reaches is split from the
//! left, where alone it is known what is quoted. A line in which a string does not end, or which is
//! too long to be split within the bound, is an error for its sender. Each element that the walk
//! reaches is then read as a whole, or is an error as a whole.
//!
//! A client may open a quote and so shift what counts as quoted in the elements that proxies append
//! to its line. It gains an error by that, and no address:
//!
//! - Correct proxies write an even number of quotes that are not escaped. Shifted by one, the last
//!   of them leaves a string open at the end of the line, unless an escaped quote ended the shift.
//! - An escaped quote ends the shift where a proxy's string holds one: counted as outside, it opens
//!   a string that the proxy's own quote then closes. Right of it, elements are what proxies wrote.
//!   The element that holds it has a backslash outside of strings, which the grammar does not know.
//!   That element is an error, and nothing left of it is reached.

use std::{iter::Rev, net::IpAddr};

use http::{
    HeaderValue,
    header::{GetAll, ValueIter},
};

use super::{
    entries::{MOST_BYTES, MOST_ENTRIES},
    entry::{self, LONGEST},
};

/// The elements of all lines, from the right.
pub(super) struct Elements<'a> {
    lines: Rev<ValueIter<'a, HeaderValue>>,
    line: Option<Line<'a>>,
    elements: usize,
    bytes: usize,
    fault: Option<Fault>,
}

/// Why there is no further element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// More than 32 elements, or 4 KiB, would have to be looked at.
    TooMuch,
    /// A quoted string does not end in its line.
    OpenQuote,
}

impl<'a> Elements<'a> {
    pub(super) fn of(lines: &GetAll<'a, HeaderValue>) -> Self {
        let lines = lines.iter().rev();
        Self { lines, line: None, elements: MOST_ENTRIES, bytes: MOST_BYTES, fault: None }
    }

    /// The line with the next element; `None` where no line is left.
    fn line(&mut self) -> Option<Result<Line<'a>, Fault>> {
        if let Some(line) = self.line.take() {
            return Some(Ok(line));
        }
        let text = self.lines.next()?.as_bytes();
        if text.len() > self.bytes {
            return Some(Err(Fault::TooMuch));
        }
        self.bytes = self.bytes.saturating_sub(text.len() + 1);
        Some(Line::split(text).ok_or(Fault::OpenQuote))
    }
}

impl<'a> Iterator for Elements<'a> {
    type Item = Result<&'a [u8], Fault>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(fault) = self.fault {
            return Some(Err(fault));
        }
        let line = self.line()?;
        let left = self.elements.checked_sub(1).ok_or(Fault::TooMuch);
        match line.and_then(|line| left.map(|left| (line, left))) {
            Ok((line, left)) => {
                let (element, rest) = line.last();
                (self.line, self.elements) = (rest, left);
                Some(Ok(element))
            }
            Err(fault) => {
                self.fault = Some(fault);
                Some(Err(fault))
            }
        }
    }
}

/// A line, and where it is to be split.
struct Line<'a> {
    text: &'a [u8],
    /// The last of the commas outside of quoted strings, each at its number modulo the length.
    commas: [usize; MOST_ENTRIES],
    count: usize,
}

impl<'a> Line<'a> {
    /// `None` where a quoted string does not end.
    fn split(text: &'a [u8]) -> Option<Self> {
        let mut line = Self { text, commas: [0; MOST_ENTRIES], count: 0 };
        let (mut quoted, mut escaped) = (false, false);
        for (at, byte) in text.iter().enumerate() {
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = quoted,
                b'"' => quoted = !quoted,
                b',' if !quoted => {
                    line.commas[line.count % MOST_ENTRIES] = at;
                    line.count += 1;
                }
                _ => {}
            }
        }
        (!quoted).then_some(line)
    }

    /// The last element, and the line without it.
    fn last(self) -> (&'a [u8], Option<Self>) {
        let Some(count) = self.count.checked_sub(1) else { return (self.text, None) };
        let at = self.commas[count % MOST_ENTRIES];
        (&self.text[at + 1..], Some(Self { text: &self.text[..at], count, ..self }))
    }
}

/// The address of the only `for` of an element.
///
/// `None` unless the whole element is read: names are tokens; a value is a quoted string or holds
/// neither quotes, backslashes nor white space. Colons and brackets pass without quotes, as some
/// proxies write them, and so does white space around `;` and `=`.
pub(super) fn for_address(element: &[u8]) -> Option<IpAddr> {
    let mut found = None;
    let mut rest = Some(element);
    while let Some(text) = rest {
        let text = text.trim_ascii_start();
        if text.first().is_none_or(|byte| *byte == b';') {
            rest = text.get(1..);
            continue;
        }
        let equals = text.iter().position(|byte| *byte == b'=')?;
        let name = text[..equals].trim_ascii_end();
        let (value, behind) = Value::read(text[equals + 1..].trim_ascii_start())?;
        let is_for = name.eq_ignore_ascii_case(b"for");
        if !is_token(name) || (is_for && found.replace(value).is_some()) {
            return None;
        }
        rest = behind;
    }
    found?.address()
}

/// The text behind `=`.
enum Value<'a> {
    Bare(&'a [u8]),
    /// Without its quotes, with its escapes.
    Quoted(&'a [u8]),
}

impl<'a> Value<'a> {
    /// The value at the start of `text`, and what follows the `;` behind it.
    fn read(text: &'a [u8]) -> Option<(Self, Option<&'a [u8]>)> {
        let Some(inside) = text.strip_prefix(b"\"") else {
            let end = text.iter().position(|byte| *byte == b';').unwrap_or(text.len());
            let bare = text[..end].trim_ascii_end();
            let stray =
                |byte: &u8| matches!(byte, b'"' | b'\\' | b',') || byte.is_ascii_whitespace();
            return (!bare.iter().any(stray)).then(|| (Self::Bare(bare), text.get(end + 1..)));
        };
        let mut escaped = false;
        let end = inside.iter().position(|byte| {
            let ends = *byte == b'"' && !escaped;
            escaped = *byte == b'\\' && !escaped;
            ends
        })?;
        let behind = inside[end + 1..].trim_ascii_start();
        match behind.split_first() {
            None => Some((Self::Quoted(&inside[..end]), None)),
            Some((b';', rest)) => Some((Self::Quoted(&inside[..end]), Some(rest))),
            Some(_) => None,
        }
    }

    fn address(&self) -> Option<IpAddr> {
        let text = match *self {
            Self::Bare(text) => text,
            Self::Quoted(text) if !text.contains(&b'\\') => text,
            Self::Quoted(text) => {
                let (mut plain, mut length, mut escaped) = ([0; LONGEST], 0, false);
                for byte in text {
                    escaped = *byte == b'\\' && !escaped;
                    if !escaped {
                        *plain.get_mut(length)? = *byte;
                        length += 1;
                    }
                }
                return entry::address(&plain[..length]);
            }
        };
        entry::address(text)
    }
}

/// RFC 9110, 5.6.2.
fn is_token(text: &[u8]) -> bool {
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    !text.is_empty() && text.iter().all(is_part)
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, header::FORWARDED};

    use super::*;

    fn elements(lines: &[&str]) -> Vec<Result<String, Fault>> {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(FORWARDED, line.parse().expect("a value"));
        }
        let text = |element: &[u8]| String::from_utf8_lossy(element).into_owned();
        let lines = headers.get_all(FORWARDED);
        Elements::of(&lines).map(|element| element.map(text)).take(40).collect()
    }

    fn good(lines: &[&str]) -> Vec<String> {
        elements(lines).into_iter().collect::<Result<_, _>>().expect("elements")
    }

    #[test]
    fn commas_within_quoted_strings_separate_nothing() {
        for (line, split) in [
            (r#"a=b,c=d"#, &["c=d", "a=b"][..]),
            (r#"a="b,c",d="e,""#, &[r#"d="e,""#, r#"a="b,c""#]),
            (r#"a="b\",c\"",d"#, &["d", r#"a="b\",c\"""#]),
            (r#"a="b\\",c"#, &["c", r#"a="b\\""#]),
            (r#"a="b\\\",c",d="""#, &[r#"d="""#, r#"a="b\\\",c""#]),
            (r#"a="\\\\",c="\"""#, &[r#"c="\"""#, r#"a="\\\\""#]),
            (r#"a\,b"#, &["b", r#"a\"#]),
        ] {
            assert_eq!(good(&[line]), split, "{line}");
        }
        assert_eq!(good(&["a", "", "b,"]), ["", "b", "", "a"]);
        assert!(good(&[]).is_empty());
    }

    #[test]
    fn a_string_that_does_not_end_makes_its_line_an_error_and_no_other() {
        for open in [r#"""#, r#"a="b,c"#, r#"a="b","c"#, r#"a="\","#, r#"a="\\\",b"#] {
            let seen = elements(&[open, "a,b"]);
            assert_eq!(seen[..2], [Ok("b".to_owned()), Ok("a".to_owned())], "{open}");
            assert!(seen[2..].iter().all(|it| *it == Err(Fault::OpenQuote)) && seen.len() == 40);
            assert_eq!(elements(&["a", open])[0], Err(Fault::OpenQuote), "{open}");
        }
    }

    #[test]
    fn no_more_than_32_elements_and_4_kib_are_looked_at() {
        let (most, more) = (vec!["a"; 32].join(","), vec!["a"; 70].join(","));
        assert_eq!(good(&[&most]).len(), 32);
        let seen = elements(&[&more]);
        assert!(seen[..32].iter().all(|it| *it == Ok("a".to_owned())));
        assert!(seen[32..].iter().all(|it| *it == Err(Fault::TooMuch)) && seen.len() == 40);
        let long = "x".repeat(4_096);
        assert_eq!(good(&[&long]).len(), 1);
        assert_eq!(elements(&[&format!("{long}x")])[0], Err(Fault::TooMuch));
        let seen = elements(&[&long, "a"]);
        assert_eq!((&seen[0], &seen[1]), (&Ok("a".to_owned()), &Err(Fault::TooMuch)));
    }

    fn read(element: &str) -> Option<String> {
        for_address(element.as_bytes()).map(|address| address.to_string())
    }

    #[test]
    fn an_element_has_one_for() {
        for (element, address) in [
            ("for=203.0.113.9", "203.0.113.9"),
            ("for=203.0.113.9:4711", "203.0.113.9"),
            (r#"For="[2001:db8::1]:443""#, "2001:db8::1"),
            ("for=[2001:db8::1]", "2001:db8::1"),
            (" proto=https ; FOR = 203.0.113.9 ;by=10.0.0.1", "203.0.113.9"),
            (";;for=203.0.113.9;", "203.0.113.9"),
            (r#"for="203\.0.113.9""#, "203.0.113.9"),
            (r#"for="\2\0\3.0.113.9\:80" ; by=_x"#, "203.0.113.9"),
            (r#"host="a,for=6.6.6.6;x=";for=203.0.113.9"#, "203.0.113.9"),
            (r#"for=203.0.113.9;host="a\";for=6.6.6.6;x=\"""#, "203.0.113.9"),
            (r#"for=203.0.113.9;secret="";host="#, "203.0.113.9"),
        ] {
            assert_eq!(read(element).as_deref(), Some(address), "{element}");
        }
    }

    #[test]
    fn an_element_that_is_not_read_as_a_whole_has_none() {
        for element in [
            "",
            ";",
            "for",
            "for=",
            "proto=https",
            "xfor=203.0.113.9",
            "=203.0.113.9",
            "for=203.0.113.9;for=198.51.100.7",
            r#"for=203.0.113.9;For="203.0.113.9""#,
            "for=203.0.113.9;secure",
            "for=203.0.113.9;a b=c",
            "for=203.0.113.9;host=a b",
            r#"for="203.0.113.9"#,
            r#"for=203.0.113.9""#,
            r#"for="203.0.113.9\""#,
            r#"for=203.0.113.9;host="a"b"#,
            r#"for=203.0.113.9;host="a""b""#,
            r#"for=203.0.113.9;host=a"b""#,
            r#"for=203.0.113.9;host=a\b"#,
            r#"for=203.0.113.9;"host"=a"#,
            r#"for=" 203.0.113.9""#,
            r#"for="203.0.113.9\\""#,
            r#"for="\"203.0.113.9\"""#,
        ] {
            assert_eq!(read(element), None, "{element}");
        }
        let long = format!(r#"for="\2{}""#, "0".repeat(1_000));
        assert_eq!(read(&long), None);
    }
}

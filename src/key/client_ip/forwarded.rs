//! Parses the header `Forwarded` (RFC 7239, 4; RFC 9110, 5.6).
//!
//! Elements are read from right to left. Each line is first split from left to right, because
//! quotes can be matched only in that direction.
//!
//! A client may send an opening quote, so that the text of the proxy becomes part of a string. The
//! client could then choose its address. Two checks prevent this:
//!
//! - A string that does not end is an error.
//! - A client can add an escaped quote, so that the string ends. A backslash outside a string is
//!   therefore an error.

use std::{iter::Rev, net::IpAddr};

use http::{
    HeaderValue,
    header::{GetAll, ValueIter},
};

use super::{
    super::entries::{MAX_BYTES, MAX_ENTRIES},
    header::{self, HeaderFault, MAX_LENGTH, OPEN_QUOTE, TOO_LONG},
};

/// Iterator over the elements of all lines, from right to left.
pub(super) struct Elements<'a> {
    lines: Rev<ValueIter<'a, HeaderValue>>,
    line: Option<Line<'a>>,
    elements: usize,
    bytes: usize,
    /// The reason why the iterator stopped early.
    error: Option<HeaderFault>,
}

impl<'a> Elements<'a> {
    pub(super) fn of(lines: &GetAll<'a, HeaderValue>) -> Self {
        let lines = lines.iter().rev();
        Self { lines, line: None, elements: MAX_ENTRIES, bytes: MAX_BYTES, error: None }
    }

    /// Returns the line that contains the next element.
    fn line(&mut self) -> Option<Result<Line<'a>, HeaderFault>> {
        if let Some(line) = self.line.take() {
            return Some(Ok(line));
        }
        let text = self.lines.next()?.as_bytes();
        if text.len() > self.bytes {
            return Some(Err(TOO_LONG));
        }
        self.bytes = self.bytes.saturating_sub(text.len() + 1);
        Some(Line::split(text).ok_or(OPEN_QUOTE))
    }
}

impl<'a> Iterator for Elements<'a> {
    type Item = Result<&'a [u8], HeaderFault>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(error) = self.error {
            return Some(Err(error));
        }
        let line = self.line()?;
        let left = self.elements.checked_sub(1).ok_or(TOO_LONG);
        match line.and_then(|line| left.map(|left| (line, left))) {
            Ok((line, left)) => {
                let (element, rest) = line.last();
                (self.line, self.elements) = (rest, left);
                Some(Ok(element))
            }
            Err(error) => {
                self.error = Some(error);
                Some(Err(error))
            }
        }
    }
}

/// A line, split at commas.
struct Line<'a> {
    text: &'a [u8],
    /// The positions of the last commas outside quoted strings, in a ring buffer.
    commas: [usize; MAX_ENTRIES],
    count: usize,
}

impl<'a> Line<'a> {
    /// Splits a line. Returns `None` if a quoted string does not end.
    fn split(text: &'a [u8]) -> Option<Self> {
        let mut line = Self { text, commas: [0; MAX_ENTRIES], count: 0 };
        let (mut quoted, mut escaped) = (false, false);
        for (at, byte) in text.iter().enumerate() {
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = quoted,
                b'"' => quoted = !quoted,
                b',' if !quoted => {
                    line.commas[line.count % MAX_ENTRIES] = at;
                    line.count += 1;
                }
                _ => {}
            }
        }
        (!quoted).then_some(line)
    }

    /// Returns the last element of the line, and the rest of the line.
    fn last(self) -> (&'a [u8], Option<Self>) {
        let Some(count) = self.count.checked_sub(1) else { return (self.text, None) };
        let at = self.commas[count % MAX_ENTRIES];
        (&self.text[at + 1..], Some(Self { text: &self.text[..at], count, ..self }))
    }
}

/// Returns the address in the `for` parameter of an element, or `None` if the element is invalid.
///
/// Also accepts colons and brackets without quotes, and white space around `;` and `=`.
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
        let (value, behind) = ParameterValue::read(text[equals + 1..].trim_ascii_start())?;
        let is_for = name.eq_ignore_ascii_case(b"for");
        if !is_token(name) || (is_for && found.replace(value).is_some()) {
            return None;
        }
        rest = behind;
    }
    found?.address()
}

/// The value of a parameter.
enum ParameterValue<'a> {
    Bare(&'a [u8]),
    /// The text between the quotes, with escapes.
    Quoted(&'a [u8]),
}

impl<'a> ParameterValue<'a> {
    /// Parses a value. Returns the value and the text after the next `;`.
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
                let (mut plain, mut length, mut escaped) = ([0; MAX_LENGTH], 0, false);
                for byte in text {
                    escaped = *byte == b'\\' && !escaped;
                    if !escaped {
                        *plain.get_mut(length)? = *byte;
                        length += 1;
                    }
                }
                return header::address(&plain[..length]);
            }
        };
        header::address(text)
    }
}

/// Returns `true` if the text is a token (RFC 9110, 5.6.2).
fn is_token(text: &[u8]) -> bool {
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    !text.is_empty() && text.iter().all(is_part)
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, header::FORWARDED};

    use super::*;

    fn elements(lines: &[&str]) -> Vec<Result<String, HeaderFault>> {
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
    fn commas_inside_quoted_strings_do_not_separate() {
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
    fn an_unterminated_string_is_an_error_of_its_line_only() {
        for open in [r#"""#, r#"a="b,c"#, r#"a="b","c"#, r#"a="\","#, r#"a="\\\",b"#] {
            let seen = elements(&[open, "a,b"]);
            assert_eq!(seen[..2], [Ok("b".to_owned()), Ok("a".to_owned())], "{open}");
            assert!(seen[2..].iter().all(|it| *it == Err(OPEN_QUOTE)) && seen.len() == 40);
            assert_eq!(elements(&["a", open])[0], Err(OPEN_QUOTE), "{open}");
        }
    }

    #[test]
    fn at_most_32_elements_and_4_kib_are_read() {
        let (most, more) = (vec!["a"; 32].join(","), vec!["a"; 70].join(","));
        assert_eq!(good(&[&most]).len(), 32);
        let seen = elements(&[&more]);
        assert!(seen[..32].iter().all(|it| *it == Ok("a".to_owned())));
        assert!(seen[32..].iter().all(|it| *it == Err(TOO_LONG)) && seen.len() == 40);
        let long = "x".repeat(4_096);
        assert_eq!(good(&[&long]).len(), 1);
        assert_eq!(elements(&[&format!("{long}x")])[0], Err(TOO_LONG));
        let seen = elements(&[&long, "a"]);
        assert_eq!((&seen[0], &seen[1]), (&Ok("a".to_owned()), &Err(TOO_LONG)));
        // The comma between two lines counts.
        let half = "x".repeat(2_048);
        assert_eq!(elements(&[&half[1..], &half]).last(), Some(&Ok("x".repeat(2_047))));
        assert_eq!(elements(&[&half, &half])[1], Err(TOO_LONG));
    }

    fn read(element: &str) -> Option<String> {
        for_address(element.as_bytes()).map(|address| address.to_string())
    }

    #[test]
    fn the_only_for_of_an_element_is_its_address() {
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
    fn an_invalid_element_has_no_address() {
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

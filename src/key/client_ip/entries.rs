//! Entries of a header that is a list, from right to left.

use std::iter::Rev;

use http::{
    HeaderValue,
    header::{GetAll, ValueIter},
};

use crate::head::Quotes;

/// The maximum number of entries to read per request.
const MAX_ENTRIES: usize = 32;
/// The maximum number of bytes to read per request.
const MAX_BYTES: usize = 4_096;

/// The reason why an address cannot be read, such as "is sent more than once". Messages put the
/// name of the header before the reason.
pub(super) type HeaderFault = &'static str;

/// More than 32 entries or 4 KiB of the header must be read.
pub(super) const TOO_LONG: HeaderFault = "names more than 32 proxies, or is too long";
/// A quoted string does not end in its line.
pub(super) const OPEN_QUOTE: HeaderFault = "has a quoted string that does not end";

/// Iterator over the entries of all lines of a header. After an error, it returns the error again.
pub(super) struct Entries<'a> {
    lines: Rev<ValueIter<'a, HeaderValue>>,
    separator: Separator,
    line: Option<&'a [u8]>,
    /// The commas of the line, for [`Separator::UnquotedComma`].
    commas: Option<Commas>,
    /// The number of entries that may still be read.
    entries_left: usize,
    /// The number of bytes that may still be read.
    bytes_left: usize,
    fault: Option<HeaderFault>,
}

/// The end of an entry.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Separator {
    /// Each line is one entry.
    Line,
    Comma,
    /// A comma outside quoted strings.
    UnquotedComma,
}

/// The positions of the last 32 unquoted commas of a line, in a ring buffer. At most 32 entries are read per
/// request, from the right, so a position that was overwritten is never needed.
#[derive(Default)]
struct Commas {
    at: [usize; MAX_ENTRIES],
    count: usize,
}

impl Commas {
    /// Finds the commas of a line. Returns `None` if a quoted string does not end.
    fn of(line: &[u8]) -> Option<Self> {
        let mut commas = Self::default();
        let mut quotes = Quotes::default();
        for (at, byte) in line.iter().enumerate() {
            if quotes.read(*byte) && *byte == b',' {
                commas.at[commas.count % MAX_ENTRIES] = at;
                commas.count += 1;
            }
        }
        (!quotes.is_open).then_some(commas)
    }

    fn pop(&mut self) -> Option<usize> {
        self.count = self.count.checked_sub(1)?;
        Some(self.at[self.count % MAX_ENTRIES])
    }
}

impl<'a> Entries<'a> {
    pub(super) fn of(lines: &GetAll<'a, HeaderValue>, separator: Separator) -> Self {
        Self {
            lines: lines.iter().rev(),
            separator,
            line: None,
            commas: None,
            entries_left: MAX_ENTRIES,
            bytes_left: MAX_BYTES,
            fault: None,
        }
    }

    /// Returns the part of a line that is left, or the next line.
    fn line(&mut self) -> Result<Option<&'a [u8]>, HeaderFault> {
        if self.line.is_some() {
            return Ok(self.line.take());
        }
        let Some(line) = self.lines.next().map(HeaderValue::as_bytes) else {
            return Ok(None);
        };
        if self.separator == Separator::UnquotedComma {
            if line.len() > self.bytes_left {
                return Err(TOO_LONG);
            }
            // Quotes can be matched only from the start of the line.
            self.commas = Some(Commas::of(line).ok_or(OPEN_QUOTE)?);
        }
        Ok(Some(line))
    }

    /// Returns the last entry that was not read before, or `None` if all entries were read.
    fn last(&mut self) -> Result<Option<&'a [u8]>, HeaderFault> {
        let Some(line) = self.line()? else {
            return Ok(None);
        };
        self.entries_left = self.entries_left.checked_sub(1).ok_or(TOO_LONG)?;
        let unseen = line.len().saturating_sub(self.bytes_left);
        let comma = match self.separator {
            Separator::Line => None,
            Separator::UnquotedComma => self.commas.as_mut().and_then(Commas::pop),
            Separator::Comma => {
                let comma = line[unseen..].iter().rposition(|byte| *byte == b',');
                if comma.is_none() && unseen > 0 {
                    return Err(TOO_LONG);
                }
                comma.map(|at| unseen + at)
            }
        };
        let entry = comma.map_or(line, |at| &line[at + 1..]);
        self.line = comma.map(|at| &line[..at]);
        self.bytes_left = self.bytes_left.saturating_sub(entry.len() + 1);
        Ok(Some(entry.trim_ascii()))
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = Result<&'a [u8], HeaderFault>;

    fn next(&mut self) -> Option<Self::Item> {
        let entry = self.fault.map_or_else(|| self.last(), Err);
        self.fault = entry.err();
        entry.transpose()
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, header::FORWARDED};

    use super::*;

    fn read(lines: &[&str], separator: Separator) -> Vec<Result<String, HeaderFault>> {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(FORWARDED, line.parse().expect("a value"));
        }
        let text = |entry: &[u8]| String::from_utf8_lossy(entry).into_owned();
        let entries = Entries::of(&headers.get_all(FORWARDED), separator);
        entries.map(|entry| entry.map(text)).take(40).collect()
    }

    fn entries(lines: &[&str]) -> Vec<Result<String, HeaderFault>> {
        read(lines, Separator::Comma)
    }

    fn good(lines: &[&str]) -> Vec<String> {
        entries(lines)
            .into_iter()
            .collect::<Result<_, _>>()
            .expect("not too much")
    }

    fn elements(lines: &[&str]) -> Vec<Result<String, HeaderFault>> {
        read(lines, Separator::UnquotedComma)
    }

    fn good_elements(lines: &[&str]) -> Vec<String> {
        elements(lines)
            .into_iter()
            .collect::<Result<_, _>>()
            .expect("elements")
    }

    #[test]
    fn all_lines_form_one_list_read_from_the_right() {
        assert_eq!(good(&["a, b", "c", " d\t,e "]), ["e", "d", "c", "b", "a"]);
        assert_eq!(good(&[",", "", "a,"]), ["", "a", "", "", ""]);
        assert!(good(&[]).is_empty());
    }

    #[test]
    fn at_most_32_entries_are_read() {
        let (most, more) = (vec!["a"; 32].join(","), vec!["a"; 33].join(","));
        assert_eq!(good(&[&most]).len(), 32);
        let seen = entries(&[&more]);
        assert!(seen[..32].iter().all(Result::is_ok));
        assert!(seen[32..].iter().all(Result::is_err) && seen.len() == 40);
    }

    #[test]
    fn at_most_4_kib_are_read() {
        let long = "x".repeat(4_096);
        assert_eq!(good(&[&long]).len(), 1);
        assert_eq!(entries(&[&format!("{long}x")])[0], Err(TOO_LONG));
        let seen = entries(&[&long, "a"]);
        assert_eq!((&seen[0], &seen[1]), (&Ok("a".to_owned()), &Err(TOO_LONG)));
    }

    #[test]
    fn text_left_of_the_read_entries_does_not_matter() {
        let padded = format!("{}, 203.0.113.9", "y,".repeat(50_000));
        assert_eq!(entries(&[&padded])[0].as_deref(), Ok("203.0.113.9"));
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
            assert_eq!(good_elements(&[line]), split, "{line}");
        }
        assert_eq!(good_elements(&["a", "", "b,"]), ["", "b", "", "a"]);
        assert!(good_elements(&[]).is_empty());
    }

    #[test]
    fn an_unterminated_string_is_an_error_of_its_line_only() {
        for open in [
            r#"""#,
            r#"a="b,c"#,
            r#"a="b","c"#,
            r#"a="\","#,
            r#"a="\\\",b"#,
        ] {
            let seen = elements(&[open, "a,b"]);
            assert_eq!(
                seen[..2],
                [Ok("b".to_owned()), Ok("a".to_owned())],
                "{open}"
            );
            assert!(seen[2..].iter().all(|it| *it == Err(OPEN_QUOTE)) && seen.len() == 40);
            assert_eq!(elements(&["a", open])[0], Err(OPEN_QUOTE), "{open}");
        }
    }

    #[test]
    fn at_most_32_elements_and_4_kib_are_read() {
        let (most, more) = (vec!["a"; 32].join(","), vec!["a"; 70].join(","));
        assert_eq!(good_elements(&[&most]).len(), 32);
        let seen = elements(&[&more]);
        assert!(seen[..32].iter().all(|it| *it == Ok("a".to_owned())));
        assert!(seen[32..].iter().all(|it| *it == Err(TOO_LONG)) && seen.len() == 40);
        let long = "x".repeat(4_096);
        assert_eq!(good_elements(&[&long]).len(), 1);
        assert_eq!(elements(&[&format!("{long}x")])[0], Err(TOO_LONG));
        let seen = elements(&[&long, "a"]);
        assert_eq!((&seen[0], &seen[1]), (&Ok("a".to_owned()), &Err(TOO_LONG)));
        // The comma between two lines counts.
        let half = "x".repeat(2_048);
        assert_eq!(
            elements(&[&half[1..], &half]).last(),
            Some(&Ok("x".repeat(2_047)))
        );
        assert_eq!(elements(&[&half, &half])[1], Err(TOO_LONG));
    }
}

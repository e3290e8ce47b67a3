//! Entries of a header that is a list, from one end to the other.

use std::iter::Rev;

use http::{
    HeaderValue,
    header::{GetAll, ValueIter},
};

/// The maximum number of entries to read per request.
pub(crate) const MAX_ENTRIES: usize = 32;
/// The maximum number of bytes to read per request.
pub(crate) const MAX_BYTES: usize = 4_096;

/// Iterator over the comma-separated entries of all lines of a header.
pub(crate) struct HeaderEntries<'a, L> {
    lines: L,
    from_left: bool,
    line: Option<&'a [u8]>,
    entries: usize,
    bytes: usize,
}

/// Error for a header with too many entries or bytes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TooMuch;

impl<'a> HeaderEntries<'a, ValueIter<'a, HeaderValue>> {
    pub(crate) fn from_left(lines: &GetAll<'a, HeaderValue>) -> Self {
        Self::new(lines.iter(), true)
    }
}

impl<'a> HeaderEntries<'a, Rev<ValueIter<'a, HeaderValue>>> {
    pub(crate) fn from_right(lines: &GetAll<'a, HeaderValue>) -> Self {
        Self::new(lines.iter().rev(), false)
    }
}

impl<'a, L: Iterator<Item = &'a HeaderValue>> HeaderEntries<'a, L> {
    fn new(lines: L, from_left: bool) -> Self {
        Self { lines, from_left, line: None, entries: MAX_ENTRIES, bytes: MAX_BYTES }
    }

    /// Splits the next entry off a line. The rest is `None` if the entry is the last.
    fn split(&self, line: &'a [u8]) -> Result<(&'a [u8], Option<&'a [u8]>), TooMuch> {
        let unseen = line.len().saturating_sub(self.bytes);
        let comma = |byte: &u8| *byte == b',';
        let at = if self.from_left {
            line[..line.len() - unseen].iter().position(comma)
        } else {
            line[unseen..].iter().rposition(comma).map(|at| unseen + at)
        };
        match at {
            Some(at) if self.from_left => Ok((&line[..at], Some(&line[at + 1..]))),
            Some(at) => Ok((&line[at + 1..], Some(&line[..at]))),
            None if unseen > 0 => Err(TooMuch),
            None => Ok((line, None)),
        }
    }
}

impl<'a, L: Iterator<Item = &'a HeaderValue>> Iterator for HeaderEntries<'a, L> {
    type Item = Result<&'a [u8], TooMuch>;

    fn next(&mut self) -> Option<Self::Item> {
        let line = match self.line.take() {
            Some(line) => line,
            None => self.lines.next()?.as_bytes(),
        };
        let left = self.entries.checked_sub(1).ok_or(TooMuch);
        match left.and_then(|left| Ok((left, self.split(line)?))) {
            Ok((left, (entry, rest))) => {
                (self.line, self.entries) = (rest, left);
                self.bytes = self.bytes.saturating_sub(entry.len() + 1);
                Some(Ok(entry.trim_ascii()))
            }
            Err(error) => {
                // Each further call returns the error again.
                self.line = Some(line);
                Some(Err(error))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, header::FORWARDED};

    use super::*;

    fn entries(lines: &[&str]) -> Vec<Result<String, TooMuch>> {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(FORWARDED, line.parse().expect("a value"));
        }
        let text = |entry: &[u8]| String::from_utf8_lossy(entry).into_owned();
        HeaderEntries::from_right(&headers.get_all(FORWARDED))
            .map(|entry| entry.map(text))
            .take(40)
            .collect()
    }

    fn good(lines: &[&str]) -> Vec<String> {
        entries(lines).into_iter().collect::<Result<_, _>>().expect("not too much")
    }

    #[test]
    fn all_lines_form_one_list_read_from_the_right() {
        assert_eq!(good(&["a, b", "c", " d\t,e "]), ["e", "d", "c", "b", "a"]);
        assert_eq!(good(&[",", "", "a,"]), ["", "a", "", "", ""]);
        assert!(good(&[]).is_empty());
    }

    #[test]
    fn entries_are_also_read_from_the_left() {
        let mut headers = HeaderMap::new();
        for line in ["a, b", "", "c,", &"x,".repeat(40)] {
            headers.append(FORWARDED, line.parse().expect("a value"));
        }
        let entries = HeaderEntries::from_left(&headers.get_all(FORWARDED));
        let entries: Vec<_> = entries.take(40).collect();
        assert_eq!(entries[..5], [&b"a"[..], b"b", b"", b"c", b""].map(Ok));
        assert!(
            entries[..32].iter().all(Result::is_ok) && entries[32..].iter().all(Result::is_err)
        );
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
        assert_eq!(entries(&[&format!("{long}x")])[0], Err(TooMuch));
        let seen = entries(&[&long, "a"]);
        assert_eq!((&seen[0], &seen[1]), (&Ok("a".to_owned()), &Err(TooMuch)));
    }

    #[test]
    fn text_left_of_the_read_entries_does_not_matter() {
        let padded = format!("{}, 203.0.113.9", "y,".repeat(50_000));
        assert_eq!(entries(&[&padded])[0].as_deref(), Ok("203.0.113.9"));
    }
}

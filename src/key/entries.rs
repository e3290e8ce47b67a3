//! Entries of a list header, from right to left.

use std::iter::Rev;

use http::{
    HeaderValue,
    header::{GetAll, ValueIter},
};

/// The maximum number of entries that are read per request.
pub(crate) const MAX_ENTRIES: usize = 32;
/// The maximum number of bytes that are read per request.
pub(crate) const MAX_BYTES: usize = 4_096;

/// Iterator over the comma-separated entries of a header, from right to left.
///
/// All lines of the header form one list. Only the entries that are read count towards the bounds.
pub(crate) struct HeaderEntries<'a> {
    lines: Rev<ValueIter<'a, HeaderValue>>,
    line: Option<&'a [u8]>,
    entries: usize,
    bytes: usize,
}

/// Error for a header that exceeds the bounds.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TooMuch;

impl<'a> HeaderEntries<'a> {
    pub(crate) fn of(lines: &GetAll<'a, HeaderValue>) -> Self {
        let lines = lines.iter().rev();
        Self { lines, line: None, entries: MAX_ENTRIES, bytes: MAX_BYTES }
    }
}

impl<'a> Iterator for HeaderEntries<'a> {
    type Item = Result<&'a [u8], TooMuch>;

    fn next(&mut self) -> Option<Self::Item> {
        let line = match self.line.take() {
            Some(line) => line,
            None => self.lines.next()?.as_bytes(),
        };
        // Each further call returns the error again.
        self.line = Some(line);
        let Some(entries) = self.entries.checked_sub(1) else { return Some(Err(TooMuch)) };
        let unseen = line.len().saturating_sub(self.bytes);
        let comma = line[unseen..].iter().rposition(|byte| *byte == b',');
        let (rest, entry) = match comma {
            Some(at) => (Some(&line[..unseen + at]), &line[unseen + at + 1..]),
            None if unseen > 0 => return Some(Err(TooMuch)),
            None => (None, line),
        };
        (self.line, self.entries) = (rest, entries);
        self.bytes = self.bytes.saturating_sub(entry.len() + 1);
        Some(Ok(entry.trim_ascii()))
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
        HeaderEntries::of(&headers.get_all(FORWARDED))
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

//! Bytes, read as the values that a target needs.

/// The remaining bytes. Past the end, reads return zeros and empty lines.
pub(crate) struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(crate) fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    /// Returns one of these values.
    pub(crate) fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[usize::from(self.byte()) % choices.len()]
    }

    /// Reads a number of any magnitude. Its first byte is the number of bytes that follow.
    pub(crate) fn number(&mut self) -> u64 {
        let bytes = self.byte() % 9;
        (0..bytes).fold(0, |number, _| number << 8 | u64::from(self.byte()))
    }

    /// Reads at most three bytes. The first byte is their number.
    pub(crate) fn bytes(&mut self) -> Vec<u8> {
        (0..self.byte() % 4).map(|_| self.byte()).collect()
    }

    /// Returns the bytes before the next line feed, or the last.
    pub(crate) fn line(&mut self) -> &'a [u8] {
        let end = self.0.iter().position(|byte| *byte == b'\n').unwrap_or(self.0.len());
        let (line, rest) = self.0.split_at(end);
        self.0 = rest.get(1..).unwrap_or_default();
        line
    }

    /// Returns a line, up to its first byte that is not text.
    pub(crate) fn text(&mut self) -> &'a str {
        let line = self.line();
        let text = |error: std::str::Utf8Error| str::from_utf8(&line[..error.valid_up_to()]);
        str::from_utf8(line).or_else(text).unwrap_or_default()
    }

    pub(crate) fn rest(&self) -> &'a [u8] {
        self.0
    }
}

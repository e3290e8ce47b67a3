//! The commands that clients send.

use std::collections::VecDeque;

/// A command and its arguments.
pub(crate) type Words = Vec<Vec<u8>>;

/// The name of a command, in capitals.
pub(crate) fn name(words: &[Vec<u8>]) -> String {
    words.first().map(|word| String::from_utf8_lossy(word).to_uppercase()).unwrap_or_default()
}

/// Takes a whole command from the front: an array of strings with lengths.
pub(super) fn next_command(bytes: &mut VecDeque<u8>) -> Option<Words> {
    let (words, rest) = command(bytes.make_contiguous())?;
    let used = bytes.len() - rest;
    bytes.drain(..used);
    Some(words)
}

/// Returns the first command, and the number of bytes that follow it.
fn command(bytes: &[u8]) -> Option<(Words, usize)> {
    let (count, mut rest) = number(bytes, b'*')?;
    let mut words = Vec::new();
    for _ in 0..count {
        let (length, after) = number(rest, b'$')?;
        words.push(after.get(..length)?.to_vec());
        rest = after.get(length + 2..)?;
    }
    Some((words, rest.len()))
}

/// Returns the number of a line that starts with `mark`, and the bytes after the line.
fn number(bytes: &[u8], mark: u8) -> Option<(usize, &[u8])> {
    let end = bytes.windows(2).position(|pair| pair == b"\r\n")?;
    assert_eq!(bytes[0], mark, "a client sent no command");
    let digits = std::str::from_utf8(&bytes[1..end]).expect("digits");
    Some((digits.parse().expect("a number"), &bytes[end + 2..]))
}

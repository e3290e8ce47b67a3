//! Replies of a node, and the requests of its clients, in RESP2 and RESP3.

/// A reply, before it is encoded for a client's protocol.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    Status(String),
    Error(String),
    Integer(i64),
    Bulk(Vec<u8>),
    Nil,
    Array(Vec<Reply>),
    Map(Vec<(Reply, Reply)>),
}

impl Reply {
    pub fn ok() -> Self {
        Self::Status("OK".into())
    }

    pub fn bulk(text: impl Into<Vec<u8>>) -> Self {
        Self::Bulk(text.into())
    }

    pub fn error(text: impl Into<String>) -> Self {
        Self::Error(text.into())
    }

    /// Appends the encoded reply.
    pub fn encode(&self, resp3: bool, out: &mut Vec<u8>) {
        match self {
            Self::Status(text) => line(out, '+', text),
            Self::Error(text) => line(out, '-', text),
            Self::Integer(number) => line(out, ':', &number.to_string()),
            Self::Bulk(bytes) => {
                line(out, '$', &bytes.len().to_string());
                out.extend_from_slice(bytes);
                out.extend_from_slice(b"\r\n");
            }
            Self::Nil if resp3 => out.extend_from_slice(b"_\r\n"),
            Self::Nil => out.extend_from_slice(b"$-1\r\n"),
            Self::Array(items) => {
                line(out, '*', &items.len().to_string());
                items.iter().for_each(|item| item.encode(resp3, out));
            }
            Self::Map(pairs) => {
                let (kind, count) = if resp3 { ('%', pairs.len()) } else { ('*', 2 * pairs.len()) };
                line(out, kind, &count.to_string());
                for (key, value) in pairs {
                    key.encode(resp3, out);
                    value.encode(resp3, out);
                }
            }
        }
    }
}

fn line(out: &mut Vec<u8>, kind: char, text: &str) {
    out.extend_from_slice(format!("{kind}{text}\r\n").as_bytes());
}

/// The arguments of a command, the first of which is its name.
pub type Request = Vec<Vec<u8>>;

/// Removes one complete request from the front of `buffer`, if there is one.
///
/// # Errors
///
/// Fails if the bytes are not an array of bulk strings, the only form that clients send.
pub fn parse(buffer: &mut Vec<u8>) -> Result<Option<Request>, String> {
    let mut at = 0;
    let Some(count) = header(buffer, b'*', &mut at)? else { return Ok(None) };
    let mut request = Vec::with_capacity(count);
    for _ in 0..count {
        let Some(length) = header(buffer, b'$', &mut at)? else { return Ok(None) };
        let Some(bytes) = buffer.get(at..at + length + 2) else { return Ok(None) };
        request.push(bytes[..length].to_vec());
        at += length + 2;
    }
    buffer.drain(..at);
    Ok(Some(request))
}

fn header(buffer: &[u8], kind: u8, at: &mut usize) -> Result<Option<usize>, String> {
    let rest = &buffer[*at..];
    let Some(end) = rest.windows(2).position(|pair| pair == b"\r\n") else { return Ok(None) };
    let number = rest[..end].strip_prefix(&[kind]).and_then(|text| str::from_utf8(text).ok());
    let number = number.and_then(|text| text.parse().ok());
    *at += end + 2;
    number.map(Some).ok_or_else(|| format!("ERR Protocol error: expected '{}'", kind as char))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_parsed_once_they_are_complete() {
        let whole = b"*2\r\n$3\r\nGET\r\n$4\r\na\r\nb\r\n*1\r\n$4\r\nPING\r\n";
        for cut in 0..whole.len() {
            let mut buffer = whole[..cut].to_vec();
            let first = parse(&mut buffer).expect("a request");
            assert_eq!(first.is_some(), cut >= 23, "{cut}");
            if let Some(first) = first {
                assert_eq!(first, [&b"GET"[..], b"a\r\nb"]);
                assert_eq!(buffer, &whole[23..cut]);
            }
        }
        assert!(parse(&mut b"PING\r\n".to_vec()).is_err());
    }

    #[test]
    fn a_missing_value_differs_between_the_protocols() {
        let (mut two, mut three) = (Vec::new(), Vec::new());
        let reply = Reply::Map(vec![(Reply::bulk("a"), Reply::Nil)]);
        reply.encode(false, &mut two);
        reply.encode(true, &mut three);
        assert_eq!(two, b"*2\r\n$1\r\na\r\n$-1\r\n");
        assert_eq!(three, b"%1\r\n$1\r\na\r\n_\r\n");
    }
}

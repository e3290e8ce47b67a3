//! How long a request may still take.

use std::time::Duration;

use http::request::Parts;

/// How much time a request has left, from when it met the layer: put into its extensions by
/// whatever knows. A request does not wait for its place longer than that; `grpc-timeout` counts
/// the same.
///
/// ```
/// use std::time::Duration;
/// use tower_sluice::Deadline;
///
/// let mut request = http::Request::new(());
/// request.extensions_mut().insert(Deadline(Duration::from_millis(250)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(pub Duration);

/// `max_wait`, or what the request has left if that is less.
pub(crate) fn within(parts: &Parts, max_wait: Duration) -> Duration {
    let own = parts.extensions.get::<Deadline>().map(|deadline| deadline.0);
    let grpc = parts.headers.get("grpc-timeout").and_then(|value| grpc(value.as_bytes()));
    [own, grpc].into_iter().flatten().fold(max_wait, Duration::min)
}

/// One to eight digits and a unit: `100m` is 100 ms (gRPC over HTTP/2, "Timeout").
fn grpc(value: &[u8]) -> Option<Duration> {
    let (unit, digits) = value.split_last()?;
    if digits.is_empty() || digits.len() > 8 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let n: u64 = std::str::from_utf8(digits).ok()?.parse().ok()?;
    match unit {
        b'H' => Some(Duration::from_secs(n * 3_600)),
        b'M' => Some(Duration::from_secs(n * 60)),
        b'S' => Some(Duration::from_secs(n)),
        b'm' => Some(Duration::from_millis(n)),
        b'u' => Some(Duration::from_micros(n)),
        b'n' => Some(Duration::from_nanos(n)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grpc_timeouts_are_read_and_garbage_is_not() {
        assert_eq!(grpc(b"100m"), Some(Duration::from_millis(100)));
        assert_eq!(grpc(b"99999999H"), Some(Duration::from_secs(99_999_999 * 3_600)));
        for garbage in ["", "m", "1", "-1S", "1s", "123456789S", "1.5S", "\u{e9}S"] {
            assert_eq!(grpc(garbage.as_bytes()), None, "{garbage}");
        }
    }
}

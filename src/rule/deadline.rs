//! Time budgets of requests.

use std::time::Duration;

use crate::key::RequestHead;

/// Time budget of a request, which an outer middleware sets as a request extension.
///
/// The budget starts when the request reaches the layer, and includes the store call. A request that
/// would leave the queue after its budget is denied. The header `grpc-timeout` also sets a budget.
///
/// ```
/// use std::time::Duration;
/// use tower_sluice::rule::RequestDeadline;
///
/// let mut request = http::Request::new(());
/// request.extensions_mut().insert(RequestDeadline(Duration::from_millis(250)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestDeadline(pub Duration);

/// Returns the smallest of `max_wait`, the [`RequestDeadline`] and `grpc-timeout`.
pub(crate) fn deadline(head: &RequestHead<'_>, max_wait: Duration) -> Duration {
    let own = head.extensions.get::<RequestDeadline>().map(|deadline| deadline.0);
    let grpc = head.headers.get("grpc-timeout").and_then(|value| grpc(value.as_bytes()));
    [own, grpc].into_iter().flatten().fold(max_wait, Duration::min)
}

/// Parses the value of `grpc-timeout`, such as `100m` for 100 ms (gRPC over HTTP/2, "Timeout").
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
    fn only_valid_grpc_timeouts_are_parsed() {
        assert_eq!(grpc(b"100m"), Some(Duration::from_millis(100)));
        assert_eq!(grpc(b"99999999H"), Some(Duration::from_secs(99_999_999 * 3_600)));
        for garbage in ["", "m", "1", "-1S", "1s", "123456789S", "1.5S", "\u{e9}S"] {
            assert_eq!(grpc(garbage.as_bytes()), None, "{garbage}");
        }
    }
}

//! Numbers as header values. Small numbers need no allocation.

use bytes::Bytes;
use http::HeaderValue;

/// Numbers below this limit are precomputed.
const KNOWN: usize = 4_096;
const LONGEST: usize = 4;

/// The digits of each precomputed number, right-aligned.
static DIGITS: [[u8; LONGEST]; KNOWN] = {
    let mut all = [[b'0'; LONGEST]; KNOWN];
    let mut n = 0;
    while n < KNOWN {
        let (mut rest, mut at) = (n, LONGEST);
        while rest > 0 {
            at -= 1;
            all[n][at] = b"0123456789"[rest % 10];
            rest /= 10;
        }
        n += 1;
    }
    all
};

/// Returns a number as a header value.
pub(super) fn number(n: u64) -> HeaderValue {
    let value = match usize::try_from(n).ok().and_then(|n| DIGITS.get(n)) {
        Some(digits) => {
            let digits = Bytes::from_static(&digits[LONGEST - length(n)..]);
            HeaderValue::from_maybe_shared(digits)
        }
        None => HeaderValue::from_str(itoa::Buffer::new().format(n)),
    };
    value.unwrap_or_else(|_| n.into())
}

/// Returns the number of digits of a precomputed number.
fn length(n: u64) -> usize {
    1 + usize::from(n > 9) + usize::from(n > 99) + usize::from(n > 999)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_as_themselves() {
        for n in (0..5_000).chain([u64::from(u32::MAX), u64::MAX]) {
            assert_eq!(number(n), n.to_string());
        }
    }
}

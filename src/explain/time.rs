//! Text for instants and durations, to the nanosecond.

use std::{fmt, time::Duration};

const SECOND: u64 = 1_000_000_000;
const LONG: [(&str, u64); 3] =
    [("day", 86_400 * SECOND), ("h", 3_600 * SECOND), ("min", 60 * SECOND)];
const SHORT: [(&str, u64); 4] = [("s", SECOND), ("ms", 1_000_000), ("us", 1_000), ("ns", 1)];

/// Displays a time, such as `312ms` or `4h 28min 43.5s`.
pub(super) struct Exact(pub(super) Duration);

impl fmt::Display for Exact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = u64::try_from(self.0.as_nanos()).unwrap_or(u64::MAX);
        let mut gap = "";
        for (unit, nanos) in LONG {
            if rest >= nanos {
                write!(f, "{gap}{}{unit}", rest / nanos)?;
                (rest, gap) = (rest % nanos, " ");
            }
        }
        if rest == 0 {
            return if gap.is_empty() { f.write_str("0s") } else { Ok(()) };
        }
        // After a longer unit, the rest is in seconds.
        let of = |(_, nanos): &(&str, u64)| rest >= *nanos || !gap.is_empty();
        let (unit, nanos) = SHORT.into_iter().find(of).unwrap_or(("ns", 1));
        write!(f, "{gap}{}", rest / nanos)?;
        if rest % nanos > 0 {
            let width = nanos.ilog10() as usize;
            let digits = format!("{:0width$}", rest % nanos);
            write!(f, ".{}", digits.trim_end_matches('0'))?;
        }
        f.write_str(unit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_exact_to_the_nanosecond() {
        for (nanos, text) in [
            (0, "0s"),
            (1, "1ns"),
            (999, "999ns"),
            (1_001, "1.001us"),
            (312_000_000, "312ms"),
            (333_333_334, "333.333334ms"),
            (SECOND, "1s"),
            (8_640_000_000, "8.64s"),
            (59 * SECOND + 1, "59.000000001s"),
            (60 * SECOND, "1min"),
            (60 * SECOND + 1, "1min 0.000000001s"),
            (16_123_500_000_000, "4h 28min 43.5s"),
            (90_000 * SECOND, "1day 1h"),
        ] {
            assert_eq!(Exact(Duration::from_nanos(nanos)).to_string(), text);
        }
    }
}

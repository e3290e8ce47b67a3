//! Log macros, which do nothing without the feature `tracing`.

#[cfg(feature = "tracing")]
pub(crate) use tracing::{error, info, warn};

/// Checks the arguments of a log line without logging it.
#[cfg(not(feature = "tracing"))]
macro_rules! skip {
    (target: $target:literal, lint = $lint:expr, $($text:tt)+) => {{
        let _ = (&$lint, format_args!($($text)+));
    }};
    (target: $target:literal, $lint:ident, $($text:tt)+) => {{
        let _ = ($lint, format_args!($($text)+));
    }};
    ($($text:tt)+) => {{
        let _ = format_args!($($text)+);
    }};
}

#[cfg(not(feature = "tracing"))]
pub(crate) use skip as error;
#[cfg(not(feature = "tracing"))]
pub(crate) use skip as info;
#[cfg(not(feature = "tracing"))]
pub(crate) use skip as warn;

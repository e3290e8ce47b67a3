//! Labels of the components that make decisions.

use std::fmt;

/// Component that made a [`Decision`](super::Decision).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Source {
    /// The embedded store.
    Local,
    /// A governor limiter.
    Governor,
    /// Redis or Valkey.
    Redis,
    /// The policy [`FailOpen`](crate::store::FailOpen), which allows the request if the store
    /// fails.
    FailedOpen,
    /// The policy [`FailClosed`](crate::store::FailClosed), which denies the request if the store
    /// fails, unless it is report-only or has the cost 0, or a [`FailOpen`](crate::store::FailOpen) whose store does not support the request.
    FailedClosed,
    /// The local store of a [`Fallback`](crate::store::Fallback), which decides if the other store
    /// fails.
    Fallback,
    /// A [`DenyCache`](crate::store::DenyCache) that repeated an earlier denial, or a `RedisStore`
    /// that denied a request without a call, because others of this process wait for its slots.
    DenyCache,
    /// A [`Leased`](crate::store::Leased) store, which used units that were charged in advance.
    Leased,
    /// The embedded store, one of whose tables is full.
    ///
    /// It could not [block](crate::StoreExt::block) a key, or denied a request that needs
    /// [slots](crate::Quota::concurrent), or whose account other keys share.
    Overflow,
    /// A `RedisStore` whose answer was not read within ten times the time of its
    /// [`Timeout`](crate::store::Timeout), or within 20 s, although the server is not silent: this process or
    /// the server is too busy. The denial is made under every policy, and never counts as a failure. Report-only requests
    /// and those of cost 0 are allowed.
    Busy,
    /// An [adaptive](crate::rule::Adaptive) limit, which denied the request.
    Overload,
    /// A store that does not support the [operation](crate::store::Op), which it denies.
    Unsupported,
    /// A layer that called no store. The layer is off or report-only, no rule charges the request, or
    /// the request is on an allow list or an exempt preflight.
    Bypass,
    /// A store of another crate, with its name.
    Other(&'static str),
}

impl Source {
    /// Returns the source as one word, such as `redis`, `failed_open` or `deny_cache`.
    ///
    /// For [`Source::Other`], this is the name of the store.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Governor => "governor",
            Self::Redis => "redis",
            Self::FailedOpen => "failed_open",
            Self::FailedClosed => "failed_closed",
            Self::Fallback => "fallback",
            Self::DenyCache => "deny_cache",
            Self::Leased => "leased",
            Self::Overflow => "overflow",
            Self::Busy => "busy",
            Self::Overload => "overload",
            Self::Bypass => "bypass",
            Self::Unsupported => "unsupported",
            Self::Other(name) => name,
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

//! Errors of Redis stores.

use std::{error::Error, fmt};

use redis::ErrorKind as Raw;

use crate::{observe::store_failed, store::Unsupported};

/// Error of a [`RedisStore`](super::RedisStore).
///
/// A denial is not an error. The text contains neither passwords nor keys.
///
/// See [troubleshooting](crate::guide::troubleshooting#errors).
#[derive(Clone, Debug)]
pub struct RedisError {
    kind: RedisErrorKind,
    text: String,
}

/// Kind of a [`RedisError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RedisErrorKind {
    /// No connection is open: the server cannot be reached, or the connection was reset.
    Disconnected,
    /// The server did not reply in time. The charge may still be made.
    Timeout,
    /// The server is out of memory (`OOM`). Nothing was written.
    Memory,
    /// The server is a replica or has too few replicas (`READONLY`, `MASTERDOWN`, `NOREPLICAS`).
    Replica,
    /// The server is starting or busy with another script (`LOADING`, `BUSY`).
    Busy,
    /// The user lacks a permission, or the login failed (`NOAUTH`, `WRONGPASS`, `NOPERM`).
    Denied,
    /// The cluster has no node for the key at the moment (`CLUSTERDOWN`, `TRYAGAIN`, `MOVED`,
    /// `ASK`).
    Cluster,
    /// The reply is invalid: truncated, modified, or from another program.
    Reply,
    /// The store does not support the quota.
    Quota,
    /// The address or a setting is wrong.
    Config,
    /// Any other error of the server.
    Other,
}

impl RedisErrorKind {
    /// Returns the kind as one word, such as `timeout` or `memory`, for labels.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Disconnected => "disconnected",
            Self::Timeout => "timeout",
            Self::Memory => "memory",
            Self::Replica => "replica",
            Self::Busy => "busy",
            Self::Denied => "denied",
            Self::Cluster => "cluster",
            Self::Reply => "reply",
            Self::Quota => "quota",
            Self::Config => "config",
            Self::Other => "other",
        }
    }

    /// Returns `true` if the server cannot be reached or is not ready.
    pub(super) fn is_absence(self) -> bool {
        matches!(
            self,
            Self::Disconnected | Self::Timeout | Self::Busy | Self::Cluster
        )
    }

    /// Returns `true` for an error of a batch whose requests may be allowed one by one. The server has
    /// rejected the whole batch and charged nothing. If it has no memory, denials still need none. While
    /// a hash slot moves, an account may be on either server.
    pub(super) fn rejects_batches(self) -> bool {
        matches!(self, Self::Memory | Self::Cluster)
    }
}

impl RedisError {
    pub(super) fn new(kind: RedisErrorKind, text: impl Into<String>) -> Self {
        Self {
            kind,
            text: text.into(),
        }
    }

    pub(super) fn invalid_reply(problem: &str) -> Self {
        Self::new(
            RedisErrorKind::Reply,
            format!("the reply is invalid: {problem}"),
        )
    }

    /// Appends a suggested fix to the error text.
    pub(super) fn with_fix(self, fix: &str) -> Self {
        Self {
            text: format!("{}; {fix}", self.text),
            ..self
        }
    }

    /// Counts the error in the metrics.
    pub(super) fn count(&self) {
        store_failed(self.kind.as_str());
    }

    /// Returns the kind of the error.
    #[must_use]
    pub fn kind(&self) -> RedisErrorKind {
        self.kind
    }
}

impl fmt::Display for RedisError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "redis: {}", self.text)
    }
}

impl Error for RedisError {}

impl From<Unsupported> for RedisError {
    fn from(unsupported: Unsupported) -> Self {
        Self::new(RedisErrorKind::Quota, unsupported.to_string())
    }
}

impl From<redis::RedisError> for RedisError {
    fn from(error: redis::RedisError) -> Self {
        Self::new(kind(&error), error.to_string())
    }
}

fn kind(error: &redis::RedisError) -> RedisErrorKind {
    match (error.kind(), code(error)) {
        (Raw::Io, _) if error.is_timeout() => RedisErrorKind::Timeout,
        (Raw::Io | Raw::MasterNameNotFoundBySentinel, _) => RedisErrorKind::Disconnected,
        (Raw::Parse | Raw::UnexpectedReturnType, _) => RedisErrorKind::Reply,
        (Raw::AuthenticationFailed, _) => RedisErrorKind::Denied,
        (Raw::InvalidClientConfig | Raw::EmptySentinelList, _) => RedisErrorKind::Config,
        (_, Some("OOM")) => RedisErrorKind::Memory,
        (_, Some("LOADING" | "BUSY")) => RedisErrorKind::Busy,
        (_, Some("READONLY" | "MASTERDOWN" | "NOREPLICAS")) => RedisErrorKind::Replica,
        (_, Some("NOAUTH" | "WRONGPASS" | "NOPERM")) => RedisErrorKind::Denied,
        (_, Some("ERR")) if error.detail().is_some_and(is_denied) => RedisErrorKind::Denied,
        _ if error.is_cluster_error() => RedisErrorKind::Cluster,
        _ => RedisErrorKind::Other,
    }
}

/// Returns the error code of the server.
///
/// For a command in a script, Redis 6 reports the code at the end of another error:
/// `ERR Error running script (…): @user_script: 12: -OOM command not allowed`.
pub(super) fn code(error: &redis::RedisError) -> Option<&str> {
    match error.code() {
        Some("ERR") => error.detail().and_then(inner_code).or(Some("ERR")),
        code => code,
    }
}

fn inner_code(detail: &str) -> Option<&str> {
    detail.rsplit_once(": -")?.1.split(' ').next()
}

/// Returns `true` if the user has no permission for a command.
///
/// Redis up to 7.0 and Valkey report this only as text.
fn is_denied(detail: &str) -> bool {
    [
        "The user executing the script can't",
        "ACL failure in script",
        "no permissions",
    ]
    .iter()
    .any(|words| detail.contains(words))
}

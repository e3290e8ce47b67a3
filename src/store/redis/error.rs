//! Why Redis could not decide.

use std::{error::Error, fmt};

use redis::ErrorKind as Raw;

use crate::store::Unsupported;

/// Why a [`RedisStore`](super::RedisStore) could not decide. None of these is a refusal.
///
/// The text never has a password or a key in it.
#[derive(Clone, Debug)]
pub struct RedisError {
    kind: RedisErrorKind,
    text: String,
}

/// What went wrong, in the words of an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RedisErrorKind {
    /// There is no connection: refused, reset, or not back yet.
    Disconnected,
    /// No answer in time. The charge may still be made.
    Timeout,
    /// The server is out of memory (`OOM`), and nothing was written.
    Memory,
    /// The server is a replica, or has too few of them (`READONLY`, `MASTERDOWN`, `NOREPLICAS`).
    Replica,
    /// The server is starting or busy with another script (`LOADING`, `BUSY`).
    Busy,
    /// The user may not do that (`NOAUTH`, `WRONGPASS`, `NOPERM`).
    Denied,
    /// The cluster has no node for the key now (`CLUSTERDOWN`, `TRYAGAIN`, `MOVED`, `ASK`).
    Cluster,
    /// The answer is none of ours: it was cut, changed, or comes from something else.
    Reply,
    /// The store cannot count such a quota.
    Quota,
    /// The address or a setting is wrong.
    Config,
    /// Anything else the server said.
    Other,
}

impl RedisErrorKind {
    /// One word, for labels.
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
}

impl RedisError {
    pub(super) fn new(kind: RedisErrorKind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into() }
    }

    pub(super) fn reply(what: &str) -> Self {
        Self::new(RedisErrorKind::Reply, format!("the reply is none of ours: {what}"))
    }

    /// With what to do about it.
    pub(super) fn advice(self, what: &str) -> Self {
        Self { text: format!("{}; {what}", self.text), ..self }
    }

    /// What went wrong.
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
    fn from(what: Unsupported) -> Self {
        Self::new(RedisErrorKind::Quota, what.to_string())
    }
}

impl From<redis::RedisError> for RedisError {
    fn from(error: redis::RedisError) -> Self {
        Self::new(kind(&error), error.to_string())
    }
}

fn kind(error: &redis::RedisError) -> RedisErrorKind {
    match (error.kind(), code(error)) {
        // as a cluster's connection says it of all nodes
        (Raw::Io, _)
            if error.detail().is_some_and(|text| text.contains("AuthenticationFailed")) =>
        {
            RedisErrorKind::Denied
        }
        (Raw::Io, _) if error.is_timeout() => RedisErrorKind::Timeout,
        (Raw::Io | Raw::ClusterConnectionNotFound, _) => RedisErrorKind::Disconnected,
        (Raw::MasterNameNotFoundBySentinel, _) => RedisErrorKind::Disconnected,
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

/// The word that says what went wrong. Of a command in a script Redis 6 tells it at the end of an
/// error of its own: `ERR Error running script (…): @user_script: 12: -OOM command not allowed`.
pub(super) fn code(error: &redis::RedisError) -> Option<&str> {
    let inner = || error.detail()?.rsplit_once(": -")?.1.split(' ').next();
    match error.code() {
        Some("ERR") => inner().or(Some("ERR")),
        code => code,
    }
}

/// Whether a script, or the choice of a database, ran into a command that its user may not call:
/// Redis up to 7.0, and Valkey, say so in words only.
fn is_denied(detail: &str) -> bool {
    ["The user executing the script can't", "ACL failure in script", "no permissions"]
        .iter()
        .any(|words| detail.contains(words))
}

//! Requests, scripts and replies: the format that the store and the server share.

pub(crate) mod addresses;
pub(crate) mod plan;
pub(crate) mod reply;
pub(crate) mod request;
pub(crate) mod script;

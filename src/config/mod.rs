//! The serde form of settings.

pub(crate) mod de;

//! Deserialization of settings.

pub(crate) mod de;

//! Nobody would be told.

use std::net::IpAddr;

use http::HeaderMap;

#[derive(Clone, Debug)]
pub(super) struct Watch;

impl Watch {
    pub(super) fn new() -> Self {
        Self
    }

    #[inline]
    pub(super) fn see(&self, _: IpAddr, _: &HeaderMap) {}
}

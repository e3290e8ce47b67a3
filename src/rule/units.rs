//! Units of quota, fixed or read from the request.

use std::{fmt, sync::Arc};

use http::request::Parts;

/// A number of units that is fixed or read from the head of a request.
///
/// A cost of 0 lets the request pass, even for a blocked key: end a cost that clients influence with
/// `.max(1)`.
///
/// ```
/// use tower_sluice::Units;
///
/// Units::from(5);
/// Units::from_fn(|parts| if parts.uri.path() == "/export" { 50 } else { 1 });
/// ```
#[derive(Clone)]
pub struct Units(Kind);

#[derive(Clone)]
enum Kind {
    Fixed(u32),
    Read(Arc<dyn Fn(&Parts) -> u32 + Send + Sync>),
}

impl Units {
    /// The number that `read` finds in the head of the request.
    pub fn from_fn(read: impl Fn(&Parts) -> u32 + Send + Sync + 'static) -> Self {
        Self(Kind::Read(Arc::new(read)))
    }

    #[inline]
    pub(super) fn of(&self, parts: &Parts) -> u32 {
        match &self.0 {
            Kind::Fixed(units) => *units,
            Kind::Read(read) => read(parts),
        }
    }

    pub(super) fn fixed(&self) -> Option<u32> {
        match &self.0 {
            Kind::Fixed(units) => Some(*units),
            Kind::Read(_) => None,
        }
    }
}

impl From<u32> for Units {
    fn from(units: u32) -> Self {
        Self(Kind::Fixed(units))
    }
}

impl fmt::Debug for Units {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Fixed(units) => write!(f, "Units({units})"),
            Kind::Read(_) => f.write_str("Units(fn)"),
        }
    }
}

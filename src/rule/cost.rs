//! A number of units, fixed or read from the request.

use std::{fmt, sync::Arc};

use crate::key::RequestHead;

/// Number of units, either fixed or read from the request.
///
/// A request of cost 0 is always allowed, even for a blocked key. If clients can influence the
/// cost, make the cost at least 1, for example with `.max(1)`.
///
/// ```
/// use tower_sluice::Cost;
///
/// Cost::from(5);
/// Cost::from_fn(|head| if head.uri.path() == "/export" { 50 } else { 1 });
/// ```
#[derive(Clone)]
pub struct Cost(Amount);

#[derive(Clone)]
enum Amount {
    Fixed(u32),
    Read(Arc<dyn Fn(&RequestHead<'_>) -> u32 + Send + Sync>),
}

impl Cost {
    /// Creates a number of units that `read` computes from the head of each request.
    pub fn from_fn(read: impl Fn(&RequestHead<'_>) -> u32 + Send + Sync + 'static) -> Self {
        Self(Amount::Read(Arc::new(read)))
    }

    #[inline]
    pub(super) fn of(&self, head: &RequestHead<'_>) -> u32 {
        match &self.0 {
            Amount::Fixed(units) => *units,
            Amount::Read(read) => read(head),
        }
    }

    pub(super) fn fixed(&self) -> Option<u32> {
        match &self.0 {
            Amount::Fixed(units) => Some(*units),
            Amount::Read(_) => None,
        }
    }
}

impl From<u32> for Cost {
    fn from(units: u32) -> Self {
        Self(Amount::Fixed(units))
    }
}

impl fmt::Debug for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Amount::Fixed(units) => write!(f, "Cost({units})"),
            Amount::Read(_) => f.write_str("Cost(fn)"),
        }
    }
}

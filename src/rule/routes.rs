//! The serde form of `by_route`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{ByRoute, Quotas, RuleError};
use crate::{key::Everyone, store::literal};

/// The quotas by the route in the file.
type RouteTable = BTreeMap<String, Quotas>;

/// Quotas of each route, read from a file (features `axum` and `serde`).
///
/// The name of a field is its route: `"POST /url/{id}"`, or `"/url/{id}"` for [all
/// methods](ByRoute::any_method). The field `other` has the quotas of all other requests. A value
/// is a quota or a list of quotas.
///
/// A route that no request can match is an error with the fix, as in
/// [`try_by_route`](crate::rule::try_by_route).
///
/// ```
/// use tower_sluice::{LocalStore, PeerIp, RateLimitLayer, rule::RouteSettings};
///
/// #[derive(serde::Deserialize)]
/// struct Limits {
///     routes: RouteSettings,
/// }
///
/// let limits: Limits = toml::from_str(
///     r#"
///     [routes]
///     "POST /url" = "10/s"
///     "DELETE /url/{id}" = ["5/s", "1000/day"]
///     "/login" = "5/min"
///     other = "50/s"
///     "#,
/// )?;
/// let layer =
///     RateLimitLayer::try_rules(limits.routes.rules().each(PeerIp::new()), LocalStore::new())?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Limitations
///
/// The routes are fixed when the layer is built. To apply a changed file, restart the process.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "RouteTable", into = "RouteTable")]
pub struct RouteSettings(RouteTable);

impl RouteSettings {
    /// Returns the rules, like [`by_route`](crate::by_route).
    pub fn rules(&self) -> ByRoute<Everyone> {
        // The routes were checked when they were read.
        literal(self.try_rules())
    }

    fn try_rules(&self) -> Result<ByRoute<Everyone>, RuleError> {
        let missing = "other is missing, the quotas of all other requests; add it, as other = \
                       \"100/s\", or other = [] to limit nothing";
        let other = self
            .0
            .get("other")
            .ok_or_else(|| RuleError::Route(missing.to_owned()))?;
        let mut rules = ByRoute::of(other.clone().into());
        for (name, quotas) in self.0.iter().filter(|(name, _)| *name != "other") {
            let (method, path) = match name.split_once(' ') {
                Some((method, path)) if !method.starts_with('/') => (Some(method), path.trim()),
                _ => (None, name.as_str()),
            };
            rules.add(method, path, quotas.clone().into())?;
        }
        Ok(rules)
    }
}

impl From<RouteSettings> for RouteTable {
    fn from(settings: RouteSettings) -> Self {
        settings.0
    }
}

impl TryFrom<RouteTable> for RouteSettings {
    type Error = RuleError;

    fn try_from(routes: RouteTable) -> Result<Self, RuleError> {
        let settings = Self(routes);
        settings.try_rules().map(|_| settings)
    }
}

//! The serde form of `by_route`.

use std::fmt;

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{Error, MapAccess, Visitor},
};

use super::{ByRoute, Quotas, RouteError, route::Route};
use crate::key::Everyone;

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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteSettings {
    routes: Vec<(Route, Quotas)>,
    other: Quotas,
}

impl RouteSettings {
    /// Returns the rules, like [`by_route`](crate::by_route).
    pub fn rules(&self) -> ByRoute<Everyone> {
        let mut rules = ByRoute::of(self.other.clone().into());
        for (route, quotas) in &self.routes {
            // The visitor has rejected equal routes.
            let _added = rules.add(route.clone(), quotas.clone().into());
        }
        rules
    }
}

impl<'de> Deserialize<'de> for RouteSettings {
    fn deserialize<D: Deserializer<'de>>(value: D) -> Result<Self, D::Error> {
        value.deserialize_map(RouteTable)
    }
}

struct RouteTable;

impl<'de> Visitor<'de> for RouteTable {
    type Value = RouteSettings;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a table, as { \"POST /url\" = \"10/s\", other = \"100/s\" }")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut table: A) -> Result<RouteSettings, A::Error> {
        const UNKNOWN: &str =
            "give other, or a route, as \"POST /url\", or \"/url\" for every method";
        const MISSING: &str = "other is missing, the quotas of all other requests; add it, as \
                               other = \"100/s\", or other = [] to limit nothing";
        let (mut routes, mut other) = (Vec::new(), None);
        while let Some(name) = table.next_key::<String>()? {
            if name == "other" {
                if other.replace(table.next_value()?).is_some() {
                    return Err(A::Error::duplicate_field("other"));
                }
            } else if name.contains(['/', ' ']) {
                let route = Route::read(&name).map_err(A::Error::custom)?;
                if routes.iter().any(|(one, _)| *one == route) {
                    return Err(A::Error::custom(RouteError::duplicate(&route)));
                }
                routes.push((route, table.next_value()?));
            } else {
                return Err(A::Error::custom(format!("unknown field {name:?}; {UNKNOWN}")));
            }
        }
        let other = other.ok_or_else(|| A::Error::custom(MISSING))?;
        Ok(RouteSettings { routes, other })
    }
}

impl Serialize for RouteSettings {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let routes = self.routes.iter().map(|(route, quotas)| (route.to_string(), quotas));
        serializer.collect_map(routes.chain([("other".to_owned(), &self.other)]))
    }
}

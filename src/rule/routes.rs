//! The serde form of `by_route`.

use serde::{
    de::{Deserialize, Deserializer, Error},
    ser::{Serialize, SerializeMap, Serializer},
};

use super::{ByRoute, Quotas, route::Route};
use crate::{
    config::de::{self, TableForm},
    key::Everyone,
};

const FIELDS: &str = "give other, or a route, as \"POST /url\", or \"/url\" for every method";

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
            // `field` has rejected equal routes.
            let _added = rules.add(route.clone(), quotas.clone().into());
        }
        rules
    }
}

impl<'de> Deserialize<'de> for RouteSettings {
    fn deserialize<D: Deserializer<'de>>(value: D) -> Result<Self, D::Error> {
        de::read::<RouteTable, D>(value)
    }
}

#[derive(Default)]
struct RouteTable {
    routes: Vec<(Route, Quotas)>,
    other: Option<Quotas>,
}

impl TableForm for RouteTable {
    type Read = RouteSettings;

    const SHAPE: &'static str = "a table, as { \"POST /url\" = \"10/s\", other = \"100/s\" }";

    fn text(text: &str) -> Result<RouteSettings, String> {
        Err(format!("routes are {text:?}; give {}", Self::SHAPE))
    }

    fn field<'de, D: Deserializer<'de>>(&mut self, name: &str, value: D) -> Result<(), D::Error> {
        if name == "other" {
            self.other = Some(Quotas::deserialize(value)?);
            return Ok(());
        }
        if !name.contains(['/', ' ']) {
            return Err(de::unknown(name, value, FIELDS));
        }
        let route = Route::read(name).map_err(D::Error::custom)?;
        if self.routes.iter().any(|(one, _)| *one == route) {
            return Err(D::Error::custom(super::RouteError::duplicate(&route)));
        }
        self.routes.push((route, Quotas::deserialize(value)?));
        Ok(())
    }

    fn read(self) -> Result<RouteSettings, String> {
        const MISSING: &str = "other is missing, the quotas of all other requests; add it, as \
                               other = \"100/s\", or other = [] to limit nothing";
        let other = self.other.ok_or(MISSING)?;
        Ok(RouteSettings { routes: self.routes, other })
    }
}

impl Serialize for RouteSettings {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut table = serializer.serialize_map(None)?;
        for (route, quotas) in &self.routes {
            table.serialize_entry(&route.to_string(), quotas)?;
        }
        table.serialize_entry("other", &self.other)?;
        table.end()
    }
}

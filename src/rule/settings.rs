//! The serde forms of rules, [`Quotas`] and [`OnMissingKey`].

use std::{fmt, time::Duration};

use http::StatusCode;
use serde::{
    de::{
        Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor,
        value::{MapAccessDeserializer, StrDeserializer},
    },
    ser::{Error as _, Serialize, SerializeMap, Serializer},
};

use super::{DEFAULT_MAX_KEY_LEN, OnMissingKey, Quotas, Rule, RuleName, plan::MAX_QUOTAS};
use crate::{
    config::de::{self, TableForm},
    quota::{Quota, read_time, time_text},
};

const FIELDS: &str = "give name, quotas, cost, headroom, max_wait, missing, report_only or \
                      max_key_len";
const TIME: &str = "give text, as \"500ms\"";

/// Settings of a rule, read from a file (feature `serde`).
///
/// The fields are named after the setters of [`Rule`]. All fields except `quotas` are optional.
/// Times are text: `"500ms"`, `"2s"`. An error contains the field and the fix.
///
/// The extractor is not a field. Set the extractor in code, because it decides which clients are
/// trusted.
///
/// ```
/// use std::collections::HashMap;
/// use tower_sluice::{
///     LocalStore, PeerIp, RateLimitLayer, key::HeaderKey,
///     rule::{Quotas, RuleSettings},
/// };
///
/// #[derive(serde::Deserialize)]
/// struct Limits {
///     ip: RuleSettings,
///     user: RuleSettings,
///     plans: HashMap<String, Quotas>,
/// }
///
/// let limits: Limits = toml::from_str(
///     r#"
///     [ip]
///     name = "ip"
///     quotas = "20/s"
///
///     [user]
///     name = "user"
///     quotas = ["5/s burst 20", { units = 10000, period = "day", algorithm = "fixed_window" }]
///     missing = "skip"
///     max_wait = "0s"
///
///     [plans]
///     gold = "50/s burst 200"
///     partner = [] # unlimited
///     "#,
/// )?;
/// let ip = limits.ip.rule(PeerIp::new());
/// let user = limits.user.rule(HeaderKey::new("x-api-key"));
/// let layer = RateLimitLayer::try_rules((ip, user), LocalStore::new())?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Changes at run time
///
/// **Quotas** can be replaced while the service runs:
///
/// - For one plan, pass a [`LivePlan`](crate::LivePlan) to [`Rule::plan`], and
///   [replace](crate::LivePlan::replace) its quotas.
/// - For several plans, use a [`Plan`](crate::Plan) that reads from a map, and replace the map.
///
/// Accounts keep their state if the quotas keep their order, periods and algorithms.
///
/// **All other fields** need a restart. A new name starts new accounts.
/// [`needs_restart`](RuleSettings::needs_restart) reports if a new file changes such a field.
///
/// **Code** can change two settings without a restart. A [`Toggle`](crate::middleware::Toggle)
/// turns a rule off. A [`Cost::from_fn`](crate::Cost::from_fn) changes the cost.
///
/// **Invalid combinations** of fixed quotas, such as a cost above a limit, are errors of
/// [`try_rules`](crate::RateLimitLayer::try_rules). Check new quotas before you replace the old
/// ones: build a layer with the new rules and a small store, then drop the layer. See
/// `examples/config.rs`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RuleSettings {
    /// Name of the rule, see [`Rule::named`]. Defaults to `default`.
    pub name: RuleName,
    /// Quotas, see [`Rule::new`]. An empty list limits nothing.
    pub quotas: Quotas,
    /// Cost of a request, see [`Rule::cost`]. Defaults to 1.
    pub cost: u32,
    /// Headroom of a request, see [`Rule::headroom`]. Defaults to 0.
    pub headroom: u32,
    /// Maximum waiting time, see [`Rule::max_wait`]. Defaults to zero.
    pub max_wait: Duration,
    /// Policy for a missing identity, see [`Rule::on_missing_key`]. Defaults to `reject`.
    pub missing: OnMissingKey,
    /// `true` if the rule is report-only, see [`Rule::report_only`]. Defaults to `false`.
    pub report_only: bool,
    /// Maximum length of a key, see [`Rule::max_key_len`]. Defaults to 1 KiB.
    pub max_key_len: usize,
}

impl RuleSettings {
    /// Creates settings with these quotas, and defaults for the other fields.
    pub fn new(quotas: impl Into<Quotas>) -> Self {
        Self {
            name: RuleName::default(),
            quotas: quotas.into(),
            cost: 1,
            headroom: 0,
            max_wait: Duration::ZERO,
            missing: OnMissingKey::default(),
            report_only: false,
            max_key_len: DEFAULT_MAX_KEY_LEN,
        }
    }

    /// Creates a rule with these settings.
    pub fn rule<K>(&self, extractor: K) -> Rule<K> {
        let rule = Rule::named(self.name, extractor, self.quotas.clone())
            .cost(self.cost)
            .headroom(self.headroom)
            .max_wait(self.max_wait)
            .on_missing_key(self.missing)
            .max_key_len(self.max_key_len);
        if self.report_only { rule.report_only(true) } else { rule }
    }

    /// Returns the name of the first field that differs in `new`, except `quotas`.
    ///
    /// ```
    /// use tower_sluice::{Quota, rule::RuleSettings};
    ///
    /// let (old, mut new) = (Quota::per_second(5), RuleSettings::new(Quota::per_second(10)));
    /// assert_eq!(RuleSettings::new(old).needs_restart(&new), None);
    /// new.cost = 2;
    /// assert_eq!(RuleSettings::new(old).needs_restart(&new), Some("cost"));
    /// ```
    #[must_use]
    pub fn needs_restart(&self, new: &Self) -> Option<&'static str> {
        let Self { name, quotas: _, cost, headroom, max_wait, missing, report_only, max_key_len } =
            new;
        let differs = [
            ("name", self.name != *name),
            ("cost", self.cost != *cost),
            ("headroom", self.headroom != *headroom),
            ("max_wait", self.max_wait != *max_wait),
            ("missing", self.missing != *missing),
            ("report_only", self.report_only != *report_only),
            ("max_key_len", self.max_key_len != *max_key_len),
        ];
        differs.into_iter().find_map(|(field, differs)| differs.then_some(field))
    }
}

impl<'de> Deserialize<'de> for RuleSettings {
    fn deserialize<D: Deserializer<'de>>(value: D) -> Result<Self, D::Error> {
        de::read::<SettingsTable, D>(value)
    }
}

struct SettingsTable {
    settings: RuleSettings,
    has_quotas: bool,
}

impl Default for SettingsTable {
    fn default() -> Self {
        Self { settings: RuleSettings::new([]), has_quotas: false }
    }
}

impl TableForm for SettingsTable {
    type Read = RuleSettings;

    const SHAPE: &'static str = "a table, as { name = \"ip\", quotas = \"20/s\" }";

    fn text(text: &str) -> Result<RuleSettings, String> {
        Err(format!("a rule is {text:?}; give {}", Self::SHAPE))
    }

    fn field<'de, D: Deserializer<'de>>(&mut self, name: &str, value: D) -> Result<(), D::Error> {
        let settings = &mut self.settings;
        match name {
            "name" => settings.name = RuleName::deserialize(value)?,
            "quotas" => {
                settings.quotas = Quotas::deserialize(value)?;
                self.has_quotas = true;
            }
            "cost" => settings.cost = de::number(name, value, 0..=u32::MAX)?,
            "headroom" => settings.headroom = de::number(name, value, 0..=u32::MAX)?,
            "max_wait" => settings.max_wait = read_time(name, value, TIME)?,
            "missing" => settings.missing = OnMissingKey::deserialize(value)?,
            "report_only" => settings.report_only = de::flag(name, value)?,
            "max_key_len" => {
                let bytes = de::number(name, value, 1..=u32::MAX)?;
                settings.max_key_len = usize::try_from(bytes).unwrap_or(usize::MAX);
            }
            _ => return Err(de::unknown(name, value, FIELDS)),
        }
        Ok(())
    }

    fn read(self) -> Result<RuleSettings, String> {
        const MISSING: &str = "quotas is missing; add it, as quotas = \"20/s\", or quotas = [] to \
                               limit nothing";
        if self.has_quotas { Ok(self.settings) } else { Err(MISSING.into()) }
    }
}

/// Writes the quotas, and all other fields that differ from their defaults.
impl Serialize for RuleSettings {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let plain = Self::new([]);
        let mut table = serializer.serialize_map(None)?;
        de::entry(&mut table, "name", &self.name, &plain.name)?;
        table.serialize_entry("quotas", &self.quotas)?;
        de::entry(&mut table, "cost", &self.cost, &plain.cost)?;
        de::entry(&mut table, "headroom", &self.headroom, &plain.headroom)?;
        if self.max_wait != plain.max_wait {
            let text = time_text(self.max_wait);
            let long = || S::Error::custom("max_wait is longer than ten years; shorten it");
            table.serialize_entry("max_wait", &text.ok_or_else(long)?)?;
        }
        de::entry(&mut table, "missing", &self.missing, &plain.missing)?;
        de::entry(&mut table, "report_only", &self.report_only, &plain.report_only)?;
        de::entry(&mut table, "max_key_len", &self.max_key_len, &plain.max_key_len)?;
        table.end()
    }
}

const MISSING: &str = "give \"reject\", \"skip\", \"share\" or { reject = 401 }";

/// Reads one quota or a list. An empty list limits nothing.
impl<'de> Deserialize<'de> for Quotas {
    fn deserialize<D: Deserializer<'de>>(value: D) -> Result<Self, D::Error> {
        value.deserialize_any(OneOrMore)
    }
}

struct OneOrMore;

impl<'de> Visitor<'de> for OneOrMore {
    type Value = Quotas;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a quota, as \"100/min burst 20\", or a list of them")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Quotas, E> {
        Quota::deserialize(StrDeserializer::new(text)).map(Quotas::from)
    }

    fn visit_map<A: MapAccess<'de>>(self, table: A) -> Result<Quotas, A::Error> {
        Quota::deserialize(MapAccessDeserializer::new(table)).map(Quotas::from)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Quotas, A::Error> {
        let mut quotas = Vec::new();
        while let Some(quota) = list.next_element::<Quota>()? {
            if quotas.len() == MAX_QUOTAS {
                return Err(A::Error::custom(format!(
                    "the list has more than {MAX_QUOTAS} quotas; give at most {MAX_QUOTAS}"
                )));
            }
            quotas.push(quota);
        }
        Ok(quotas.into())
    }
}

impl Serialize for Quotas {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.as_ref() {
            [quota] => quota.serialize(serializer),
            quotas => quotas.serialize(serializer),
        }
    }
}

/// Reads the forms that [`OnMissingKey`] documents.
impl<'de> Deserialize<'de> for OnMissingKey {
    fn deserialize<D: Deserializer<'de>>(value: D) -> Result<Self, D::Error> {
        de::read::<MissingTable, D>(value)
    }
}

#[derive(Default)]
struct MissingTable(Option<StatusCode>);

impl TableForm for MissingTable {
    type Read = OnMissingKey;

    const SHAPE: &'static str = "a policy for requests without an identity, as \"reject\", \
                                 \"skip\", \"share\" or { reject = 401 }";

    fn text(text: &str) -> Result<OnMissingKey, String> {
        match text {
            "reject" => Ok(OnMissingKey::default()),
            "skip" => Ok(OnMissingKey::Skip),
            "share" => Ok(OnMissingKey::Share),
            _ => Err(format!("missing is {text:?}; {MISSING}")),
        }
    }

    fn field<'de, D: Deserializer<'de>>(&mut self, name: &str, value: D) -> Result<(), D::Error> {
        if name != "reject" {
            return Err(de::unknown(name, value, MISSING));
        }
        let status = de::number(name, value, 400..=599)?;
        self.0 = u16::try_from(status).ok().and_then(|status| StatusCode::from_u16(status).ok());
        Ok(())
    }

    fn read(self) -> Result<OnMissingKey, String> {
        self.0
            .map(OnMissingKey::Reject)
            .ok_or_else(|| format!("missing is an empty table; {MISSING}"))
    }
}

impl Serialize for OnMissingKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Reject(StatusCode::BAD_REQUEST) => serializer.serialize_str("reject"),
            Self::Skip => serializer.serialize_str("skip"),
            Self::Share => serializer.serialize_str("share"),
            Self::Reject(status) => {
                serializer.serialize_newtype_variant("OnMissingKey", 0, "reject", &status.as_u16())
            }
        }
    }
}

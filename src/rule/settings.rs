//! The serde forms of rules, [`Quotas`] and [`OnMissingKey`].

use std::time::Duration;

use http::StatusCode;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

use super::{DEFAULT_MAX_KEY_LEN, OnMissingKey, Quotas, Rule, RuleName, quotas::MAX_QUOTAS};
use crate::{
    config::{self, Setting},
    quota::{Quota, max_wait},
};

/// Settings of a rule, read from a file (feature `serde`).
///
/// The fields are named after the setters of [`Rule`]; `missing` is that of
/// [`on_missing_key`](Rule::on_missing_key). All fields except `quotas` are optional.
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
/// Accounts keep their state while their quotas keep period, algorithm and unit.
///
/// **All other fields** need a restart. A new name starts new accounts.
/// [`needs_restart`](RuleSettings::needs_restart) reports if a new file changes such a field.
///
/// **Code** can change two settings without a restart. A [`Toggle`](crate::middleware::Toggle)
/// makes a rule report-only. A [`Cost::from_fn`](crate::Cost::from_fn) changes the cost or the headroom.
///
/// **Invalid combinations** of fixed quotas, such as a cost above a limit, are errors of
/// [`try_rules`](crate::RateLimitLayer::try_rules). Check new quotas before you replace the old
/// ones: build a layer with the new rules and a small store, then drop the layer. See
/// `examples/config.rs`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(
    deny_unknown_fields,
    expecting = "a table, as { name = \"ip\", quotas = \"20/s\" }"
)]
#[non_exhaustive]
pub struct RuleSettings {
    /// Name of the rule. Defaults to `default`.
    #[serde(default)]
    pub name: RuleName,
    /// Quotas, see [`Rule::new`]. An empty list limits nothing.
    pub quotas: Quotas,
    /// Cost of a request, see [`Rule::cost`]. Defaults to 1.
    #[serde(default = "one")]
    pub cost: u32,
    /// Headroom of a request, see [`Rule::headroom`]. Defaults to 0.
    #[serde(default)]
    pub headroom: u32,
    /// Maximum waiting time, see [`Rule::max_wait`]. Defaults to zero.
    #[serde(default, with = "max_wait")]
    pub max_wait: Duration,
    /// Policy for a missing identity, see [`Rule::on_missing_key`]. Defaults to `reject`.
    ///
    /// On a rule with [`Rule::if_no_key`], the policy only sets the status for requests that
    /// [require](super::Applies::Require) a key.
    #[serde(default)]
    pub missing: OnMissingKey,
    /// `true` if the rule is report-only, see [`Rule::report_only`]. Defaults to `false`.
    #[serde(default)]
    pub report_only: bool,
    /// Maximum length of a key, see [`Rule::max_key_len`]. Defaults to 1 KiB.
    #[serde(default = "default_max_key_len", deserialize_with = "max_key_len")]
    pub max_key_len: usize,
}

fn one() -> u32 {
    1
}

fn default_max_key_len() -> usize {
    DEFAULT_MAX_KEY_LEN
}

fn max_key_len<'de, D: Deserializer<'de>>(value: D) -> Result<usize, D::Error> {
    let bytes = usize::deserialize(value)?;
    if bytes > 0 {
        Ok(bytes)
    } else {
        Err(D::Error::custom("max_key_len is 0; give at least 1"))
    }
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
    ///
    /// # Panics
    ///
    /// Panics if code has set `max_key_len` to 0, or a status of `missing` that is no error. A file with
    /// such a value cannot be read.
    #[track_caller]
    pub fn rule<K>(&self, extractor: K) -> Rule<K> {
        Rule::named(self.name, extractor, self.quotas.clone())
            .cost(self.cost)
            .headroom(self.headroom)
            .max_wait(self.max_wait)
            .on_missing_key(self.missing)
            .max_key_len(self.max_key_len)
            .report_only(self.report_only)
    }

    /// Returns the name of the first field that differs in `new`, except `quotas`.
    ///
    /// ```
    /// use tower_sluice::{Quota, rule::RuleSettings};
    ///
    /// let old = Quota::per_second(5);
    /// let mut new = RuleSettings::new(Quota::per_second(10));
    /// assert_eq!(RuleSettings::new(old).needs_restart(&new), None);
    /// new.cost = 2;
    /// assert_eq!(RuleSettings::new(old).needs_restart(&new), Some("cost"));
    /// ```
    #[must_use]
    pub fn needs_restart(&self, new: &Self) -> Option<&'static str> {
        let fields = [
            ("name", self.name == new.name),
            ("cost", self.cost == new.cost),
            ("headroom", self.headroom == new.headroom),
            ("max_wait", self.max_wait == new.max_wait),
            ("missing", self.missing == new.missing),
            ("report_only", self.report_only == new.report_only),
            ("max_key_len", self.max_key_len == new.max_key_len),
        ];
        fields
            .into_iter()
            .find(|(_, is_same)| !is_same)
            .map(|(field, _)| field)
    }
}

/// Reads one quota or a list. An empty list limits nothing.
impl<'de> Deserialize<'de> for Quotas {
    fn deserialize<D: Deserializer<'de>>(value: D) -> Result<Self, D::Error> {
        config::read(value)
    }
}

impl Setting for Quotas {
    const FORM: &'static str = "a quota, as \"100/min burst 20\", or a list of them";

    fn from_text(text: &str) -> Result<Self, String> {
        Quota::from_text(text).map(Self::from)
    }

    fn from_table<'de, D: Deserializer<'de>>(table: D) -> Result<Self, D::Error> {
        Quota::from_table(table).map(Self::from)
    }

    fn from_list<'de, D: Deserializer<'de>>(list: D) -> Result<Self, D::Error> {
        let list = Vec::<Quota>::deserialize(list)?;
        if list.len() <= MAX_QUOTAS {
            return Ok(list.into());
        }
        let why = format!(
            "the list has {} quotas; give at most {MAX_QUOTAS}",
            list.len()
        );
        Err(D::Error::custom(why))
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

impl TryFrom<String> for OnMissingKey {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let status = match &*text {
            "skip" => return Ok(Self::Skip),
            "share" => return Ok(Self::Share),
            "reject" => Some(StatusCode::BAD_REQUEST),
            _ => text
                .strip_prefix("reject ")
                .and_then(|status| status.parse().ok()),
        };
        let valid = status.filter(|status| (400..=599).contains(&status.as_u16()));
        valid.map(Self::Reject).ok_or_else(|| {
            format!(
                "missing is {text:?}; give \"skip\", \"share\", \"reject\", or \"reject 401\" with \
                 a status from 400 to 599"
            )
        })
    }
}

impl From<OnMissingKey> for String {
    fn from(missing: OnMissingKey) -> Self {
        match missing {
            OnMissingKey::Skip => "skip".into(),
            OnMissingKey::Share => "share".into(),
            OnMissingKey::Reject(StatusCode::BAD_REQUEST) => "reject".into(),
            OnMissingKey::Reject(status) => format!("reject {}", status.as_u16()),
        }
    }
}

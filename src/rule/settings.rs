//! The settings of a rule that are plain values, as a file has them.

use std::time::Duration;

use serde::{
    de::{Deserialize, Deserializer},
    ser::{Error, Serialize, SerializeMap, Serializer},
};

use super::{KEY_LEN, Missing, Quotas, Rule};
use crate::{
    fields::{self, Table},
    name::RuleName,
    quota::{read_time, time_text},
};

const FIELDS: &str = "give name, quotas, cost, headroom, max_wait, missing, report_only or \
                      max_key_len";
const TIME: &str = "give text, as \"500ms\"";

/// What a file says of a rule; who pays stays in code, since an extractor decides who is trusted
/// (feature `serde`).
///
/// The fields are called as the setters of [`Rule`] and mean the same; all but `quotas` may be left
/// out. Times are text, as in a [quota](crate::Quota): `"500ms"`, `"2s"`. A wrong value is an error
/// with its field and the fix, and so is a field that there is not.
///
/// ```
/// use std::collections::HashMap;
/// use tower_sluice::{LocalStore, PeerIp, Quotas, RateLimitLayer, RuleSettings, key::Header};
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
/// let user = limits.user.rule(Header::new("x-api-key"));
/// let layer = RateLimitLayer::try_rules((ip, user), LocalStore::new())?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # While the server runs
///
/// **Quotas** can be read again: give the rule a [`LivePlan`](crate::LivePlan) by [`Rule::plan`]
/// and [replace](crate::LivePlan::replace) what it has, or a [`Plan`](crate::Plan) that looks into a
/// map of plans that is replaced as a whole. Accounts stay as they are, and nobody is refilled, as
/// long as the quotas keep their order, their periods and their algorithms: an account belongs to a
/// place in the list, and no algorithm reads the account of another.
///
/// Everything else takes a restart. The name is part of every account's address: under another, all
/// would be full. What a missing identity means, whether anybody is refused at all, how long requests wait
/// and what they cost is what a service in front of the handlers was built and tested with;
/// [`needs_restart`](RuleSettings::needs_restart) tells whether a new file changes it. (A rule is
/// turned off at once by a [`Switch`](crate::Switch), and a cost that changes is
/// [`Units::from_fn`](crate::Units::from_fn).)
///
/// What cannot work together, such as a cost above a limit, is found by
/// [`try_rules`](crate::RateLimitLayer::try_rules) where quotas are fixed. Before new ones replace
/// others, make a layer of their rules over a small store of its own and drop it; if either fails,
/// say so and keep what runs. `examples/config.rs` does all of this.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RuleSettings {
    /// See [`Rule::named`]; `default` unless set.
    pub name: RuleName,
    /// See [`Rule::new`]. An empty list limits nothing.
    pub quotas: Quotas,
    /// See [`Rule::cost`]; 1 unless set.
    pub cost: u32,
    /// See [`Rule::headroom`]; 0 unless set.
    pub headroom: u32,
    /// See [`Rule::max_wait`]; zero unless set.
    pub max_wait: Duration,
    /// See [`Rule::missing`]; `reject` unless set.
    pub missing: Missing,
    /// See [`Rule::report_only`].
    pub report_only: bool,
    /// See [`Rule::max_key_len`]; 1 KiB unless set.
    pub max_key_len: usize,
}

impl RuleSettings {
    /// Those of a rule that was only given quotas.
    pub fn new(quotas: impl Into<Quotas>) -> Self {
        Self {
            name: RuleName::default(),
            quotas: quotas.into(),
            cost: 1,
            headroom: 0,
            max_wait: Duration::ZERO,
            missing: Missing::default(),
            report_only: false,
            max_key_len: KEY_LEN,
        }
    }

    /// The rule of these settings in which `extractor` says who pays.
    pub fn rule<K>(&self, extractor: K) -> Rule<K> {
        let rule = Rule::named(self.name, extractor, self.quotas.clone())
            .cost(self.cost)
            .headroom(self.headroom)
            .max_wait(self.max_wait)
            .missing(self.missing)
            .max_key_len(self.max_key_len);
        if self.report_only { rule.report_only() } else { rule }
    }

    /// The first field but `quotas` in which `new` differs.
    ///
    /// ```
    /// use tower_sluice::{Quota, RuleSettings};
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
        fields::read::<SettingsTable, D>(value)
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

impl Table for SettingsTable {
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
            "cost" => settings.cost = fields::number(name, value, 0..=u32::MAX)?,
            "headroom" => settings.headroom = fields::number(name, value, 0..=u32::MAX)?,
            "max_wait" => settings.max_wait = read_time(name, value, TIME)?,
            "missing" => settings.missing = Missing::deserialize(value)?,
            "report_only" => settings.report_only = fields::flag(name, value)?,
            "max_key_len" => {
                let bytes = fields::number(name, value, 1..=u32::MAX)?;
                settings.max_key_len = usize::try_from(bytes).unwrap_or(usize::MAX);
            }
            _ => return Err(fields::unknown(name, value, FIELDS)),
        }
        Ok(())
    }

    fn read(self) -> Result<RuleSettings, String> {
        const LACKING: &str = "quotas is missing; add it, as quotas = \"20/s\", or quotas = [] to \
                               limit nothing";
        if self.has_quotas { Ok(self.settings) } else { Err(LACKING.into()) }
    }
}

/// What differs from the settings of a rule that was only given quotas.
impl Serialize for RuleSettings {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let plain = Self::new([]);
        let mut table = serializer.serialize_map(None)?;
        if self.name != plain.name {
            table.serialize_entry("name", &self.name)?;
        }
        table.serialize_entry("quotas", &self.quotas)?;
        if self.cost != plain.cost {
            table.serialize_entry("cost", &self.cost)?;
        }
        if self.headroom != plain.headroom {
            table.serialize_entry("headroom", &self.headroom)?;
        }
        if self.max_wait != plain.max_wait {
            let text = time_text(self.max_wait);
            let long = || S::Error::custom("max_wait is longer than ten years; shorten it");
            table.serialize_entry("max_wait", &text.ok_or_else(long)?)?;
        }
        if self.missing != plain.missing {
            table.serialize_entry("missing", &self.missing)?;
        }
        if self.report_only {
            table.serialize_entry("report_only", &true)?;
        }
        if self.max_key_len != plain.max_key_len {
            table.serialize_entry("max_key_len", &self.max_key_len)?;
        }
        table.end()
    }
}

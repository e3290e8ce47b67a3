//! A rule as a flag: `name=ip key=peer quota="5/s burst 10" cost=2 missing=skip`.

#[path = "algorithm.rs"]
mod algorithm;

use std::{str::FromStr, time::Duration};

use axum::http::HeaderName;
use tower_sluice::{
    ClientIp, KeyExtractor, PeerIp, Quota, Rule,
    key::{Everyone, HeaderKey, RouteKey},
    rule::{OnMissingKey, RuleName},
};

use self::algorithm::counted_by;

const FIELDS: &str = "give name, key, quota, algorithm, soft, cost, headroom, max_wait, missing or \
                      report_only";
const QUOTA: &str = "quota=\"5/s burst 10\"";
const KEYS: &str = "give peer, client, header:NAME, everyone or route";
const NO_PROXY: &str = "key=client needs a proxy to believe; add one, as --trusted-proxy 10.0.0.0/8, \
                        or use key=peer";

pub(crate) type AnyKey = Box<dyn KeyExtractor + Send + Sync>;

/// A validated rule, not yet built, because clap clones parsed values.
#[derive(Clone, Debug)]
pub(crate) struct RuleFlag {
    pub(crate) name: RuleName,
    pub(crate) key: KeyFlag,
    pub(crate) quotas: Vec<Quota>,
    cost: u32,
    headroom: u32,
    max_wait: Duration,
    missing: OnMissingKey,
    pub(crate) report_only: bool,
}

#[derive(Clone, Debug)]
pub(crate) enum KeyFlag {
    Peer,
    Client,
    Header(HeaderName),
    Everyone,
    Route,
}

impl RuleFlag {
    /// Builds the rule. `client` finds the client behind the trusted proxies, if there are any.
    pub(crate) fn rule(self, client: Option<&ClientIp>) -> Result<Rule<AnyKey>, String> {
        let rule = Rule::new(self.name.as_str(), self.key.extractor(client)?, self.quotas)
            .cost(self.cost)
            .headroom(self.headroom)
            .max_wait(self.max_wait)
            .on_missing_key(self.missing);
        Ok(if self.report_only { rule.report_only(true) } else { rule })
    }
}

impl KeyFlag {
    pub(crate) fn extractor(&self, client: Option<&ClientIp>) -> Result<AnyKey, String> {
        Ok(match self {
            Self::Peer => Box::new(PeerIp::new()),
            Self::Client => Box::new(client.ok_or(NO_PROXY)?.clone()),
            Self::Header(name) => Box::new(HeaderKey::from(name.clone())),
            Self::Everyone => Box::new(Everyone),
            Self::Route => Box::new(RouteKey),
        })
    }
}

/// Errors name the field, its value and the fix.
impl FromStr for RuleFlag {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let words = shlex::split(text).ok_or("a quote is not closed; close it")?;
        let (mut name, mut key, mut missing, mut algorithm) = (None, None, None, None);
        let (mut cost, mut headroom, mut max_wait, mut soft) = (None, None, None, None);
        let (mut quotas, mut report_only) = (Vec::<Quota>::new(), false);
        for word in &words {
            if word == "report_only" {
                report_only = true;
                continue;
            }
            let (field, value) = word.split_once('=').ok_or_else(|| {
                format!("{word:?} is not field=value; quote a value with spaces, as {QUOTA}")
            })?;
            match field {
                "name" => once(field, &mut name, checked(value)?)?,
                "key" => once(field, &mut key, checked(value)?)?,
                "quota" => {
                    for quota in value.split(',') {
                        quotas.push(checked(quota)?);
                    }
                }
                "algorithm" => once(field, &mut algorithm, counted_by(value)?)?,
                "soft" => once(field, &mut soft, units(field, value)?)?,
                "cost" => once(field, &mut cost, units(field, value)?)?,
                "headroom" => once(field, &mut headroom, units(field, value)?)?,
                "max_wait" => once(field, &mut max_wait, time(value)?)?,
                "missing" => once(field, &mut missing, policy(value)?)?,
                _ => return Err(format!("unknown field {field:?} (set to {value:?}); {FIELDS}")),
            }
        }
        let name = name.ok_or("name is missing; add one, as name=ip")?;
        let key = key.ok_or_else(|| format!("key is missing; {KEYS}, as key=peer"))?;
        if quotas.is_empty() {
            return Err(format!("quota is missing; add one, as {QUOTA}"));
        }
        for quota in &mut quotas {
            let counted = quota.try_with_algorithm(algorithm.unwrap_or_default());
            let softened = counted.and_then(|quota| quota.try_with_soft(soft.unwrap_or(0)));
            *quota = softened.map_err(|error| error.to_string())?;
        }
        Ok(Self {
            name,
            key,
            quotas,
            cost: cost.unwrap_or(1),
            headroom: headroom.unwrap_or(0),
            max_wait: max_wait.unwrap_or_default(),
            missing: missing.unwrap_or_default(),
            report_only,
        })
    }
}

impl FromStr for KeyFlag {
    type Err = String;

    fn from_str(value: &str) -> Result<Self, String> {
        match value.split_once(':') {
            None if value == "peer" => Ok(Self::Peer),
            None if value == "client" => Ok(Self::Client),
            None if value == "everyone" => Ok(Self::Everyone),
            None if value == "route" => Ok(Self::Route),
            Some(("header", name)) => name.parse().map(Self::Header).map_err(|error| {
                format!("key is {value:?}: {error}; use letters, digits and -, as header:x-api-key")
            }),
            _ => Err(format!("key is {value:?}; {KEYS}")),
        }
    }
}

fn units(field: &str, value: &str) -> Result<u32, String> {
    let wrong = |_| format!("{field} is {value:?}; give a whole number from 0 to {}", u32::MAX);
    value.parse().map_err(wrong)
}

fn time(value: &str) -> Result<Duration, String> {
    let wrong = || format!("max_wait is {value:?}; give whole milliseconds, as max_wait=500ms");
    let millis = value.strip_suffix("ms").ok_or_else(wrong)?;
    millis.parse().map(Duration::from_millis).map_err(|_| wrong())
}

fn policy(value: &str) -> Result<OnMissingKey, String> {
    match value {
        "reject" => Ok(OnMissingKey::default()),
        "skip" => Ok(OnMissingKey::Skip),
        "share" => Ok(OnMissingKey::Share),
        _ => Err(format!("missing is {value:?}; give reject, skip or share")),
    }
}

fn checked<T: FromStr<Err: ToString>>(value: &str) -> Result<T, String> {
    value.parse().map_err(|error: T::Err| error.to_string())
}

fn once<T>(field: &str, slot: &mut Option<T>, value: T) -> Result<(), String> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(format!("{field} is given twice; drop one")),
    }
}

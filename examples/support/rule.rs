//! A rule as a flag: `name=ip key=peer quota="5/s burst 10" cost=2 missing=skip`.

use std::{collections::BTreeMap, str::FromStr};

use axum::http::HeaderName;
use serde_json::{Map, Value, json};
use tower_sluice::{
    Algorithm, ClientIp, KeyExtractor, PeerIp, Quota, Rule,
    key::{Everyone, HeaderKey, RouteKey},
    rule::RuleSettings,
};

const QUOTA: &str = "quota=\"5/s burst 10\"";
const KEYS: &str = "give peer, client, header:NAME, everyone or route";
const NO_PROXY: &str = "key=client needs a proxy to believe; add one, as --trusted-proxy 10.0.0.0/8, \
                        or use key=peer";

pub(crate) type AnyKey = Box<dyn KeyExtractor + Send + Sync>;

/// A validated rule, not yet built, because clap clones parsed values.
#[derive(Clone, Debug)]
pub(crate) struct RuleFlag {
    pub(crate) key: KeyFlag,
    pub(crate) settings: RuleSettings,
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
    pub(crate) fn rule(&self, client: Option<&ClientIp>) -> Result<Rule<AnyKey>, String> {
        Ok(self.settings.rule(self.key.extractor(client)?))
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

/// Reads `key`, `quota`, `algorithm` and `soft`, and the fields of [`RuleSettings`].
impl FromStr for RuleFlag {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut fields = BTreeMap::new();
        for word in shlex::split(text).ok_or("a quote is not closed; close it")? {
            let (field, value) = word.split_once('=').unwrap_or((&word, "true"));
            if fields.insert(field.to_owned(), value.to_owned()).is_some() {
                return Err(format!("{field} is given twice; drop one"));
            }
        }
        let mut take = |field| fields.remove(field);
        let key = take("key").ok_or_else(|| format!("key is missing; {KEYS}, as key=peer"))?;
        let key = key.parse()?;
        let quotas =
            take("quota").ok_or_else(|| format!("quota is missing; add one, as {QUOTA}"))?;
        let algorithm = algorithm(&take("algorithm").unwrap_or_else(|| "gcra".to_owned()))?;
        let soft = take("soft").map_or(Ok(0), |units| units.parse());
        let soft = soft.map_err(|error| format!("soft: {error}"))?;
        let quota = |text: &str| {
            let quota = text.parse::<Quota>()?.try_with_algorithm(algorithm)?;
            quota.try_with_soft(soft)
        };
        let quotas: Result<Vec<_>, _> = quotas.split(',').map(quota).collect();
        let mut settings = Map::new();
        settings.insert("quotas".to_owned(), json!(quotas.map_err(|error| error.to_string())?));
        settings.extend(fields.into_iter().map(typed));
        let settings =
            serde_json::from_value(settings.into()).map_err(|error| error.to_string())?;
        Ok(Self { key, settings })
    }
}

/// Returns a field with its value as a number, a truth value or a text.
fn typed((field, value): (String, String)) -> (String, Value) {
    let typed = match (&*field, value.parse::<u32>()) {
        ("report_only", _) => json!(value == "true"),
        ("name", _) | (_, Err(_)) => json!(value),
        (_, Ok(number)) => json!(number),
    };
    (field, typed)
}

/// Reads a word of [`Algorithm`], `paced_window` or `sliding_window:10`.
fn algorithm(word: &str) -> Result<Algorithm, String> {
    let value = match word.split_once(':') {
        Some(("sliding_window", buckets)) => {
            json!({ "sliding_window": { "buckets": buckets.parse::<u32>().ok() } })
        }
        None if word == "paced_window" => json!({ "fixed_window": { "paced": true } }),
        _ => json!(word),
    };
    serde_json::from_value(value).map_err(|error| format!("algorithm is {word:?}: {error}"))
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

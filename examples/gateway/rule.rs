//! A rule as a flag: `name=ip key=peer quota="5/s burst 10" cost=2 missing=skip`.

use std::str::FromStr;

use axum::http::HeaderName;
use tower_sluice::{
    KeyExtractor, Missing, PeerIp, Quota, Rule, RuleName,
    key::{Everyone, Header, Route},
};

const FIELDS: &str = "give name, key, quota, cost or missing";
const QUOTA: &str = "quota=\"5/s burst 10\"";
const KEYS: &str = "give peer, header:NAME, everyone or route";

pub(super) type AnyKey = Box<dyn KeyExtractor + Send + Sync>;

/// A checked rule, not yet built: clap clones what it has parsed.
#[derive(Clone, Debug)]
pub(super) struct RuleFlag {
    name: RuleName,
    key: KeyFlag,
    quotas: Vec<Quota>,
    cost: u32,
    missing: Missing,
}

#[derive(Clone, Debug)]
enum KeyFlag {
    Peer,
    Header(HeaderName),
    Everyone,
    Route,
}

impl RuleFlag {
    pub(super) fn rule(self) -> Rule<AnyKey> {
        let key: AnyKey = match self.key {
            KeyFlag::Peer => Box::new(PeerIp::new()),
            KeyFlag::Header(name) => Box::new(Header::from(name)),
            KeyFlag::Everyone => Box::new(Everyone),
            KeyFlag::Route => Box::new(Route),
        };
        Rule::named(self.name, key, self.quotas).cost(self.cost).missing(self.missing)
    }
}

/// Each error names the field, its value and the fix.
impl FromStr for RuleFlag {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let words = shlex::split(text).ok_or("a quote is not closed; close it")?;
        let (mut name, mut key, mut cost, mut missing) = (None, None, None, None);
        let mut quotas = Vec::new();
        for word in &words {
            let (field, value) = word.split_once('=').ok_or_else(|| {
                format!("{word:?} is not field=value; quote a value with spaces, as {QUOTA}")
            })?;
            match field {
                "name" => once(field, &mut name, checked(value)?)?,
                "key" => once(field, &mut key, checked(value)?)?,
                "quota" => quotas.push(checked(value)?),
                "cost" => once(field, &mut cost, units(value)?)?,
                "missing" => once(field, &mut missing, policy(value)?)?,
                _ => return Err(format!("{field:?} (set to {value:?}) is no field; {FIELDS}")),
            }
        }
        let name = name.ok_or("name is missing; add one, as name=ip")?;
        let key = key.ok_or_else(|| format!("key is missing; {KEYS}, as key=peer"))?;
        match quotas.len() {
            0 => Err(format!("quota is missing; add one, as {QUOTA}")),
            n @ 256.. => Err(format!("quota is given {n} times; give at most 255")),
            _ => {
                let (cost, missing) = (cost.unwrap_or(1), missing.unwrap_or_default());
                Ok(Self { name, key, quotas, cost, missing })
            }
        }
    }
}

impl FromStr for KeyFlag {
    type Err = String;

    fn from_str(value: &str) -> Result<Self, String> {
        match value.split_once(':') {
            None if value == "peer" => Ok(Self::Peer),
            None if value == "everyone" => Ok(Self::Everyone),
            None if value == "route" => Ok(Self::Route),
            Some(("header", name)) => name.parse().map(Self::Header).map_err(|error| {
                format!("key is {value:?}: {error}; use letters, digits and -, as header:x-api-key")
            }),
            _ => Err(format!("key is {value:?}; {KEYS}")),
        }
    }
}

fn units(value: &str) -> Result<u32, String> {
    let wrong = |_| format!("cost is {value:?}; give a whole number from 0 to {}", u32::MAX);
    value.parse().map_err(wrong)
}

fn policy(value: &str) -> Result<Missing, String> {
    match value {
        "reject" => Ok(Missing::default()),
        "skip" => Ok(Missing::Skip),
        "share" => Ok(Missing::Share),
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

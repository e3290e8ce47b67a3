//! The serde forms of [`Quotas`] and [`OnMissingKey`].

use std::fmt;

use http::StatusCode;
use serde::{
    de::{
        Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor,
        value::{MapAccessDeserializer, StrDeserializer},
    },
    ser::{Serialize, Serializer},
};

use super::{OnMissingKey, Quotas, plan::MAX_QUOTAS};
use crate::{
    config::de::{self, TableForm},
    quota::Quota,
};

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

//! Quotas of a rule, and what becomes of requests without an identity, in files.

use std::fmt;

use http::StatusCode;
use serde::{
    de::{
        Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor,
        value::{MapAccessDeserializer, StrDeserializer},
    },
    ser::{Serialize, Serializer},
};

use super::{Missing, Quotas, plan::MOST};
use crate::{
    fields::{self, Table},
    quota::Quota,
};

const MISSING: &str = "give \"reject\", \"skip\", \"share\" or { reject = 401 }";

/// One quota, or a list of them; an empty list limits nothing.
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
            if quotas.len() == MOST {
                return Err(A::Error::custom(format!("quotas are more than {MOST}; give fewer")));
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

/// See [`Missing`].
impl<'de> Deserialize<'de> for Missing {
    fn deserialize<D: Deserializer<'de>>(value: D) -> Result<Self, D::Error> {
        fields::read::<MissingTable, D>(value)
    }
}

#[derive(Default)]
struct MissingTable(Option<StatusCode>);

impl Table for MissingTable {
    type Read = Missing;

    const SHAPE: &'static str = "what becomes of a request without an identity, as \"reject\", \
                                 \"skip\", \"share\" or { reject = 401 }";

    fn text(text: &str) -> Result<Missing, String> {
        match text {
            "reject" => Ok(Missing::default()),
            "skip" => Ok(Missing::Skip),
            "share" => Ok(Missing::Share),
            _ => Err(format!("missing is {text:?}; {MISSING}")),
        }
    }

    fn field<'de, D: Deserializer<'de>>(&mut self, name: &str, value: D) -> Result<(), D::Error> {
        if name != "reject" {
            return Err(fields::unknown(name, value, MISSING));
        }
        let status = fields::number(name, value, 400..=599)?;
        self.0 = u16::try_from(status).ok().and_then(|status| StatusCode::from_u16(status).ok());
        Ok(())
    }

    fn read(self) -> Result<Missing, String> {
        self.0.map(Missing::Reject).ok_or_else(|| format!("missing is an empty table; {MISSING}"))
    }
}

impl Serialize for Missing {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Reject(StatusCode::BAD_REQUEST) => serializer.serialize_str("reject"),
            Self::Skip => serializer.serialize_str("skip"),
            Self::Share => serializer.serialize_str("share"),
            Self::Reject(status) => {
                serializer.serialize_newtype_variant("Missing", 0, "reject", &status.as_u16())
            }
        }
    }
}

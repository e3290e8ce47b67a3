//! The serde form of an algorithm: a word or a table.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::value::StrDeserializer};

use super::Algorithm;
use crate::config;

const FORM: &str = "an algorithm, as \"sliding_log\", { sliding_window = { buckets = 60 } } or \
                    { fixed_window = { carry_over = 30, paced = true } }";

#[derive(Deserialize, Serialize)]
#[serde(remote = "Algorithm", rename_all = "snake_case", deny_unknown_fields)]
enum AlgorithmForm {
    Gcra,
    TokenBucket,
    FixedWindow {
        #[serde(default)]
        carry_over: u32,
        #[serde(default)]
        paced: bool,
    },
    AnchoredWindow,
    SlidingWindow {
        buckets: u32,
    },
    SlidingLog,
    #[serde(skip_deserializing)]
    Concurrent,
}

#[derive(Deserialize)]
#[serde(transparent)]
struct AlgorithmTable(#[serde(with = "AlgorithmForm")] Algorithm);

impl From<AlgorithmTable> for Algorithm {
    fn from(table: AlgorithmTable) -> Self {
        table.0
    }
}

/// Reads an algorithm from a word or a table.
///
/// - `"gcra"`, `"token_bucket"`, `"fixed_window"`, `"anchored_window"` or `"sliding_log"`
/// - `{ sliding_window = { buckets = 60 } }`
/// - `{ fixed_window = { carry_over = 30, paced = true } }`, where both fields are optional
impl<'de> Deserialize<'de> for Algorithm {
    fn deserialize<D: Deserializer<'de>>(value: D) -> Result<Self, D::Error> {
        config::text_or_table::<_, AlgorithmTable, _>(value, FORM, |text| match text {
            "fixed_window" => Ok(Self::fixed_window()),
            "sliding_window" => Err(format!("algorithm is {text:?}, without buckets; give {FORM}")),
            _ => AlgorithmForm::deserialize(StrDeserializer::<serde::de::value::Error>::new(text))
                .map_err(|error| format!("algorithm: {error}")),
        })
    }
}

impl Serialize for Algorithm {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::FixedWindow { carry_over: 0, paced: false } => {
                serializer.serialize_str("fixed_window")
            }
            _ => AlgorithmForm::serialize(self, serializer),
        }
    }
}

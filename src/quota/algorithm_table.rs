//! The serde form of an algorithm: a word or a table.

use serde::{
    de::{Deserialize, Deserializer},
    ser::{Serialize, SerializeStructVariant, Serializer},
};

use super::{Algorithm, MAX_BUCKETS};
use crate::config::de::{self, TableForm};

const ALGORITHMS: &str = "give \"gcra\", \"token_bucket\", \"fixed_window\", \"anchored_window\", \
                          \"sliding_log\", { sliding_window = { buckets = 60 } } or \
                          { fixed_window = { carry_over = 30, paced = true } }";

/// Reads an algorithm from a word or a table.
///
/// - `"gcra"`, `"token_bucket"`, `"fixed_window"`, `"anchored_window"` or `"sliding_log"`
/// - `{ sliding_window = { buckets = 60 } }`
/// - `{ fixed_window = { carry_over = 30, paced = true } }`, where both fields are optional
impl<'de> Deserialize<'de> for Algorithm {
    fn deserialize<D: Deserializer<'de>>(value: D) -> Result<Self, D::Error> {
        de::read::<AlgorithmTable, D>(value)
    }
}

#[derive(Default)]
struct AlgorithmTable(Vec<Algorithm>);

impl TableForm for AlgorithmTable {
    type Read = Algorithm;

    const SHAPE: &'static str = "an algorithm, as \"sliding_log\" or \
                                 { sliding_window = { buckets = 60 } }";

    fn text(text: &str) -> Result<Algorithm, String> {
        match text {
            "gcra" => Ok(Algorithm::Gcra),
            "token_bucket" => Ok(Algorithm::TokenBucket),
            "fixed_window" => Ok(Algorithm::fixed_window()),
            "anchored_window" => Ok(Algorithm::AnchoredWindow),
            "sliding_log" => Ok(Algorithm::SlidingLog),
            _ => Err(format!("algorithm is {text:?}; {ALGORITHMS}")),
        }
    }

    fn field<'de, D: Deserializer<'de>>(&mut self, name: &str, value: D) -> Result<(), D::Error> {
        self.0.push(match name {
            "fixed_window" => de::read::<FixedWindowTable, D>(value)?,
            "sliding_window" => de::read::<SlidingWindowTable, D>(value)?,
            _ => return Err(de::unknown(name, value, ALGORITHMS)),
        });
        Ok(())
    }

    fn read(self) -> Result<Algorithm, String> {
        match self.0[..] {
            [algorithm] => Ok(algorithm),
            _ => Err(format!("algorithm is {} algorithms; {ALGORITHMS}", self.0.len())),
        }
    }
}

#[derive(Default)]
struct FixedWindowTable {
    carry_over: u32,
    paced: bool,
}

impl TableForm for FixedWindowTable {
    type Read = Algorithm;

    const SHAPE: &'static str = "a table, as { carry_over = 30, paced = true }";

    fn text(text: &str) -> Result<Algorithm, String> {
        Err(format!("fixed_window is {text:?}; give {}", Self::SHAPE))
    }

    fn field<'de, D: Deserializer<'de>>(&mut self, name: &str, value: D) -> Result<(), D::Error> {
        match name {
            "carry_over" => self.carry_over = de::number(name, value, 0..=u32::MAX)?,
            "paced" => self.paced = de::flag(name, value)?,
            _ => return Err(de::unknown(name, value, "give carry_over or paced")),
        }
        Ok(())
    }

    fn read(self) -> Result<Algorithm, String> {
        Ok(Algorithm::FixedWindow { carry_over: self.carry_over, paced: self.paced })
    }
}

#[derive(Default)]
struct SlidingWindowTable {
    buckets: Option<u32>,
}

impl TableForm for SlidingWindowTable {
    type Read = Algorithm;

    const SHAPE: &'static str = "a table, as { buckets = 60 }";

    fn text(text: &str) -> Result<Algorithm, String> {
        Err(format!("sliding_window is {text:?}; give {}", Self::SHAPE))
    }

    fn field<'de, D: Deserializer<'de>>(&mut self, name: &str, value: D) -> Result<(), D::Error> {
        match name {
            "buckets" => self.buckets = Some(de::number(name, value, 1..=MAX_BUCKETS)?),
            _ => return Err(de::unknown(name, value, "give buckets")),
        }
        Ok(())
    }

    fn read(self) -> Result<Algorithm, String> {
        let buckets = self.buckets.ok_or("buckets is missing; add it, as buckets = 60")?;
        Ok(Algorithm::SlidingWindow { buckets })
    }
}

impl Serialize for Algorithm {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        const NAME: &str = "Algorithm";
        let word = match *self {
            Self::Gcra => "gcra",
            Self::TokenBucket => "token_bucket",
            Self::FixedWindow { carry_over: 0, paced: false } => "fixed_window",
            Self::AnchoredWindow => "anchored_window",
            Self::SlidingLog => "sliding_log",
            Self::Concurrent => "concurrent",
            Self::FixedWindow { carry_over, paced } => {
                let mut table = serializer.serialize_struct_variant(NAME, 2, "fixed_window", 2)?;
                table.serialize_field("carry_over", &carry_over)?;
                table.serialize_field("paced", &paced)?;
                return table.end();
            }
            Self::SlidingWindow { buckets } => {
                let mut table =
                    serializer.serialize_struct_variant(NAME, 4, "sliding_window", 1)?;
                table.serialize_field("buckets", &buckets)?;
                return table.end();
            }
        };
        serializer.serialize_str(word)
    }
}

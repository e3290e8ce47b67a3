//! The serde form of penalties.

use std::time::Duration;

use serde::{Deserialize, Deserializer, de::Error};

use super::penalty::Penalty;
use crate::{
    config::{self, Setting},
    quota::{Quota, read_time},
};

#[derive(Deserialize)]
#[serde(
    deny_unknown_fields,
    expecting = "a table, as { after = \"20/min\", block = \"15min\" }"
)]
struct PenaltySettings {
    after: Quota,
    block: Option<BlockTimes>,
    forgive: Option<String>,
    capacity: Option<usize>,
}

impl<'de> Deserialize<'de> for Penalty {
    fn deserialize<D: Deserializer<'de>>(value: D) -> Result<Self, D::Error> {
        let settings = PenaltySettings::deserialize(value)?;
        settings.penalty().map_err(D::Error::custom)
    }
}

impl PenaltySettings {
    fn penalty(self) -> Result<Penalty, String> {
        let mut penalty = Penalty::unchecked(self.after);
        if let Some(BlockTimes(times)) = self.block {
            penalty.blocks = times.into();
        }
        if let Some(time) = self.forgive {
            penalty.forgive = read_time("penalty: forgive", &time)?;
        }
        penalty.capacity = self.capacity.unwrap_or(penalty.capacity);
        penalty.checked()
    }
}

/// The times of the first block, the second, and so on.
struct BlockTimes(Vec<Duration>);

impl<'de> Deserialize<'de> for BlockTimes {
    fn deserialize<D: Deserializer<'de>>(value: D) -> Result<Self, D::Error> {
        config::read(value)
    }
}

impl Setting for BlockTimes {
    const FORM: &'static str = "a time, as \"15min\", or a list of them";

    fn from_text(text: &str) -> Result<Self, String> {
        read_time("penalty: block", text).map(|time| Self(vec![time]))
    }

    fn from_list<'de, D: Deserializer<'de>>(list: D) -> Result<Self, D::Error> {
        let times = Vec::<String>::deserialize(list)?.into_iter();
        let times = times
            .map(|time| read_time("penalty: block", &time))
            .collect::<Result<_, _>>();
        times.map(Self).map_err(D::Error::custom)
    }
}

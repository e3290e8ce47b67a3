//! Settings that are written as text, as a table or as a list.

use std::{fmt, marker::PhantomData};

use serde::de::{
    Deserialize, DeserializeOwned, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess,
    Unexpected, Visitor,
    value::{MapAccessDeserializer, SeqAccessDeserializer},
};

/// A setting with several forms.
pub(crate) trait Setting: Sized {
    /// The expected form, for error messages.
    const FORM: &'static str;
    /// The fields of a table.
    type Table: DeserializeOwned + TryInto<Self, Error: fmt::Display>;

    /// Reads the text form.
    fn from_text(text: &str) -> Result<Self, String>;

    /// Creates the setting from a list of tables or texts, or returns `None` if it is not a list.
    fn from_list(_list: Vec<Self::Table>) -> Option<Result<Self, String>> {
        None
    }
}

/// Reads a setting in any of its forms.
pub(crate) fn read<'de, T: Setting, D: Deserializer<'de>>(value: D) -> Result<T, D::Error> {
    value.deserialize_any(SettingVisitor(PhantomData))
}

struct SettingVisitor<T>(PhantomData<T>);

impl<'de, T: Setting> Visitor<'de> for SettingVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::FORM)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        T::from_text(text).map_err(E::custom)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<T, A::Error> {
        let table = T::Table::deserialize(MapAccessDeserializer::new(&mut map))?;
        // An enum reads a single field.
        if map.next_key::<IgnoredAny>()?.is_some() {
            return Err(A::Error::custom(format!("too many fields; give {}", T::FORM)));
        }
        table.try_into().map_err(A::Error::custom)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<T, A::Error> {
        let list = Vec::deserialize(SeqAccessDeserializer::new(list))?;
        let setting = T::from_list(list);
        let wrong = || A::Error::invalid_type(Unexpected::Seq, &self);
        setting.ok_or_else(wrong)?.map_err(A::Error::custom)
    }
}

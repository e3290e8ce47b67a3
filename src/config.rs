//! Settings that are written as text, as a table or as a list.

use std::{fmt, marker::PhantomData};

use serde::de::{
    Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Unexpected, Visitor,
    value::{MapAccessDeserializer, SeqAccessDeserializer},
};

/// A setting with several forms.
pub(crate) trait Setting: Sized {
    /// The expected form, for error messages.
    const FORM: &'static str;

    /// Reads the text form.
    fn from_text(text: &str) -> Result<Self, String>;

    /// Reads the fields of a table.
    fn from_table<'de, D: Deserializer<'de>>(_table: D) -> Result<Self, D::Error> {
        Err(D::Error::invalid_type(Unexpected::Map, &Self::FORM))
    }

    /// Reads a list.
    fn from_list<'de, D: Deserializer<'de>>(_list: D) -> Result<Self, D::Error> {
        Err(D::Error::invalid_type(Unexpected::Seq, &Self::FORM))
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
        let setting = T::from_table(MapAccessDeserializer::new(&mut map))?;
        // An enum reads a single field.
        if map.next_key::<IgnoredAny>()?.is_some() {
            return Err(A::Error::custom(format!(
                "too many fields; give {}",
                T::FORM
            )));
        }
        Ok(setting)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<T, A::Error> {
        T::from_list(SeqAccessDeserializer::new(list))
    }
}

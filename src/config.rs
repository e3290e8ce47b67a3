//! Settings that are written as text or as a table.

use std::{fmt, marker::PhantomData};

use serde::de::{
    Deserialize, Deserializer, Error, IgnoredAny, MapAccess, Visitor, value::MapAccessDeserializer,
};

/// Reads a value from text with `text`, or from a table with the fields of `Table`.
///
/// `form` is the expected form, for error messages.
pub(crate) fn text_or_table<'de, T, Table, D>(
    value: D,
    form: &'static str,
    text: fn(&str) -> Result<T, String>,
) -> Result<T, D::Error>
where
    Table: Deserialize<'de> + TryInto<T, Error: fmt::Display>,
    D: Deserializer<'de>,
{
    value.deserialize_any(TextOrTable { form, text, table: PhantomData::<Table> })
}

struct TextOrTable<T, Table> {
    form: &'static str,
    text: fn(&str) -> Result<T, String>,
    table: PhantomData<Table>,
}

impl<'de, T, Table> Visitor<'de> for TextOrTable<T, Table>
where
    Table: Deserialize<'de> + TryInto<T, Error: fmt::Display>,
{
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.form)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        (self.text)(text).map_err(E::custom)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<T, A::Error> {
        let table = Table::deserialize(MapAccessDeserializer::new(&mut map))?;
        // An enum reads a single field.
        if map.next_key::<IgnoredAny>()?.is_some() {
            return Err(A::Error::custom(format!("too many fields; give {}", self.form)));
        }
        table.try_into().map_err(A::Error::custom)
    }
}

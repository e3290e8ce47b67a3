//! Functions that read settings field by field.
//!
//! Their errors name the field, its value and the fix. A plain serde error (`expected u32`) does
//! not.

use std::{fmt, marker::PhantomData, ops::RangeInclusive};

use serde::{
    de::{
        Deserialize, DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess,
        Visitor,
    },
    ser::{Serialize, SerializeMap},
};

/// A setting that is written as text or as a table.
pub(crate) trait TableForm: Default {
    type Read;

    /// The expected form, in words for error messages.
    const SHAPE: &'static str;

    /// Reads the text form.
    fn text(text: &str) -> Result<Self::Read, String>;

    /// Reads one field of the table form.
    fn field<'de, D: Deserializer<'de>>(&mut self, name: &str, value: D) -> Result<(), D::Error>;

    /// Creates the value after all fields were read.
    fn read(self) -> Result<Self::Read, String>;
}

/// Reads a [`TableForm`] from a table or from text.
pub(crate) fn read<'de, T: TableForm, D: Deserializer<'de>>(value: D) -> Result<T::Read, D::Error> {
    value.deserialize_any(TableVisitor::<T>(PhantomData))
}

struct TableVisitor<T>(PhantomData<T>);

impl<'de, T: TableForm> Visitor<'de> for TableVisitor<T> {
    type Value = T::Read;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::SHAPE)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T::Read, E> {
        T::text(text).map_err(E::custom)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<T::Read, A::Error> {
        let (mut table, mut seen) = (T::default(), Vec::new());
        while let Some(name) = map.next_key::<String>()? {
            map.next_value_seed(Field { table: &mut table, name: &name, seen: &seen })?;
            seen.push(name);
        }
        table.read().map_err(A::Error::custom)
    }
}

/// A serde seed that reads one field. Errors of a seed include the position in the file.
struct Field<'a, T> {
    table: &'a mut T,
    name: &'a String,
    seen: &'a [String],
}

impl<'de, T: TableForm> DeserializeSeed<'de> for Field<'_, T> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, value: D) -> Result<(), D::Error> {
        if self.seen.contains(self.name) {
            return Err(D::Error::custom(format!("{} is given twice; drop one", self.name)));
        }
        self.table.field(self.name, value)
    }
}

/// Reads a whole number in `range`.
pub(crate) fn number<'de, D: Deserializer<'de>>(
    field: &str,
    value: D,
    range: RangeInclusive<u32>,
) -> Result<u32, D::Error> {
    let (value, least, most) = (FieldValue::deserialize(value)?, range.start(), range.end());
    let number = match value {
        FieldValue::Whole(number) => {
            u32::try_from(number).ok().filter(|number| range.contains(number))
        }
        _ => None,
    };
    let fix = format!("give a whole number from {least} to {most}");
    number.ok_or_else(|| wrong(field, &value, &fix))
}

pub(crate) fn flag<'de, D: Deserializer<'de>>(field: &str, value: D) -> Result<bool, D::Error> {
    match FieldValue::deserialize(value)? {
        FieldValue::Flag(flag) => Ok(flag),
        value => Err(wrong(field, &value, "give true or false")),
    }
}

/// Reads text and parses it with `read`.
///
/// If the value is not text, the error message ends with `fix`.
pub(crate) fn text<'de, T, D: Deserializer<'de>>(
    field: &str,
    value: D,
    fix: &str,
    read: impl FnOnce(&str) -> Result<T, String>,
) -> Result<T, D::Error> {
    match FieldValue::deserialize(value)? {
        FieldValue::Text(text) => read(&text).map_err(D::Error::custom),
        value => Err(wrong(field, &value, fix)),
    }
}

/// Returns the error for an unknown field. The error message ends with `fix`.
pub(crate) fn unknown<'de, D: Deserializer<'de>>(name: &str, value: D, fix: &str) -> D::Error {
    match FieldValue::deserialize(value) {
        Ok(value) => D::Error::custom(format!("unknown field {name:?} (set to {value}); {fix}")),
        Err(error) => error,
    }
}

fn wrong<E: Error>(field: &str, value: &FieldValue, fix: &str) -> E {
    E::custom(format!("{field} is {value}; {fix}"))
}

/// Writes a field, unless it has its default.
pub(crate) fn entry<T: Serialize + PartialEq, M: SerializeMap>(
    table: &mut M,
    name: &str,
    value: &T,
    default: &T,
) -> Result<(), M::Error> {
    if value == default { Ok(()) } else { table.serialize_entry(name, value) }
}

/// A value of any type.
enum FieldValue {
    Flag(bool),
    Whole(u64),
    Text(String),
    /// A value of another type, as printed text.
    Other(String),
}

impl fmt::Display for FieldValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(flag) => write!(f, "{flag}"),
            Self::Whole(number) => write!(f, "{number}"),
            Self::Text(text) => write!(f, "{text:?}"),
            Self::Other(shown) => f.write_str(shown),
        }
    }
}

impl<'de> Deserialize<'de> for FieldValue {
    fn deserialize<D: Deserializer<'de>>(value: D) -> Result<Self, D::Error> {
        value.deserialize_any(AnyValue)
    }
}

struct AnyValue;

impl<'de> Visitor<'de> for AnyValue {
    type Value = FieldValue;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_bool<E>(self, flag: bool) -> Result<FieldValue, E> {
        Ok(FieldValue::Flag(flag))
    }

    fn visit_u64<E>(self, number: u64) -> Result<FieldValue, E> {
        Ok(FieldValue::Whole(number))
    }

    fn visit_i64<E>(self, number: i64) -> Result<FieldValue, E> {
        let negative = |_| FieldValue::Other(number.to_string());
        Ok(u64::try_from(number).map_or_else(negative, FieldValue::Whole))
    }

    fn visit_f64<E>(self, number: f64) -> Result<FieldValue, E> {
        Ok(FieldValue::Other(format!("{number:?}")))
    }

    fn visit_str<E>(self, text: &str) -> Result<FieldValue, E> {
        Ok(FieldValue::Text(text.to_owned()))
    }

    fn visit_unit<E>(self) -> Result<FieldValue, E> {
        Ok(FieldValue::Other("empty".into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<FieldValue, A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(FieldValue::Other("a list".into()))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut table: A) -> Result<FieldValue, A::Error> {
        while table.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(FieldValue::Other("a table".into()))
    }
}

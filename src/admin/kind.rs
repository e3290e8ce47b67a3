//! Kinds of keys as text and as JSON.

use std::borrow::Cow;

use serde_json::{Value, json};

use crate::key::KeyKind;

/// Returns the kinds that a key of kind `kind` may have.
pub(super) fn alternatives(kind: &KeyKind) -> Cow<'_, [KeyKind]> {
    const ALL: &[KeyKind] =
        &[KeyKind::Text, KeyKind::Number, KeyKind::Any, KeyKind::Everyone, KeyKind::Unidentified];
    match kind {
        KeyKind::Any => ALL.into(),
        KeyKind::OneOf(kinds) => {
            kinds.iter().flat_map(|kind| alternatives(kind).into_owned()).collect()
        }
        kind => std::slice::from_ref(kind).into(),
    }
}

/// Returns the kind as a plural noun, for messages such as "counts addresses".
pub(super) fn text(kind: &KeyKind) -> String {
    let all =
        |kinds: &[KeyKind], between: &str| kinds.iter().map(text).collect::<Vec<_>>().join(between);
    match kind {
        KeyKind::Any => "keys of any kind".into(),
        KeyKind::Text => "text".into(),
        KeyKind::Number => "numbers".into(),
        KeyKind::Address { .. } => "addresses".into(),
        KeyKind::Everyone => "all requests together".into(),
        KeyKind::Unidentified => "requests without an identity together".into(),
        KeyKind::OneOf(kinds) => all(kinds, " or "),
        KeyKind::Tuple(kinds) => format!("lists of {}", all(kinds, " and ")),
    }
}

/// Returns example keys of the kind.
pub(super) fn forms(kind: &KeyKind) -> String {
    if *kind == KeyKind::Any {
        return "text, {\"address\": ..}, {\"number\": ..}, {\"bytes\": ..}, {\"everyone\": true}, \
                {\"unidentified\": true} or a list of these"
            .into();
    }
    let forms = alternatives(kind);
    let forms: Vec<_> = forms.iter().map(|kind| example(kind).to_string()).collect();
    forms.join(" or ")
}

fn example(kind: &KeyKind) -> Value {
    match kind {
        KeyKind::Any | KeyKind::Text => json!("alice"),
        KeyKind::Number => json!({ "number": 7 }),
        KeyKind::Address { .. } => json!({ "address": "203.0.113.9" }),
        KeyKind::Everyone => json!({ "everyone": true }),
        KeyKind::Unidentified => json!({ "unidentified": true }),
        KeyKind::OneOf(kinds) => kinds.first().map_or(Value::Null, example),
        KeyKind::Tuple(kinds) => kinds.iter().map(example).collect(),
    }
}

/// Returns the value in an unambiguous form, such as `{"text": "7"}`.
pub(super) fn written(value: &Value, kind: &KeyKind) -> Value {
    match (value, kind) {
        (Value::String(_), KeyKind::Text) => json!({ "text": value }),
        (Value::String(_) | Value::Number(_), KeyKind::Number) => json!({ "number": value }),
        (Value::String(_), KeyKind::Any | KeyKind::Address { .. }) => json!({ "address": value }),
        _ => value.clone(),
    }
}

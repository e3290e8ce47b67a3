//! Strict check of Prometheus' text exposition format, version 0.0.4.

use std::collections::{BTreeMap, BTreeSet};

/// Returns the first error in `text`.
///
/// It checks names, types, the order of samples, numbers, and a line feed at the end.
pub(crate) fn fault(text: &str) -> Option<String> {
    let mut kinds = BTreeMap::new();
    let (mut samples, mut closed) = (BTreeSet::new(), BTreeSet::new());
    let mut current = String::new();
    if !text.ends_with('\n') {
        return Some("no line feed at the end".into());
    }
    for line in text.lines().filter(|line| !line.is_empty()) {
        let wrong = |why: &str| Some(format!("{why}: {line}"));
        let (name, labels, value) = match line.strip_prefix("# ") {
            Some(comment) => {
                let mut words = comment.splitn(3, ' ');
                let (what, name) = (words.next(), words.next().unwrap_or_default());
                let rest = words.next().unwrap_or_default();
                match what {
                    Some("HELP") if is_name(name) && !rest.is_empty() => {}
                    Some("TYPE") if is_name(name) => {
                        let known = ["counter", "gauge", "histogram", "summary", "untyped"];
                        if !known.contains(&rest) || kinds.insert(name, rest).is_some() {
                            return wrong("no type, or a second one");
                        }
                    }
                    _ => return wrong("neither help nor type"),
                }
                (name, "", "0")
            }
            None => match sample(line) {
                Some(parts) => parts,
                None => return wrong("no sample"),
            },
        };
        let family = family(name, &kinds);
        if family != current {
            if !closed.insert(family.to_owned()) {
                return wrong("its family is split");
            }
            family.clone_into(&mut current);
        }
        if !line.starts_with('#') {
            if !kinds.contains_key(family) {
                return wrong("no type before it");
            }
            if value.parse::<f64>().is_err() {
                return wrong("no number");
            }
            if !samples.insert((name, labels)) {
                return wrong("twice");
            }
        }
    }
    samples.is_empty().then(|| "no sample".into())
}

/// A summary and a histogram have samples with further names.
fn family<'a>(name: &'a str, kinds: &BTreeMap<&str, &str>) -> &'a str {
    let short = ["_sum", "_count", "_bucket"].iter().find_map(|end| name.strip_suffix(end));
    match short.and_then(|short| Some((short, *kinds.get(short)?))) {
        Some((short, "summary" | "histogram")) => short,
        _ => name,
    }
}

/// Splits a sample into name, labels and value.
fn sample(line: &str) -> Option<(&str, &str, &str)> {
    let (before, value) = line.rsplit_once(' ')?;
    let (name, labels) = match before.split_once('{') {
        Some((name, rest)) => (name, rest.strip_suffix('}')?),
        None => (before, ""),
    };
    let mut rest = labels;
    while !rest.is_empty() {
        let (label, quoted) = rest.split_once("=\"")?;
        let mut escaped = false;
        let end = quoted.bytes().position(|byte| {
            let ends = byte == b'"' && !escaped;
            escaped = byte == b'\\' && !escaped;
            ends
        })?;
        if !is_name(label) || label.contains(':') {
            return None;
        }
        rest = &quoted[end + 1..];
        if !rest.is_empty() {
            rest = rest.strip_prefix(',')?;
        }
    }
    is_name(name).then_some((name, labels, value))
}

fn is_name(name: &str) -> bool {
    let start = |c: char| c.is_ascii_alphabetic() || c == '_' || c == ':';
    name.starts_with(start) && name.chars().all(|c| start(c) || c.is_ascii_digit())
}

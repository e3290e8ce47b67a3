//! A copy of each file with a switch at every place.
//!
//! Comments mark the switches and their changes, so that an error of the compiler names its change.

use std::{collections::HashSet, iter::Peekable, ops::Range, slice};

use crate::find::{Form, Place};

/// The module of the copy that chooses a change by the variable `MUTANT`. The variable
/// `MUTANT_PLACES` names a file that receives the number of each place that the process reaches.
pub(crate) const MODULE: &str = r#"
use std::{env, fs::{File, OpenOptions}, io::Write, sync::{LazyLock, Mutex, atomic::{AtomicBool, Ordering::Relaxed}}};

static CHOSEN: LazyLock<u32> =
    LazyLock::new(|| env::var("MUTANT").map_or(0, |it| it.parse().expect("a number")));
static FILE: LazyLock<Option<Mutex<File>>> = LazyLock::new(|| {
    let path = env::var_os("MUTANT_PLACES")?;
    Some(Mutex::new(OpenOptions::new().create(true).append(true).open(path).expect("a file")))
});
static REACHED: [AtomicBool; COUNT] = [const { AtomicBool::new(false) }; COUNT];

pub(crate) fn at(place: u32) -> u32 {
    if let Some(file) = &*FILE && !REACHED[place as usize].swap(true, Relaxed) {
        file.lock().expect("a file").write_all(format!("{place}\n").as_bytes()).expect("written");
    }
    *CHOSEN
}
"#;

/// Returns a file with a switch for every place whose changes are not all `dropped`.
pub(crate) fn switched(text: &str, places: &[Place], dropped: &HashSet<u32>) -> String {
    copy(text, 0..text.len(), &mut places.iter().peekable(), dropped)
}

/// Copies a part of the text, with the places within it.
fn copy(
    text: &str,
    part: Range<usize>,
    places: &mut Peekable<slice::Iter<'_, Place>>,
    dropped: &HashSet<u32>,
) -> String {
    let (mut out, mut at) = (String::new(), part.start);
    while let Some(place) = places.next_if(|place| place.range.end <= part.end) {
        out.push_str(&text[at..place.range.start]);
        at = place.range.end;
        let original = copy(text, place.range.clone(), places, dropped);
        out.push_str(&switch(place, original, dropped));
    }
    out.push_str(&text[at..part.end]);
    out
}

fn switch(place: &Place, original: String, dropped: &HashSet<u32>) -> String {
    let (open, close) = if place.form == Form::Statement { ('{', '}') } else { ('(', ')') };
    let left = place.changes.iter().filter(|change| !dropped.contains(&change.id));
    let arm = |id, code| format!("{id} => {open}/*<{id}*/{code}/*>*/{close},");
    let arms: String = left.map(|change| arm(change.id, &change.code)).collect();
    if arms.is_empty() {
        return original;
    }
    let id = place.id;
    let choice =
        |original| format!("match crate::mutant::at({id}) {{{arms} _ => {open}{original}{close}}}");
    match place.form {
        Form::Value => format!("/*[{id}*/({})/*]*/", choice(&*original)),
        Form::Statement => format!("/*[{id}*/{}/*]*/", choice(&*original)),
        Form::Guard => format!("/*[{id}*/ if ({})/*]*/", choice("true")),
    }
}

/// The part of a switched file that a switch or a change takes.
#[derive(Debug, PartialEq)]
pub(crate) struct Marked {
    pub(crate) id: u32,
    pub(crate) is_change: bool,
    pub(crate) range: Range<usize>,
}

/// Returns the marked parts, each after those within it.
pub(crate) fn marked(text: &str) -> Vec<Marked> {
    let (mut open, mut found) = (Vec::new(), Vec::new());
    for (at, _) in text.match_indices("/*") {
        let rest = &text[at + 2..];
        let (Some(kind), Some(length)) = (rest.chars().next(), rest.find("*/")) else { continue };
        let number = rest[..length].get(1..).and_then(|number| number.parse().ok());
        match (kind, number) {
            ('[' | '<', Some(id)) => open.push((id, at)),
            (']' | '>', _) if length == 1 => {
                let (id, start) = open.pop().expect("a mark that opens");
                found.push(Marked { id, is_change: kind == '>', range: start..at });
            }
            _ => {}
        }
    }
    found
}

/// Returns the changes that an error is about, by its main and its other spans in one file: changes
/// that contain a main span, or else those of the innermost switch around one, or else those that
/// contain another span, or else those between the spans.
pub(crate) fn blamed(
    marked: &[Marked],
    places: &[Place],
    main: &[Range<usize>],
    other: &[Range<usize>],
) -> Vec<u32> {
    let around = |part: &Marked, spans: &[Range<usize>]| {
        spans.iter().any(|it| part.range.start <= it.start && it.end <= part.range.end)
    };
    let changes = |of: &dyn Fn(&Marked) -> bool| -> Vec<u32> {
        marked.iter().filter(|it| it.is_change && of(it)).map(|it| it.id).collect()
    };
    let found = changes(&|it| around(it, main));
    if !found.is_empty() {
        return found;
    }
    let switch = marked.iter().find(|it| !it.is_change && around(it, main));
    if let Some(place) = switch.and_then(|it| places.iter().find(|place| place.id == it.id)) {
        return place.changes.iter().map(|change| change.id).collect();
    }
    let found = changes(&|it| around(it, other));
    if !found.is_empty() {
        return found;
    }
    let all = [main, other].concat();
    let start = all.iter().map(|it| it.start).min().unwrap_or_default();
    let end = all.iter().map(|it| it.end).max().unwrap_or_default();
    changes(&|it| start <= it.range.start && it.range.end <= end)
}

//! The parts of a picture: marks, labels, the account and the axis.
#![allow(clippy::cast_possible_truncation, reason = "pixels and rows are few")]

use std::error::Error;

use plotters::{
    coord::Shift,
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};

use crate::{
    pictures::Picture,
    scene::{END, Fate, PHASES, Scene},
};

pub(crate) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
pub(crate) type Drawn = Result<(), Box<dyn Error>>;

/// Every colour with its dark variant; the first is the background.
pub(crate) const COLOURS: [(RGBColor, &str); 7] = [
    (RGBColor(0xff, 0xff, 0xff), "#151B23"),
    (INK, "#E6EDF3"),
    (FAINT, "#3D444D"),
    (ADMITTED, "#58A6FF"),
    (DENIED, "#FF8A65"),
    (WAITING, "#BC9CFF"),
    (LEFT, "#1F4B7A"),
];

const INK: RGBColor = RGBColor(0x1f, 0x29, 0x33);
const FAINT: RGBColor = RGBColor(0xc3, 0xcc, 0xd6);
// Marks also differ in shape.
const ADMITTED: RGBColor = RGBColor(0x0b, 0x5f, 0xa5);
const DENIED: RGBColor = RGBColor(0xc2, 0x41, 0x0c);
const WAITING: RGBColor = RGBColor(0x6b, 0x4f, 0xa0);
const LEFT: RGBColor = RGBColor(0x9c, 0xc3, 0xe6);

pub(crate) const WIDTH: i32 = 440;
/// The left and right end of the time axis, and the position of the numbers beside the account.
const FROM: i32 = 24;
const TO: i32 = WIDTH - 14;
/// The minimum distance between two calls of one row, in milliseconds.
const APART: u64 = 125;
const MOST_LEFT: u32 = 6;

/// Returns the position of a time.
fn x(millis: u64) -> i32 {
    FROM + (millis as i32) * (TO - FROM) / END as i32
}

/// Returns the position of a number of units, in an account between two heights.
fn height(units: u32, (top, bottom): (i32, i32)) -> i32 {
    bottom - (bottom - top) * units as i32 / MOST_LEFT as i32
}

fn text(area: &Area<'_>, words: &str, at: (i32, i32), side: HPos, font: (i32, FontStyle)) -> Drawn {
    // The backend divides by this factor if a font is missing.
    let font = FontDesc::new(FontFamily::SansSerif, f64::from(font.0) * 1.24, font.1);
    let style = font.color(&INK).pos(Pos::new(side, VPos::Top));
    Ok(area.draw_text(words, &style, at)?)
}

pub(crate) fn heading(area: &Area<'_>, words: &str, at: (i32, i32), size: i32) -> Drawn {
    text(area, words, at, HPos::Left, (size, FontStyle::Bold))
}

pub(crate) fn label(area: &Area<'_>, words: &str, at: (i32, i32), side: HPos) -> Drawn {
    text(area, words, at, side, (13, FontStyle::Normal))
}

/// Labels the phases of the calls.
pub(crate) fn phases(area: &Area<'_>, y: i32) -> Drawn {
    PHASES.into_iter().try_for_each(|(words, at)| label(area, words, (x(at), y), HPos::Center))
}

pub(crate) fn swatch(area: &Area<'_>, words: &str, (x, y): (i32, i32)) -> Drawn {
    area.draw(&Rectangle::new([(x, y + 2), (x + 12, y + 10)], LEFT.filled()))?;
    label(area, words, (x + 18, y), HPos::Left)
}

fn line(area: &Area<'_>, from: (i32, i32), to: (i32, i32), colour: RGBColor) -> Drawn {
    Ok(area.draw(&PathElement::new([from, to], colour))?)
}

/// Draws one call at its position. A call that waited also has a line to its start.
fn mark(area: &Area<'_>, at: (i32, i32), until: i32, fate: &Fate, size: i32) -> Drawn {
    let (left, top, right, bottom) = (at.0 - size, at.1 - size, at.0 + size, at.1 + size);
    match fate {
        Fate::Admitted => area.draw(&Circle::new(at, size, ADMITTED.filled()))?,
        // A cross in one stroke.
        Fate::Denied => area.draw(&PathElement::new(
            [(left, top), (right, bottom), at, (right, top), (left, bottom)],
            DENIED,
        ))?,
        Fate::Waited(_) => {
            line(area, (right, at.1), (until, at.1), WAITING)?;
            area.draw(&Circle::new(at, size, WAITING))?;
            area.draw(&Circle::new((until, at.1), size, ADMITTED.filled()))?;
        }
    }
    Ok(())
}

/// Draws the legend from the left; `say` returns the text before each word.
pub(crate) fn legend(
    area: &Area<'_>,
    y: i32,
    pitch: i32,
    say: impl Fn(usize) -> Option<String>,
) -> Drawn {
    let kinds =
        [(Fate::Admitted, "allowed"), (Fate::Denied, "denied"), (Fate::Waited(0), "waited")];
    let mut left = 12;
    for (place, (fate, word)) in kinds.into_iter().enumerate() {
        let Some(before) = say(place) else { continue };
        let until = if matches!(fate, Fate::Waited(_)) { left + 18 } else { left };
        mark(area, (left, y + 6), until, &fate, 3)?;
        let words = format!("{before}{word}");
        label(area, &words, (until + 8, y), HPos::Left)?;
        left = until + pitch;
    }
    Ok(())
}

/// Labels the highest load on the service behind the limit.
pub(crate) fn most(area: &Area<'_>, scene: &Scene, y: i32) -> Drawn {
    let words = format!("most in 1 s: {}", scene.most_in_a_second());
    label(area, &words, (TO, y), HPos::Right)
}

/// Draws the starts and ends of windows.
pub(crate) fn edges(
    area: &Area<'_>,
    scene: &Scene,
    picture: &Picture,
    (top, bottom): (i32, i32),
) -> Drawn {
    scene
        .edges(&picture.quota)
        .into_iter()
        .try_for_each(|at| line(area, (x(at), top), (x(at), bottom), FAINT))
}

/// Draws the calls upwards from `bottom`, each in the lowest free row.
pub(crate) fn calls(area: &Area<'_>, scene: &Scene, bottom: i32, pitch: i32, size: i32) -> Drawn {
    let mut rows: Vec<u64> = Vec::new(); // the time from which each row is free
    for call in &scene.calls {
        let until = match call.fate {
            Fate::Waited(wait) => call.at + wait,
            _ => call.at,
        };
        let row = rows.iter().position(|free| *free <= call.at).unwrap_or_else(|| {
            rows.push(0);
            rows.len() - 1
        });
        rows[row] = until + APART;
        let y = bottom - size - pitch * row as i32;
        mark(area, (x(call.at), y), x(until), &call.fate, size)?;
    }
    Ok(())
}

/// Draws the units left, as an area between two heights.
pub(crate) fn account(area: &Area<'_>, scene: &Scene, between: (i32, i32)) -> Drawn {
    let mut outline = vec![(FROM, between.1)];
    for (at, units) in &scene.left {
        outline.extend(outline.last().map(|(_, before)| (x(*at), *before)));
        outline.push((x(*at), height(*units, between)));
    }
    outline.extend(outline.last().map(|(_, y)| (TO, *y)));
    outline.push((TO, between.1));
    outline.dedup();
    Ok(area.draw(&Polygon::new(outline, LEFT))?)
}

/// Labels a number of units at its height.
pub(crate) fn units(area: &Area<'_>, units: u32, between: (i32, i32)) -> Drawn {
    label(area, &units.to_string(), (FROM - 6, height(units, between) - 6), HPos::Right)
}

/// Draws a line with a tick for each second.
pub(crate) fn ticks(area: &Area<'_>, y: i32) -> Drawn {
    line(area, (FROM, y), (TO, y), INK)?;
    (0..=END / 1_000)
        .map(|second| x(second * 1_000))
        .try_for_each(|at| line(area, (at, y), (at, y + 3), INK))
}

/// Draws the time axis: ticks, and the seconds below.
pub(crate) fn axis(area: &Area<'_>, y: i32) -> Drawn {
    ticks(area, y)?;
    (0..=END / 1_000).try_for_each(|second| {
        label(area, &format!("{second} s"), (x(second * 1_000), y + 8), HPos::Center)
    })
}

//! The pictures: a mark per call, and the units left below.
#![allow(clippy::cast_possible_truncation, reason = "there are few pictures")]

use std::error::Error;

use plotters::{prelude::*, style::text_anchor::HPos};

use crate::{
    parts::{
        Area, COLOURS, Drawn, WIDTH, account, axis, calls, edges, heading, label, legend, most,
        phases, swatch, ticks, units,
    },
    pictures::Picture,
    scene::Scene,
};

/// Draws one algorithm.
pub(crate) fn single(picture: &Picture) -> Result<String, Box<dyn Error>> {
    const LANE: i32 = 98;
    const ACCOUNT: i32 = 224;
    const AXIS: i32 = 276;
    draw(AXIS + 24, |area| {
        let scene = Scene::play(picture.quota, picture.patience);
        heading(area, picture.title, (8, 7), 15)?;
        label(area, picture.line, (8, 27), HPos::Left)?;
        label(area, picture.take, (8, 45), HPos::Left)?;
        let tally = scene.tally();
        legend(area, 64, 100, |kind| (tally[kind] > 0).then(|| format!("{} ", tally[kind])))?;
        most(area, &scene, 64)?;
        phases(area, 84)?;
        edges(area, &scene, picture, (LANE, ACCOUNT - 20))?;
        edges(area, &scene, picture, (ACCOUNT, AXIS))?;
        calls(area, &scene, ACCOUNT - 22, 9, 3)?;
        label(area, "units left", (8, ACCOUNT - 16), HPos::Left)?;
        account(area, &scene, (ACCOUNT, AXIS))?;
        [0, 4].into_iter().try_for_each(|some| units(area, some, (ACCOUNT, AXIS)))?;
        axis(area, AXIS)
    })
}

/// Draws all algorithms over one time axis.
pub(crate) fn overview(pictures: &[Picture]) -> Result<String, Box<dyn Error>> {
    const HEAD: i32 = 94;
    const PANEL: i32 = 132;
    let bottom = HEAD + PANEL * pictures.len() as i32;
    draw(bottom + 24, |area| {
        heading(area, "One series of calls, limit 4 per second", (8, 7), 15)?;
        legend(area, 28, 84, |_| Some(String::new()))?;
        swatch(area, "units left", (300, 28))?;
        phases(area, 48)?;
        axis(area, HEAD - 26)?;
        for (place, picture) in pictures.iter().enumerate() {
            let top = HEAD + PANEL * place as i32;
            let scene = Scene::play(picture.quota, picture.patience);
            heading(area, picture.title, (8, top + 4), 13)?;
            let account_at = (top + PANEL - 26, top + PANEL - 4);
            most(area, &scene, top + 4)?;
            label(area, picture.take, (8, top + 21), HPos::Left)?;
            edges(area, &scene, picture, (top + 36, account_at.1))?;
            calls(area, &scene, account_at.0 - 6, 5, 2)?;
            account(area, &scene, account_at)?;
            ticks(area, account_at.1)?;
        }
        axis(area, bottom - 4)
    })
}

fn draw(height: i32, on: impl FnOnce(&Area<'_>) -> Drawn) -> Result<String, Box<dyn Error>> {
    let mut svg = String::new();
    let area = SVGBackend::with_string(&mut svg, (WIDTH as u32, height as u32)).into_drawing_area();
    area.fill(&COLOURS[0].0)?;
    on(&area)?;
    area.present()?;
    drop(area);
    Ok(tidy(&svg, height))
}

/// Removes default attributes, enlarges the picture where there is space, and adds the dark
/// colours.
fn tidy(svg: &str, height: i32) -> String {
    let drawn = format!("width=\"{WIDTH}\" height=\"{height}\" viewBox");
    let shown = format!("width=\"{}\" height=\"{}\" viewBox", WIDTH * 5 / 4, height * 5 / 4);
    svg.replacen(&drawn, &shown, 1)
        .replace(" opacity=\"1\"", "")
        .replace(" stroke=\"none\" stroke-width=\"1\"", "")
        .replace(" stroke-width=\"1\"", "")
        .replace(" \"/>", "\"/>")
        .replace("</svg>", &format!("{}</svg>", dark(svg)))
}

/// Returns a style for readers with a dark theme, with the colours that the picture uses.
fn dark(svg: &str) -> String {
    let mut style = String::from("<style>@media(prefers-color-scheme:dark){");
    for (RGBColor(r, g, b), dark) in COLOURS {
        for part in ["fill", "stroke"] {
            let light = format!("{part}=\"#{r:02X}{g:02X}{b:02X}\"");
            if svg.contains(&light) {
                style += &format!("[{light}]{{{part}:{dark}}}");
            }
        }
    }
    style + "}</style>\n"
}

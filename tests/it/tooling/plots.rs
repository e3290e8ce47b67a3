//! The pictures of the guide, which must equal the program's output.

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    process,
};

use roxmltree::{Document, Node};

/// Largest size of a picture in bytes: a page loads all of them.
const LARGEST: usize = 12_000;
const LARGEST_OVERVIEW: usize = 50_000;
const CALLS: usize = 39;
const OVERVIEW: &str = "overview.svg";

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

fn files(folder: &Path) -> BTreeMap<String, String> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{folder:?}: {error}"));
    let read = |path: PathBuf| {
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        (name, fs::read_to_string(&path).expect("text"))
    };
    entries.map(|entry| read(entry.expect("an entry").path())).collect()
}

fn kept() -> BTreeMap<String, String> {
    files(&root().join("src/guide/plots"))
}

/// All pictures except the overview, which contains all others.
fn single() -> BTreeMap<String, String> {
    let mut pictures = kept();
    pictures.retain(|name, _| name.ends_with(".svg") && name != OVERVIEW);
    pictures
}

fn words<'a>(picture: &'a Document<'_>) -> Vec<&'a str> {
    let texts = picture.descendants().filter(|node| node.has_tag_name("text"));
    texts.filter_map(|node| node.text()).map(str::trim).collect()
}

#[test]
fn the_stored_pictures_equal_the_output_of_the_program() {
    let name = format!("plots-{}", process::id());
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let run =
        crate::support::programs::example("plot").arg("--out").arg(&out).output().expect("runs");
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let (drawn, kept) = (files(&out), kept());
    fs::remove_dir_all(&out).expect("removed");

    assert_eq!(drawn.keys().collect::<Vec<_>>(), kept.keys().collect::<Vec<_>>());
    for (name, text) in &drawn {
        // compares without printing everything
        assert!(
            text == &kept[name],
            "{name} differs: run `cargo run -p dev --example plot -- --out src/guide/plots`"
        );
    }
}

#[test]
fn the_chapter_shows_every_picture_once_as_a_file_and_in_rustdoc() {
    let chapter = fs::read_to_string(root().join("src/guide/algorithms.md")).expect("a chapter");
    let links = &kept()["links.md"];
    let pictures = || kept().into_keys().filter(|name| name.ends_with(".svg"));
    for name in pictures() {
        assert_eq!(chapter.matches(&format!("][{name}]\n")).count(), 1, "{name}");
        assert!(chapter.contains(&format!("\n[{name}]: plots/{name}\n")), "{name}");
        let inline = format!("[{name}]: data:image/svg+xml;base64,");
        assert_eq!(links.lines().filter(|line| line.starts_with(&inline)).count(), 1, "{name}");
    }
    assert_eq!(chapter.matches("![").count(), pictures().count());
}

#[test]
fn every_call_is_in_the_picture() {
    for (name, text) in single() {
        let picture = Document::parse(&text).expect("XML");
        let count = |word: &str| -> usize {
            let said = words(&picture).into_iter().filter_map(|text| text.strip_suffix(word));
            said.map(|number| number.trim().parse::<usize>().expect("a number")).sum()
        };
        let (admitted, denied, waited) = (count(" allowed"), count(" denied"), count(" waited"));
        assert_eq!(admitted + denied + waited, CALLS, "{name}");

        let drawn = |is: fn(&Node<'_, '_>) -> bool| picture.descendants().filter(is).count();
        let crosses = drawn(|node| node.has_tag_name("polyline") && points(*node).len() == 5);
        let rings = drawn(|node| is_circle(node) && node.attribute("fill") == Some("none"));
        let dots = drawn(|node| is_circle(node) && node.attribute("fill") != Some("none"));
        // one label of each kind explains it
        let (some_refused, some_waited) = (usize::from(denied > 0), usize::from(waited > 0));
        assert_eq!(crosses, denied + some_refused, "{name}");
        assert_eq!(rings, waited + some_waited, "{name}");
        assert_eq!(dots, admitted + 1 + rings, "{name}");
    }
}

/// The chapter states this.
#[test]
fn a_fixed_window_allows_twice_its_limit_within_a_second_and_a_log_never_does() {
    let pictures = single();
    for (name, most) in [("fixed_window", 8), ("sliding_window", 4), ("sliding_log", 4)] {
        let picture = Document::parse(&pictures[&format!("{name}.svg")]).expect("XML");
        let most = format!("most in 1 s: {most}");
        assert!(words(&picture).contains(&most.as_str()), "{name}: {:?}", words(&picture));
    }
}

struct Area {
    what: String,
    x: [f64; 2],
    y: [f64; 2],
}

impl Area {
    fn overlaps(&self, other: &Self) -> bool {
        let apart = |a: [f64; 2], b: [f64; 2]| a[1] <= b[0] || b[1] <= a[0];
        !apart(self.x, other.x) && !apart(self.y, other.y)
    }
}

fn number(node: Node<'_, '_>, name: &str) -> f64 {
    let text = node.attribute(name).unwrap_or_else(|| panic!("{name} of {node:?}"));
    text.parse().expect("a number")
}

fn is_circle(node: &Node<'_, '_>) -> bool {
    node.has_tag_name("circle")
}

fn points(node: Node<'_, '_>) -> Vec<[f64; 2]> {
    let pair = |pair: &str| {
        let (x, y) = pair.split_once(',').expect("two numbers");
        [x.parse().expect("a number"), y.parse().expect("a number")]
    };
    node.attribute("points").expect("points").split_whitespace().map(pair).collect()
}

/// The width of a text is estimated with a wide font.
fn text_area(node: Node<'_, '_>) -> Area {
    let what = node.text().unwrap_or_default().trim().to_owned();
    let (x, y, size) = (number(node, "x"), number(node, "y"), number(node, "font-size"));
    let em = if node.attribute("font-weight") == Some("bold") { 0.65 } else { 0.6 };
    let width = what.chars().count() as f64 * size * em;
    let before = match node.attribute("text-anchor") {
        Some("end") => width,
        Some("middle") => width / 2.0,
        _ => 0.0,
    };
    assert_eq!(node.attribute("dy"), Some("0.76em"), "{what}: hangs from the top");
    Area { what, x: [x - before, x - before + width], y: [y, y + size] }
}

fn mark_area(node: Node<'_, '_>) -> Option<Area> {
    let what = format!("{node:?}");
    if is_circle(&node) {
        let (x, y, r) = (number(node, "cx"), number(node, "cy"), number(node, "r"));
        return Some(Area { what, x: [x - r, x + r], y: [y - r, y + r] });
    }
    let corners = node.has_tag_name("polyline").then(|| points(node))?;
    let span = |axis: usize| {
        let along = corners.iter().map(|corner| corner[axis]);
        [along.clone().fold(f64::MAX, f64::min), along.fold(f64::MIN, f64::max)]
    };
    // lines between two points are edges, axes and waits
    (corners.len() > 2).then(|| Area { what, x: span(0), y: span(1) })
}

#[test]
fn nothing_in_a_picture_overlaps_or_leaves_it() {
    for (name, text) in kept().iter().filter(|(name, _)| name.ends_with(".svg")) {
        let picture = Document::parse(text).expect("XML");
        let paper = picture.root_element().attribute("viewBox").expect("a view box");
        let paper: Vec<f64> = paper.split(' ').map(|n| n.parse().expect("a number")).collect();
        let areas: Vec<Area> = picture
            .descendants()
            .filter_map(|node| match node.has_tag_name("text") {
                true => Some(text_area(node)),
                false => mark_area(node),
            })
            .collect();
        assert!(areas.len() > CALLS, "{name}");
        for (place, one) in areas.iter().enumerate() {
            let inside = one.x[0] >= 0.0 && one.y[0] >= 0.0;
            assert!(inside && one.x[1] <= paper[2] && one.y[1] <= paper[3], "{name}: {}", one.what);
            for other in &areas[place + 1..] {
                assert!(!one.overlaps(other), "{name}: {} and {}", one.what, other.what);
            }
        }
    }
}

#[test]
fn pictures_are_small_and_have_a_background() {
    for (name, text) in kept().iter().filter(|(name, _)| name.ends_with(".svg")) {
        let most = if name == OVERVIEW { LARGEST_OVERVIEW } else { LARGEST };
        assert!(text.len() <= most, "{name}: {} bytes, more than {most}", text.len());
        let picture = Document::parse(text).expect("XML");
        let paper = picture.root_element().first_element_child().expect("something drawn");
        assert!(paper.has_tag_name("rect") && paper.attribute("fill") == Some("#FFFFFF"), "{name}");
    }
}

#[test]
fn each_colour_has_a_dark_variant() {
    for (name, text) in kept().iter().filter(|(name, _)| name.ends_with(".svg")) {
        let picture = Document::parse(text).expect("XML");
        let style = picture.descendants().find(|node| node.has_tag_name("style"));
        let style = style.and_then(|style| style.text()).expect("a style");
        assert!(style.starts_with("@media(prefers-color-scheme:dark){"), "{name}");
        for node in picture.descendants() {
            for part in ["fill", "stroke"] {
                let Some(light) = node.attribute(part).filter(|light| *light != "none") else {
                    continue;
                };
                let rule = format!("[{part}=\"{light}\"]{{{part}:#");
                assert!(style.contains(&rule), "{name}: {rule}");
            }
        }
    }
}

//! The rendered documentation, as `scripts/pages` builds it.

use serde_json::Value;

use crate::{
    Outcome,
    browser::Page,
    folder,
    looks::{self, DESKTOP, PHONE},
};

/// Pages, with `true` for those that are kept in their whole length.
const PAGES: [(&str, bool); 8] = [
    ("index", true),
    ("guide/index", false),
    ("guide/algorithms/index", true),
    ("guide/choosing/index", false),
    ("guide/recipes/index", false),
    ("guide/troubleshooting/index", false),
    ("admin/index", false),
    ("middleware/struct.RateLimitLayer", false),
];

/// The faults of a page: it scrolls sideways, or a picture or a section of a link is missing.
const FAULTS: &str = "const faults = []; const root = document.documentElement; \
    if (root.scrollWidth > root.clientWidth) \
        faults.push(`scrolls sideways: ${root.scrollWidth} in ${root.clientWidth}`); \
    for (const image of document.querySelectorAll('main img')) \
        if (!image.complete || image.naturalWidth === 0) faults.push(`no picture: ${image.alt}`); \
    for (const { hash, pathname } of document.querySelectorAll('.docblock a[href]')) \
        if (hash && pathname === location.pathname && !document.getElementById(decodeURIComponent(hash.slice(1)))) \
            faults.push(`no section ${hash}`); \
    return faults";

pub(crate) async fn look(page: &Page<'_>) -> Outcome {
    let built = folder().join("../doc/tower_sluice");
    for (name, whole) in PAGES {
        let path = built.join(format!("{name}.html"));
        let path = path.canonicalize().map_err(|why| format!("{}: {why}", path.display()))?;
        for (width, size) in [("desktop", DESKTOP), ("phone", PHONE)] {
            for scheme in ["light", "dark"] {
                page.resize(size, scheme).await?;
                page.go(&format!("file://{}", path.display())).await?;
                page.run(looks::FRAMES).await?;
                let kept = format!("docs-{}-{width}-{scheme}", name.replace('/', "-"));
                page.keep_part(&kept, whole).await?;
                let faults = page.run(FAULTS).await?;
                let faults: Vec<_> =
                    faults.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
                if !faults.is_empty() {
                    return Err(format!("{kept}: {}", faults.join("\n  ")));
                }
            }
        }
    }
    Ok(())
}

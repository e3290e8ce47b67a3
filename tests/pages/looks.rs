//! Checks of a page's appearance: at three widths, light and dark.

use serde_json::Value;

use crate::{Outcome, browser::Page};

pub(crate) const DESKTOP: (u32, u32) = (1280, 800);
pub(crate) const PHONE: (u32, u32) = (390, 844);

/// Two frames: the first may still have the old size.
pub(crate) const FRAMES: &str = "return new Promise((then) => \
                      requestAnimationFrame(() => requestAnimationFrame(() => then(true))))";

/// Checks the page at every size and colour scheme, and keeps a picture of each.
pub(crate) async fn right(page: &Page<'_>, name: &str) -> Outcome {
    for (width, size) in [("desktop", DESKTOP), ("phone", PHONE), ("small", (360, 640))] {
        for scheme in ["light", "dark"] {
            page.resize(size, scheme).await?;
            page.run(FRAMES).await?;
            let faults = page.run(include_str!("looks.js")).await?;
            let kept = format!("{name}-{width}-{scheme}");
            page.keep(&kept).await?;
            let faults: Vec<_> =
                faults.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
            if !faults.is_empty() {
                return Err(format!("{kept}: {}", faults.join("\n  ")));
            }
        }
    }
    page.resize(DESKTOP, "light").await
}

/// Checks that everything was fetched from the server of the page.
pub(crate) async fn at_home(page: &Page<'_>) -> Outcome {
    let elsewhere = "return performance.getEntriesByType('resource').map((entry) => entry.name) \
                     .filter((name) => new URL(name).origin !== location.origin && \
                     !name.startsWith('data:'))";
    match page.run(elsewhere).await? {
        Value::Array(list) if list.is_empty() => Ok(()),
        list => Err(format!("fetched from elsewhere: {list}")),
    }
}

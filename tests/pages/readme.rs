//! The pictures of `examples/README.md`.

use std::{fs, path::Path};

use crate::{Outcome, browser::Page, looks::DESKTOP, playground, programs::ANY_PORT};

/// The largest size of a picture in bytes, because every clone downloads it.
const MOST: usize = 120_000;

/// Draws the playground while both lanes show requests.
pub(crate) async fn draw(page: &Page<'_>) -> Outcome {
    let server = playground::serve(ANY_PORT);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/playground");
    for scheme in ["light", "dark"] {
        page.resize(DESKTOP, scheme).await?;
        playground::open(page, &server, "").await?;
        playground::telling(page).await?;
        let picture = page.picture(false).await?;
        if picture.len() > MOST {
            return Err(format!("{scheme}.png: {} bytes; {MOST} are enough", picture.len()));
        }
        fs::write(folder.join(format!("{scheme}.png")), picture).map_err(|why| why.to_string())?;
    }
    Ok(())
}

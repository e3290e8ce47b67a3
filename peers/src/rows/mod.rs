//! The rows, by their requirements.

pub mod answers;
pub mod behind_proxy;
pub mod direct;
pub mod memory;

use crate::{
    apps::{App, Peer, Place, THREE},
    cell::Cell,
    table::Cells,
};

/// Runs the attack on each peer, configured for this place.
pub async fn each(place: Place, attack: impl AsyncFn(App) -> Cell) -> Cells {
    let mut cells = Peer::ALL.map(|_| Cell::none());
    for (cell, peer) in cells.iter_mut().zip(Peer::ALL) {
        if let Some(app) = peer.app(place, THREE) {
            *cell = attack(app).await;
        }
    }
    cells
}

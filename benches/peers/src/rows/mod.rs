//! The rows, by their requirements.

pub mod answers;
pub mod behind_proxy;
pub mod direct;
pub mod memory;
pub mod methods;

use std::{
    panic::{self, AssertUnwindSafe},
    pin::pin,
    task::Poll,
};

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
            let attacked = caught(attack(app)).await;
            *cell = attacked.unwrap_or_else(|| Cell::new("panics", false));
        }
    }
    cells
}

/// Runs a future; `None` if it panics, as in a server, which then closes the connection.
async fn caught<T>(future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    let output = std::future::poll_fn(|context| {
        match panic::catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context))) {
            Ok(poll) => poll.map(Some),
            Err(_) => Poll::Ready(None),
        }
    })
    .await;
    panic::set_hook(hook);
    output
}

//! Blocks, which are entries of a table.

use std::sync::Arc;

use loom::thread;

use super::{
    every_order,
    ledger::{ALICE, BOB, LONG, OTHER},
    orders,
    table::Table,
};

/// Rounded up to a set of two entries.
const ROOM: usize = 1;

/// Bob's block claims the entry of Alice's expired block just as she is blocked again.
#[test]
fn a_key_that_is_blocked_again_stays_blocked() {
    orders(3, || {
        let blocks = Arc::new(Table::new(ROOM));
        assert!(blocks.keep(ALICE, 1, 10) && blocks.keep(OTHER, 1, LONG));
        let shared = blocks.clone();
        let bob = thread::spawn(move || shared.keep(BOB, 20, 60));
        let alice = blocks.keep(ALICE, 20, 50);
        assert_eq!(blocks.left(ALICE, 20), if alice { 30 } else { 0 });
        let bob = bob.join().expect("no panic");
        assert_eq!(blocks.left(BOB, 20), if bob { 40 } else { 0 });
        assert!(alice != bob, "there is room for one");
    });
}

#[test]
fn a_block_and_an_unblock_have_an_order() {
    every_order(|| {
        let blocks = Arc::new(Table::new(ROOM));
        assert!(blocks.keep(ALICE, 1, 30));
        let shared = blocks.clone();
        let ended = thread::spawn(move || {
            shared.end(ALICE, 20);
        });
        assert!(blocks.keep(ALICE, 20, 50));
        ended.join().expect("no panic");
        assert!([0, 30].contains(&blocks.left(ALICE, 20)));
    });
}

//! Refunds and resets take effect in some order with charges.

use std::sync::Arc;

use loom::sync::atomic::{AtomicU64, Ordering::AcqRel};

use super::{
    every_order,
    ledger::{
        ALICE, BOB,
        Charged::{Own, Shared},
        LONG, Ledger, OTHER, T,
    },
    orders,
};

/// Alice's entry is reclaimed, and she reclaims it later, while a thread of an older clock lowers her
/// account to full.
#[test]
fn nothing_is_lowered_below_a_claim() {
    every_order(|| {
        let claim_twice = |table: &Ledger| (table.take(BOB, 20), table.take(ALICE, 21 + T));
        let (table, (), said) = Ledger::new(1, &[(ALICE, 15), (OTHER, LONG)])
            .both(|table| table.lower(ALICE, 12, 12), claim_twice);
        assert_eq!(said, (Some(Own(20 + T)), Some(Own(21 + 2 * T))));
        // A lowered account is full, so it equals a new one.
        let alice = table.look(ALICE);
        assert!(alice.is_none() || alice == Some(21 + 2 * T), "{alice:?}");
    });
}

#[test]
fn a_refund_and_a_charge_both_count() {
    every_order(|| {
        let (table, (), said) = Ledger::new(5, &[(ALICE, 40)])
            .both(|table| table.refund(ALICE, 20), |table| table.take(ALICE, 20));
        assert!(said == Some(Own(40)) || said == Some(Own(40 + T)), "{said:?}");
        assert_eq!(table.look(ALICE), Some(40));
    });
}

#[test]
fn two_refunds_both_count() {
    every_order(|| {
        let refund = |table: &Ledger| table.refund(ALICE, 20);
        let (table, (), ()) = Ledger::new(5, &[(ALICE, 45)]).both(refund, refund);
        assert_eq!(table.look(ALICE), Some(45 - 2 * T));
    });
}

#[test]
fn a_reset_and_a_charge_have_an_order() {
    every_order(|| {
        let (table, (), said) = Ledger::new(5, &[(ALICE, 40)])
            .both(|table| table.reset(ALICE, || 20), |table| table.take(ALICE, 20));
        match (said, table.look(ALICE)) {
            // An account that is full at the newest instant equals no account.
            (Some(Own(50)), None) | (Some(Own(30)), Some(30)) => {}
            seen => panic!("{seen:?}"),
        }
    });
}

/// Bob's claim finds Alice's account full while a refund of hers is under way.
#[test]
fn a_refund_that_races_a_claim_reaches_no_other_account() {
    every_order(|| {
        let (table, (), bob) = Ledger::new(5, &[(ALICE, 15), (OTHER, LONG)])
            .both(|table| table.refund(ALICE, 12), |table| table.take(BOB, 20));
        assert_eq!((bob, table.look(BOB), table.look(ALICE)), (Some(Own(30)), Some(30), None));
    });
}

#[test]
fn a_refund_a_charge_and_a_claim_have_an_order() {
    orders(2, || {
        let (table, (), (alice, bob)) = Ledger::new(5, &[(ALICE, 25), (OTHER, LONG)]).all(
            |table| table.refund(ALICE, 20),
            |table| table.take(ALICE, 20),
            |table| table.take(BOB, 22),
        );
        let accounts = (table.look(ALICE), table.look(BOB), table.look_shared(22));
        let seen = (alice, bob, accounts);
        let expected = [
            // Refund, charge; charge, refund.
            (Some(Own(30)), Some(Shared(32)), (Some(30), None, 32)),
            (Some(Own(35)), Some(Shared(32)), (Some(25), None, 32)),
            // Bob between the refund and the charge
            (Some(Shared(32)), Some(Own(32)), (None, Some(32), 32)),
        ];
        assert!(expected.contains(&seen), "{seen:?}");
    });
}

/// A unit charged at 15 is undone before the reset or not at all. A charge after the reset stays.
#[test]
fn a_reset_voids_receipts_of_earlier_charges() {
    every_order(|| {
        let reset_and_charge = |table: &Ledger| {
            table.reset(ALICE, || 20);
            table.take(ALICE, 21)
        };
        let (table, (), said) = Ledger::new(5, &[(ALICE, 45)])
            .both(|table| table.undo(ALICE, 20, 15), reset_and_charge);
        assert_eq!((said, table.look(ALICE)), (Some(Own(21 + T)), Some(21 + T)));
    });
}

/// The clock is that of all threads, and stands or advances with each reading.
#[test]
fn a_reset_voids_receipts_of_the_charges_that_it_ends() {
    for step in [0, 1] {
        every_order(move || {
            let clock = Arc::new(AtomicU64::new(20));
            let ticks = clock.clone();
            let (table, said, ()) = Ledger::new(5, &[]).both(
                move |table| table.take(ALICE, clock.fetch_add(step, AcqRel)),
                move |table| table.reset(ALICE, || ticks.fetch_add(step, AcqRel)),
            );
            let Some(Own(full_at)) = said else { panic!("{said:?}") };
            let is_ended = table.look(ALICE).is_none();
            let later = table.take(ALICE, 30);
            table.undo(ALICE, 30, full_at - T);
            if is_ended {
                assert_eq!((later, table.look(ALICE)), (Some(Own(30 + T)), Some(30 + T)));
            }
        });
    }
}

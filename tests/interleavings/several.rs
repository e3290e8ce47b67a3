//! Decisions over several accounts have an order. None waits for another forever.

use super::{
    every_order,
    ledger::{ALICE, BOB, FAR, LONG, Ledger, OTHER, T},
};

/// Each thread names the accounts in another order.
#[test]
fn opposite_orders_do_not_deadlock() {
    for beside in [true, false] {
        every_order(move || {
            let ledger = Ledger::of_two_sets(4).beside(beside);
            assert!(ledger.take_both([ALICE, FAR], 20));
            let (ledger, one, other) = ledger.both(
                |ledger| ledger.take_both([ALICE, FAR], 20),
                |ledger| ledger.take_both([FAR, ALICE], 20),
            );
            assert!(one && other);
            let tat = Some(20 + 3 * T);
            assert_eq!((ledger.look(ALICE), ledger.look(FAR)), (tat, tat));
        });
    }
}

/// Either order of the two decisions explains every result: nothing is charged and undone.
#[test]
fn a_denied_decision_charges_no_account_for_a_moment() {
    for beside in [true, false] {
        every_order(move || {
            let ledger = Ledger::of_two_sets(2).beside(beside);
            assert!(ledger.take_both([ALICE, FAR], 20) && ledger.take_both([FAR, BOB], 20));
            let (ledger, both, alice) = ledger.both(
                |ledger| ledger.take_both([ALICE, FAR], 20),
                |ledger| ledger.take(ALICE, 20).is_some(),
            );
            assert!(!both, "one of its accounts is exhausted");
            assert!(alice, "and the other is charged once");
            assert_eq!(ledger.look(ALICE), Some(20 + 2 * T));
        });
    }
}

/// Two new keys of one decision share an account, which has one unit left after the first decision.
#[test]
fn two_new_keys_of_one_decision_count_together() {
    every_order(|| {
        let (ledger, one, other) = Ledger::new(3, &[(ALICE, LONG), (OTHER, LONG)]).both(
            |ledger| ledger.take_both([BOB, FAR], 20),
            |ledger| ledger.take_both([FAR, BOB], 20),
        );
        assert!(one != other, "three units are too few for four charges");
        assert_eq!(ledger.look_shared(20), 20 + 2 * T);
    });
}

//! New keys without an entry share an account, and a key that gets an entry later takes over its debt.

use super::{
    every_order,
    ledger::{
        ALICE, BOB, CAROL,
        Charged::{Own, Shared},
        LONG, Ledger, OTHER, T,
    },
};

#[test]
fn new_keys_without_an_entry_share_one_quota() {
    every_order(|| {
        let (table, bob, carol) = Ledger::new(1, &[(ALICE, LONG), (OTHER, LONG)])
            .both(|table| table.take(BOB, 20), |table| table.take(CAROL, 20));
        let first = (Some(Shared(20 + T)), None);
        assert!((bob, carol) == first || (carol, bob) == first, "{bob:?}, {carol:?}");
        assert_eq!(table.look_shared(20), 20 + T);
    });
}

#[test]
fn two_new_keys_leave_the_later_debt_visible() {
    every_order(|| {
        let (table, one, other) = Ledger::new(2, &[(ALICE, LONG), (OTHER, LONG)])
            .both(|table| table.take(BOB, 20), |table| table.take(CAROL, 20));
        let first = (Some(Shared(20 + T)), Some(Shared(20 + 2 * T)));
        assert!((one, other) == first || (other, one) == first, "{one:?}, {other:?}");
        assert_eq!(table.look_shared(20 + T + 1), 20 + 2 * T);
    });
}

/// Bob finds no entry. Carol comes later and finds one.
#[test]
fn a_new_key_takes_shared_debt_into_its_entry() {
    every_order(|| {
        let (_, bob, carol) = Ledger::new(2, &[(ALICE, 25), (OTHER, LONG)])
            .both(|table| table.take(BOB, 20), |table| table.take(CAROL, 26));
        match (bob, carol) {
            (Some(Shared(30)), Some(Own(40))) | (Some(Shared(36)), Some(Own(36))) => {}
            said => panic!("{said:?}"),
        }
    });
}

/// An undo changes no shared account, which has the charges of other keys.
#[test]
fn a_shared_account_counts_a_charge_beside_an_undo() {
    every_order(|| {
        let table = Ledger::new(5, &[(ALICE, LONG), (OTHER, LONG)]);
        assert_eq!(table.take(BOB, 20), Some(Shared(30)));
        let (table, (), carol) =
            table.both(|table| table.refund(BOB, 20), |table| table.take(CAROL, 20));
        assert_eq!(carol, Some(Shared(40)));
        assert_eq!(table.look_shared(20), 40);
    });
}

/// A thread that made a shared charge sees it, although the shared accounts are locked only if needed.
#[test]
fn a_shared_charge_is_visible_to_its_caller() {
    every_order(|| {
        let charge_and_look = |table: &Ledger| (table.take(BOB, 20), table.look_shared(20));
        let (_, (said, seen), other) = Ledger::new(5, &[(ALICE, LONG), (OTHER, LONG)])
            .both(charge_and_look, |table| table.take(CAROL, 20));
        match (said, other) {
            (Some(Shared(30)), Some(Shared(40))) => assert!(seen == 30 || seen == 40, "{seen}"),
            (Some(Shared(40)), Some(Shared(30))) => assert_eq!(seen, 40),
            said => panic!("{said:?}"),
        }
    });
}

//! Accounts open once. No charge is lost or reaches another account while entries change owners.

use super::{
    every_order,
    ledger::{
        ALICE, BOB, CAROL,
        Charged::{Own, Shared},
        LONG, Ledger, OTHER, T,
    },
    orders,
};

#[test]
fn two_first_charges_open_one_account() {
    for beside in [true, false] {
        every_order(move || {
            let take = |table: &Ledger| table.take(ALICE, 20);
            let (table, one, other) = Ledger::new(2, &[]).beside(beside).both(take, take);
            let first = (Some(Own(20 + T)), Some(Own(20 + 2 * T)));
            assert!((one, other) == first || (other, one) == first, "{one:?}, {other:?}");
            assert_eq!((table.look(ALICE), table.active(20)), (Some(20 + 2 * T), 1));
        });
    }
}

#[test]
fn first_charges_by_clocks_apart_open_one_account() {
    for beside in [true, false] {
        every_order(move || {
            let (table, one, other) = Ledger::new(1, &[])
                .beside(beside)
                .both(|table| table.take(ALICE, 20), |table| table.take(ALICE, 21));
            let said = (one, other, table.look(ALICE));
            let (early, late) = (20 + T, 21 + T);
            let first = (Some(Own(early)), None, Some(early));
            assert!(said == first || said == (None, Some(Own(late)), Some(late)), "{said:?}");
            assert_eq!(table.active(21), 1);
        });
    }
}

#[test]
fn two_charges_of_one_account_both_count() {
    every_order(|| {
        let take = |table: &Ledger| table.take(ALICE, 20);
        let (table, one, other) = Ledger::new(2, &[(ALICE, 15)]).both(take, take);
        let first = (Some(Own(20 + T)), Some(Own(20 + 2 * T)));
        assert!((one, other) == first || (other, one) == first, "{one:?}, {other:?}");
        assert_eq!(table.look(ALICE), Some(20 + 2 * T));
    });
}

/// Alice returns to an account that may be reclaimed, while Bob claims its entry.
#[test]
fn a_charge_that_races_a_claim_counts_for_its_own_account() {
    orders(3, || {
        let (table, alice, bob) = Ledger::new(2, &[(ALICE, 10), (OTHER, LONG)])
            .both(|table| table.take(ALICE, 20), |table| table.take(BOB, 20));
        let (own, shared) = (Some(Own(20 + T)), Some(Shared(20 + T)));
        let accounts = (table.look(ALICE), table.look(BOB));
        match (alice, bob) {
            said if said == (own, shared) => assert_eq!(accounts, (Some(20 + T), None)),
            said if said == (shared, own) => assert_eq!(accounts, (None, Some(20 + T))),
            said => panic!("{said:?}"),
        }
        assert_eq!((table.look_shared(20), table.look(OTHER)), (20 + T, Some(LONG)));
    });
}

/// By Alice's clock her account is in debt. By Bob's clock it may be reclaimed.
#[test]
fn an_account_in_debt_is_never_reclaimed() {
    for beside in [true, false] {
        every_order(move || {
            let (_, bob, alice) = Ledger::new(1, &[(ALICE, 25), (OTHER, LONG)])
                .beside(beside)
                .both(|table| table.take(BOB, 30), |table| table.take(ALICE, 22));
            assert_eq!(bob, Some(Own(30 + T)));
            // She is denied before her entry is reclaimed. Afterwards, she has no entry, and is charged no
            // earlier than the instant at which that was permitted.
            assert!(alice.is_none() || alice == Some(Shared(30 + T)), "{alice:?}");
        });
    }
}

#[test]
fn a_look_never_misses_an_account_that_exists() {
    orders(3, || {
        let charge_and_look = |table: &Ledger| (table.take(ALICE, 20), table.look(ALICE));
        let (_, (said, seen), _) = Ledger::new(2, &[(ALICE, 10), (OTHER, LONG)])
            .both(charge_and_look, |table| table.take(BOB, 20));
        let own = (Some(Own(20 + T)), Some(20 + T));
        assert!((said, seen) == own || (said, seen) == (Some(Shared(20 + T)), None), "{said:?}");
    });
}

#[test]
fn one_of_three_new_keys_claims_the_free_entry() {
    orders(2, || {
        let (table, one, (two, three)) = Ledger::new(2, &[(ALICE, 10), (OTHER, LONG)]).all(
            |table| table.take(ALICE, 20),
            |table| table.take(BOB, 20),
            |table| table.take(CAROL, 20),
        );
        let mut said = [one, two, three].map(|said| said.expect("fits"));
        said.sort_unstable();
        assert_eq!(said, [Own(20 + T), Shared(20 + T), Shared(20 + 2 * T)]);
        let accounts = [ALICE, BOB, CAROL].map(|id| table.look(id));
        assert_eq!(accounts.iter().flatten().collect::<Vec<_>>(), [&(20 + T)]);
        assert_eq!(table.look_shared(20), 20 + 2 * T);
    });
}

#[test]
fn three_first_charges_open_one_account() {
    orders(2, || {
        let take = |table: &Ledger| table.take(ALICE, 20);
        let (table, one, (two, three)) = Ledger::new(3, &[]).all(take, take, take);
        let mut said = [one, two, three].map(|said| said.expect("fits"));
        said.sort_unstable();
        assert_eq!(said, [Own(20 + T), Own(20 + 2 * T), Own(20 + 3 * T)]);
        assert_eq!((table.look(ALICE), table.active(20)), (Some(20 + 3 * T), 1));
    });
}

//! Checks that the checker distinguishes a wrong history from a right one.

use super::{
    checker::{Call, Operation, Said, explains},
    models::Counted,
};

/// Returns a call from `start` to `end` to an account of two units, with this result.
fn call(start: u64, end: u64, call: Call, allowed: bool, remaining: u64) -> Operation {
    let said = Some(Said { allowed, remaining, waits: None });
    Operation { start, end, instants: vec![0], call, said }
}

fn take(start: u64, end: u64, units: u32, allowed: bool, remaining: u64) -> Operation {
    call(start, end, Call::Take(units), allowed, remaining)
}

fn is_explained(history: &[Operation]) -> bool {
    explains(&Counted(2), history)
}

#[test]
fn sequential_calls_are_explained_only_in_their_order() {
    assert!(is_explained(&[]));
    assert!(is_explained(&[take(1, 2, 1, true, 1), take(3, 4, 1, true, 0)]));
    assert!(!is_explained(&[take(1, 2, 1, true, 0), take(3, 4, 1, true, 1)]));
    assert!(is_explained(&[take(3, 4, 1, true, 0), take(1, 2, 1, true, 1)]));
}

#[test]
fn concurrent_calls_are_explained_in_any_order() {
    let first = [take(1, 4, 1, true, 0), take(2, 3, 1, true, 1)];
    let second = [take(1, 4, 1, true, 1), take(2, 3, 1, true, 0)];
    assert!(is_explained(&first) && is_explained(&second));
    assert!(is_explained(&[take(1, 4, 2, false, 1), take(2, 3, 1, true, 1)]));
    assert!(is_explained(&[take(1, 4, 0, true, 2), take(2, 3, 1, true, 1)]));
}

#[test]
fn a_unit_allowed_twice_is_detected() {
    assert!(!is_explained(&[take(1, 4, 2, true, 0), take(2, 3, 1, true, 0)]));
    assert!(!is_explained(&[take(1, 4, 1, true, 1), take(2, 3, 1, true, 1)]));
    let three = [1, 2, 3].map(|start| take(start, 9, 1, true, 0));
    assert!(!is_explained(&three));
}

#[test]
fn a_lost_charge_is_detected() {
    assert!(!is_explained(&[take(1, 2, 1, true, 1), take(3, 4, 0, true, 2)]));
    // a read at the same time may come first
    assert!(is_explained(&[take(1, 4, 1, true, 1), take(2, 3, 0, true, 2)]));
    let later = take(5, 6, 0, true, 2);
    assert!(!is_explained(&[take(1, 4, 1, true, 1), take(2, 3, 0, true, 2), later]));
}

#[test]
fn an_unexplained_denial_is_detected() {
    assert!(!is_explained(&[take(1, 2, 1, false, 2)]));
    assert!(!is_explained(&[take(1, 2, 2, true, 0), take(3, 6, 1, false, 2)]));
    let denied = [take(1, 2, 2, true, 0), take(3, 4, 1, false, 0)];
    assert!(is_explained(&denied));
    let reset = call(5, 6, Call::Reset, true, 2);
    assert!(!is_explained(&[denied[0].clone(), reset, take(7, 8, 1, false, 0)]));
}

#[test]
fn a_unit_undone_twice_is_detected() {
    let back = Call::Undo { units: 1, receipt: 0 };
    let history =
        |left| [take(1, 2, 2, true, 0), call(3, 4, back, true, 1), take(5, 6, 0, true, left)];
    assert!(is_explained(&history(1)) && !is_explained(&history(2)));
}

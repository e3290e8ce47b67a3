//! Random sequences of time jumps and operations.

use proptest::prelude::*;

use super::{super::tests::Row, SECOND};
use crate::{decision::NEVER, quota::Quota};

#[derive(Clone, Copy, Debug)]
pub(super) enum Jump {
    Nanos(u64),
    /// A jump by a number of sixteenths of the period, plus nanoseconds.
    Period(u64, i64),
    /// A jump to the instant at which the account is full, plus nanoseconds.
    Full(i64),
    Next(i64),
    Retry(i64),
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Op {
    Take {
        cost: u32,
        headroom: u32,
        max_wait: u64,
    },
    /// Refunds units, or charges them late if they are negative.
    Adjust(i64),
    /// Undoes a charge. The numbers are its index among the charges, and the maximum units.
    Undo(usize, u32),
}

pub(super) fn jump() -> impl Strategy<Value = Jump> {
    let beside = || prop_oneof![2 => Just(0), 1 => Just(-1), 1 => Just(1)];
    prop_oneof![
        6 => Just(Jump::Nanos(0)),
        1 => Just(Jump::Nanos(1)),
        1 => (0..SECOND).prop_map(Jump::Nanos),
        1 => (0..300_000_000 * SECOND).prop_map(Jump::Nanos),
        4 => (0u64..20, beside()).prop_map(|(n, by)| Jump::Period(n, by)),
        1 => (1u64..4, beside()).prop_map(|(n, by)| Jump::Period(16 * n, by)),
        2 => beside().prop_map(Jump::Full),
        3 => beside().prop_map(Jump::Next),
        2 => beside().prop_map(Jump::Retry),
    ]
}

pub(super) fn op() -> impl Strategy<Value = Op> {
    let cost = prop_oneof![8 => 0u32..5, 3 => 5u32..24, 1 => Just(u32::MAX)];
    let headroom = prop_oneof![6 => Just(0u32), 2 => 1u32..4, 1 => Just(u32::MAX)];
    let max_wait = prop_oneof![
        3 => Just(0),
        1 => 0..SECOND,
        1 => 0..100 * SECOND,
        1 => Just(315_360_000 * SECOND)
    ];
    let take = (cost, headroom, max_wait).prop_map(|(cost, headroom, max_wait)| Op::Take {
        cost,
        headroom,
        max_wait,
    });
    let units = prop_oneof![
        6 => -4i64..5,
        2 => -30i64..30,
        1 => prop_oneof![Just(i64::MIN), Just(i64::MAX)]
    ];
    let undone = prop_oneof![2 => Just(u32::MAX), 1 => 0u32..4];
    prop_oneof![
        8 => take,
        2 => units.prop_map(Op::Adjust),
        2 => (0usize..4, undone).prop_map(|(nth, units)| Op::Undo(nth, units))
    ]
}

/// Generates steps with short jumps, so that accounts rarely become full.
pub(super) fn short_steps() -> impl Strategy<Value = Vec<(Jump, u32, u64)>> {
    let jump = prop_oneof![
        3 => Just(Jump::Nanos(0)),
        3 => (0u64..6, -1i64..2).prop_map(|(n, by)| Jump::Period(n, by)),
        1 => (-1i64..2).prop_map(Jump::Next),
    ];
    let max_wait = prop_oneof![Just(0), 0..100 * SECOND];
    prop::collection::vec((jump, 0u32..6, max_wait), 0..8)
}

pub(super) fn steps() -> impl Strategy<Value = Vec<(Jump, Op)>> {
    prop::collection::vec((jump(), op()), 1..24)
}

/// Generates an instant near the epoch or near the present.
pub(super) fn start() -> impl Strategy<Value = u64> {
    prop_oneof![
        0..20 * SECOND,
        (0..SECOND).prop_map(|ns| 1_800_000_000 * SECOND + ns)
    ]
}

impl Jump {
    pub(super) fn nanos(self, quota: &Quota, last: Row) -> u64 {
        let (nanos, beside) = match self {
            Self::Nanos(nanos) => (nanos, 0),
            Self::Period(n, beside) => (quota.period_nanos() * n / 16, beside),
            Self::Full(beside) => (last.full, beside),
            Self::Next(beside) => (last.next, beside),
            Self::Retry(beside) => (if last.retry == NEVER { 0 } else { last.retry }, beside),
        };
        nanos.saturating_add_signed(beside)
    }
}

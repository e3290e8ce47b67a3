//! What is in hand under one quota: units that were borrowed and are not spent.
//!
//! A borrowed unit is charged at once and used later. That must let nothing pass that the shared
//! account alone would not have let pass, so what is in hand fades as what was charged flows back.
//!
//! **GCRA.** What an account owes is a stretch of time, from now to its TAT, and each charge owns the
//! piece of it that it added. What was borrowed is such a piece, `[from, until)`. Spending a unit
//! moves `from` on by the interval `T`, and time moves it on too, once it has come there; what is in
//! hand is what is left of the piece, in whole units. Call `used` the length of all pieces, of
//! everybody, whose unit was admitted, and `held` the rest. An exact account that is charged when a
//! unit is admitted owes at most `used`: a unit adds `T` to both, and time takes as much from what is
//! owed as from `used`, or more. The shared account owes `used + held` and never more than the burst.
//! So `exact + held` never exceeds the burst, and whatever is in hand the exact account would admit.
//!
//! What others give back moves the later pieces nearer, which their holders do not see. So a piece
//! is held to begin earlier than it does, by a quarter of what the limit takes to come back ([`SPARE`]):
//! it is right as long as no more than that is given back while a lease lives.
//!
//! **Fixed windows.** What counts is how much a window has admitted. What is in hand was counted in
//! its window, and is void when that ends.

use crate::{
    algorithm::gcra::Gcra,
    decision::Outcome,
    quota::{Algorithm, Quota},
};

/// What may be given back elsewhere while a lease lives, as a part of the limit.
const SPARE: u64 = 4;

/// Instants are nanoseconds of the holder's clock.
#[derive(Clone, Copy, Debug)]
pub(super) enum Hand {
    Refilling { from: u64, until: u64, interval: u64 },
    Window { units: u32, until: u64 },
}

/// Whether units of the quota can be held: those of other algorithms fade in ways of their own, and
/// an account that starts low or has more than its limit is another sum.
pub(super) fn lends(quota: &Quota) -> bool {
    let counted = matches!(
        quota.counted_by(),
        Algorithm::Gcra
            | Algorithm::AnchoredWindow
            | Algorithm::FixedWindow { carry_over: 0, paced: false }
    );
    counted && quota.soft_units() == 0 && quota.initial_units().is_none() && !quota.is_blocked()
}

impl Hand {
    /// What a charge of so many units leaves in hand that was made no earlier than `asked`. Nothing
    /// where the store does not tell enough.
    pub(super) fn new(quota: &Quota, outcome: &Outcome, units: u32, asked: u64) -> Option<Self> {
        let ahead = outcome.ahead();
        if Gcra::counting(quota).is_none() {
            let told = outcome.is_known() && outcome.interval().is_none() && ahead > 0;
            return told.then(|| Self::Window { units, until: asked.saturating_add(ahead) });
        }
        let interval = quota.interval_nanos();
        if outcome.interval() != Some(quota.interval()) {
            return None;
        }
        let (worth, whole) = (interval * u64::from(units), interval * u64::from(quota.limit()));
        let before = ahead.saturating_sub(worth).saturating_sub(whole / SPARE);
        let from = asked.saturating_add(before);
        Some(Self::Refilling { from, until: from.saturating_add(worth), interval })
    }

    /// Units in hand.
    pub(super) fn units(&self, now: u64) -> u32 {
        match *self {
            Self::Refilling { from, until, interval } => {
                let left = until.saturating_sub(from.max(now));
                u32::try_from(left / interval).unwrap_or(u32::MAX)
            }
            Self::Window { units, until } => {
                if now < until {
                    units
                } else {
                    0
                }
            }
        }
    }

    /// Spends units that are in hand.
    pub(super) fn spend(&mut self, now: u64, units: u32) {
        match self {
            Self::Refilling { from, interval, .. } => {
                *from = (*from).max(now) + *interval * u64::from(units);
            }
            Self::Window { units: left, .. } => *left = left.saturating_sub(units),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{decision::Numbers, name::RuleName};

    /// A unit comes back every second; a quarter of the limit takes 25.
    const QUOTA: Quota = Quota::per_minute(60).burst(100);
    const SECOND: u64 = 1_000_000_000;

    /// Ten units that were borrowed at 7 s, when so many seconds were owed before.
    fn ten(before: u64) -> Hand {
        let ahead = (before + 10) * SECOND;
        let numbers = Numbers::Refilling { ahead, interval: SECOND, limit: 100, retry: 0 };
        let outcome = Outcome::with(RuleName::default(), 0, numbers);
        Hand::new(&QUOTA, &outcome, 10, 7 * SECOND).expect("a hand")
    }

    fn left(hand: &Hand, seconds: u64) -> u32 {
        hand.units((7 + seconds) * SECOND)
    }

    #[test]
    fn it_fades_once_what_was_owed_before_may_have_flowed_back() {
        for (before, from) in [(0, 0), (25, 0), (28, 3), (65, 40)] {
            let hand = ten(before);
            let told = [from, from + 1, from + 9, from + 10, from + 99].map(|at| left(&hand, at));
            assert_eq!(told, [10, 9, 1, 0, 0], "{before} s before");
        }
    }

    #[test]
    fn what_is_spent_flows_back_before_what_is_held() {
        let mut hand = ten(0);
        hand.spend(7 * SECOND, 4);
        assert_eq!([0, 4, 5, 9, 10].map(|at| left(&hand, at)), [6, 6, 5, 1, 0]);
        let mut late = ten(0);
        late.spend(11 * SECOND, 4);
        assert_eq!([4, 8, 9, 10].map(|at| left(&late, at)), [2, 2, 1, 0]);
    }

    #[test]
    fn a_window_takes_what_is_held_with_it() {
        let quota = QUOTA.burst(60).algorithm(Algorithm::fixed_window());
        let numbers =
            Numbers::Known { limit: 60, remaining: 9, full: 3 * SECOND, next: SECOND, retry: 0 };
        let outcome = Outcome::with(RuleName::default(), 0, numbers);
        let mut hand = Hand::new(&quota, &outcome, 10, 7 * SECOND).expect("a hand");
        hand.spend(8 * SECOND, 4);
        assert_eq!((hand.units(10 * SECOND - 1), hand.units(10 * SECOND)), (6, 0));
    }

    #[test]
    fn what_tells_too_little_is_not_held() {
        let unknown = Outcome::unknown(RuleName::default(), 0, None);
        let window = QUOTA.burst(60).algorithm(Algorithm::AnchoredWindow);
        for quota in [QUOTA, window] {
            assert!(Hand::new(&quota, &unknown, 10, 0).is_none());
        }
        let full = Numbers::Known { limit: 60, remaining: 60, full: 0, next: 0, retry: 0 };
        let outcome = Outcome::with(RuleName::default(), 0, full);
        assert!(Hand::new(&QUOTA, &outcome, 10, 0).is_none());
        assert!(Hand::new(&window, &outcome, 10, 0).is_none());
    }
}

//! What was borrowed for one call: the units in hand under each of its quotas.

use smallvec::SmallVec;

use super::{hand::Hand, share::Share};
use crate::{
    decision::{Decision, Outcome, Source},
    store::{Charge, OwnedCharges, Store},
};

/// Instants are nanoseconds since the table was made.
#[derive(Debug)]
pub(super) struct Lease {
    /// The accounts, as hashes of rule and key.
    accounts: SmallVec<[u64; 2]>,
    charges: OwnedCharges,
    /// The store's answer to what was borrowed.
    taken: Decision,
    /// The store decided no earlier.
    asked: u64,
    /// The store decided no later: times are told as of then.
    came: u64,
    /// Calls that were borrowed, and those that were admitted.
    pub(super) calls: u32,
    pub(super) admitted: u32,
    pub(super) last: u64,
    /// Whether more was wanted than the store had.
    pub(super) cut: bool,
    pub(super) share: Share,
    hands: SmallVec<[Hand; 4]>,
}

impl Lease {
    /// What an allowed charge of so many `calls` at once leaves in hand.
    pub(super) fn new(
        charges: &[Charge<'_>],
        accounts: &[u64],
        calls: u32,
        taken: &Decision,
        (asked, came): (u64, u64),
    ) -> Option<Self> {
        let places = charges.iter().map(|charge| charge.quotas().len()).sum::<usize>();
        if places != taken.outcomes().len() {
            return None;
        }
        // a clock in whole microseconds is behind by up to one
        let from = asked.saturating_sub(1_000);
        let hand = |((charge, quota), outcome): ((&Charge<'_>, _), &Outcome)| {
            let units = charge.units().saturating_mul(calls);
            let own = outcome.rule() == charge.rule();
            own.then(|| Hand::new(quota, outcome, units, from)).flatten()
        };
        let hands = quotas(charges).zip(taken.outcomes()).map(hand).collect::<Option<_>>()?;
        let (accounts, charges, taken) = (accounts.into(), charges.into(), taken.clone());
        let (admitted, last, share) = (0, came, Share::default());
        Some(Self {
            accounts,
            charges,
            taken,
            asked,
            came,
            calls,
            admitted,
            last,
            share,
            cut: false,
            hands,
        })
    }

    /// Whether it holds units of the account.
    pub(super) fn is_of(&self, account: u64) -> bool {
        self.accounts.contains(&account)
    }

    pub(super) fn age(&self, now: u64) -> u64 {
        now.saturating_sub(self.asked)
    }

    /// Calls like the first that are still in hand.
    pub(super) fn calls_left(&self, now: u64) -> u32 {
        let at = self.hurried(now);
        self.charges.with(|charges| {
            let units = quotas(charges).zip(&self.hands);
            let calls = units.map(|((charge, _), hand)| hand.units(at) / charge.units().max(1));
            calls.min().unwrap_or(0)
        })
    }

    /// Admits the call for which it was borrowed, as at the instant at which the store decided.
    pub(super) fn admit_first(&mut self, charges: &[Charge<'_>]) -> Decision {
        self.pay(charges, self.asked.saturating_sub(1_000));
        let source = self.taken.source();
        self.tell(self.came).from_source(source)
    }

    /// Admits a call, if there is enough in hand.
    pub(super) fn admit(&mut self, charges: &[Charge<'_>], now: u64) -> Option<Decision> {
        let at = self.hurried(now);
        let mut owed = quotas(charges).zip(&self.hands);
        if !owed.all(|((charge, _), hand)| charge.units() <= hand.units(at)) {
            return None;
        }
        self.pay(charges, at);
        self.last = now;
        Some(self.tell(now).from_source(Source::Leased))
    }

    fn pay(&mut self, charges: &[Charge<'_>], at: u64) {
        for ((charge, _), hand) in quotas(charges).zip(&mut self.hands) {
            hand.spend(at, charge.units());
        }
        self.admitted += 1;
    }

    /// What the store said, as old as it is, and what is in hand of it.
    ///
    /// It is the receipt of the call, too: of what was borrowed under GCRA the calls own one piece
    /// after another, and that of this one ends where what is still in hand begins. The pieces do
    /// not overlap, so that all calls together give back no more than was borrowed.
    fn tell(&self, now: u64) -> Decision {
        let (age, at) = (now.saturating_sub(self.came), self.hurried(now));
        let instant = self.taken.instant().saturating_add(age);
        let mut decision = Decision::new(true, instant).charged_by(self.taken.charged_at());
        for (outcome, hand) in self.taken.outcomes().iter().zip(&self.hands) {
            decision.push(outcome.aged(age).with_more(hand.units(at)));
        }
        decision
    }

    /// The instant as it may be elsewhere: this clock may be slow, by less than a thousandth.
    fn hurried(&self, now: u64) -> u64 {
        now + self.age(now) / 1_000
    }

    /// Gives what is in hand back to the store, but for an account that is gone.
    pub(super) fn give_back<S: Store>(&self, store: &S, now: u64, gone: Option<u64>) {
        let now = self.hurried(now);
        self.charges.with(|charges| {
            let mut hands = self.hands.iter().zip(self.taken.outcomes());
            for (charge, account) in charges.iter().zip(&self.accounts) {
                let own = hands.by_ref().take(charge.quotas().len());
                let left = own.map(|(hand, outcome)| (hand.units(now), outcome));
                let left: SmallVec<[_; 4]> = left.collect();
                if gone != Some(*account) {
                    self.give_one_back(store, charge, &left);
                }
            }
        });
    }

    /// Under quotas of different periods there may be more left of one than of another.
    fn give_one_back<S: Store>(&self, store: &S, charge: &Charge<'_>, left: &[(u32, &Outcome)]) {
        let receipt = |outcomes: &[(u32, &Outcome)]| {
            let mut receipt = Decision::new(true, self.taken.instant());
            outcomes.iter().for_each(|(_, outcome)| receipt.push(**outcome));
            receipt.from_source(self.taken.source())
        };
        let Some(&(first, _)) = left.first() else { return };
        if left.iter().all(|(units, _)| *units == first) {
            if first > 0 {
                store.undo(&[charge.cost(first)], &receipt(left), None);
            }
            return;
        }
        for (place, one) in left.iter().enumerate().filter(|(_, (units, _))| *units > 0) {
            store.undo(&[charge.only(place).cost(one.0)], &receipt(&[*one]), None);
        }
    }
}

/// Every quota of a call, with its charge.
fn quotas<'a, 'c>(
    charges: &'c [Charge<'a>],
) -> impl Iterator<Item = (&'c Charge<'a>, &'a crate::quota::Quota)> {
    charges.iter().flat_map(|charge| charge.quotas().iter().map(move |quota| (charge, quota)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{decision::Numbers, key::Key, name::RuleName, quota::Quota};

    /// Ten units that fade one a second, the last of them ten seconds after the question.
    #[test]
    fn it_fades_by_a_clock_that_may_be_faster() {
        const SECOND: u64 = 1_000_000_000;
        let (key, quotas) = (Key::from("hot"), [Quota::per_minute(60)]);
        let charge = Charge::new(RuleName::default(), &key, &quotas);
        let numbers =
            Numbers::Refilling { ahead: 10 * SECOND, interval: SECOND, limit: 60, retry: 0 };
        let mut taken = Decision::new(true, 0);
        taken.push(Outcome::with(RuleName::default(), 0, numbers));
        let lease = Lease::new(&[charge], &[1], 10, &taken, (SECOND, 2 * SECOND)).expect("a lease");
        let left = |millis: u64| lease.calls_left(SECOND + millis * 1_000_000);
        assert_eq!([0, 8_980, 8_995, 9_985].map(left), [9, 1, 0, 0]);
    }
}

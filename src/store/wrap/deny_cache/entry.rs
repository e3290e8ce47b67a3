//! One account that is known to refuse, and what is told of it meanwhile.

use std::time::Duration;

use smallvec::SmallVec;

use super::account::Account;
use crate::{
    algorithm::Ask,
    decision::{Decision, NEVER, Outcome},
    store::{Charge, wrap::repriced::repriced},
};

/// Instants are nanoseconds since the cache was made.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) tag: u64,
    pub(super) revision: u64,
    pub(super) need: u64,
    /// Until when the store would refuse too, counted from the question: the store decided later.
    pub(super) until: u64,
    /// When the answer came. Times are told as of then: the store decided earlier, and no wait is
    /// told shorter than it is.
    came: u64,
    blocked: bool,
    /// Whether what is told of a greater cost can be worked out.
    refilling: bool,
    outcomes: SmallVec<[Outcome; 1]>,
}

impl Entry {
    /// What is known of an account that was asked at `asked`, if its own outcomes refused.
    pub(super) fn new(
        account: &Account,
        outcomes: &[Outcome],
        blocked: bool,
        (asked, came): (u64, u64),
        at_most: u64,
    ) -> Option<Self> {
        let denied = outcomes.iter().filter(|outcome| outcome.is_denied());
        let retry = denied.map(Outcome::retry).max()?;
        if retry == NEVER && account.opens {
            return None;
        }
        Some(Self {
            tag: account.tag,
            revision: account.revision,
            need: if blocked { 1 } else { account.need },
            until: asked.saturating_add(retry.min(at_most)),
            came,
            blocked,
            refilling: outcomes.iter().all(|it| it.interval().is_some()),
            outcomes: outcomes.into(),
        })
    }

    /// Whether it refuses the account now, and for longer than the account is ready to queue.
    pub(super) fn refuses(&self, account: &Account, now: u64) -> bool {
        let same = self.tag == account.tag && self.revision == account.revision;
        let told = account.need == self.need
            || account.need > self.need && (self.blocked || self.refilling);
        account.binds && same && told && now.saturating_add(account.patience) < self.until
    }

    /// Refuses `charge`: by itself where its key is blocked, otherwise beside what else is asked.
    pub(super) fn tell(&self, charge: &Charge<'_>, now: u64, refusal: &mut Decision) {
        let age = now.saturating_sub(self.came);
        let ask = Ask { max_wait: 0, ..charge.ask() };
        let same = self.blocked || ask.need() == self.need;
        for outcome in self.outcomes.iter().map(|outcome| outcome.aged(age)) {
            refusal.push(if same { outcome } else { repriced(&outcome, charge, ask) });
        }
    }

    pub(super) fn is_blocked(&self) -> bool {
        self.blocked
    }
}

/// Nothing is known of `charge`.
pub(super) fn pass_over(charge: &Charge<'_>, refusal: &mut Decision) {
    for (place, _) in charge.placed() {
        let unknown = Outcome::unknown(charge.rule(), place, Some(Duration::ZERO));
        refusal.push(unknown.report_only(charge.is_report_only()));
    }
}

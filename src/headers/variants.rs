//! Templates for requests that only some rules of a layer charge.
//!
//! A lookup takes no lock.

use std::sync::{Arc, OnceLock};

use super::template::Template;
use crate::{rule::RuleName, store::Charge};

/// The maximum number of stored templates.
const MOST: usize = 4_096;
/// The maximum number of slots that one lookup visits.
const PROBES: usize = 8;

/// The rules that charge a request. The flag is `true` for a report-only rule.
type Charged = Box<[(RuleName, bool)]>;

#[derive(Debug)]
pub(super) struct Variants {
    rules: usize,
    slots: OnceLock<Box<[TemplateSlot]>>,
}

type TemplateSlot = OnceLock<(Charged, Arc<Template>)>;

impl Variants {
    pub(super) fn new(rules: usize) -> Self {
        Self { rules, slots: OnceLock::new() }
    }

    /// Returns the template for these charges, created by `make` on first use.
    pub(super) fn get(&self, charges: &[Charge<'_>], make: impl Fn() -> Template) -> Arc<Template> {
        let slots = self.slots.get_or_init(|| self.room());
        let made = || {
            let charged = charges.iter().map(|charge| (charge.rule(), charge.is_report_only()));
            (charged.collect(), Arc::new(make()))
        };
        let first = hash(charges);
        for probe in 0..PROBES.min(slots.len()) {
            let slot = &slots[(first + probe) & (slots.len() - 1)];
            let (charged, template) = slot.get_or_init(made);
            if is_of(charged, charges) {
                return template.clone();
            }
        }
        Arc::new(make())
    }

    /// Creates empty slots. Their number is a power of two.
    fn room(&self) -> Box<[TemplateSlot]> {
        let slots = self.rules.saturating_mul(4).clamp(16, MOST).next_power_of_two();
        (0..slots).map(|_| TemplateSlot::new()).collect()
    }
}

fn is_of(charged: &[(RuleName, bool)], charges: &[Charge<'_>]) -> bool {
    let is = |(&(rule, reports), charge): (&(RuleName, bool), &Charge<'_>)| {
        rule == charge.rule() && reports == charge.is_report_only()
    };
    charged.len() == charges.len() && charged.iter().zip(charges).all(is)
}

fn hash(charges: &[Charge<'_>]) -> usize {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    let step = |hash: u64, charge: &Charge<'_>| {
        let charged = charge.rule().hash64() ^ u64::from(charge.is_report_only());
        (hash.rotate_left(5) ^ charged).wrapping_mul(ODD)
    };
    // The upper half of the hash is mixed best.
    let mixed = charges.iter().fold(0, step) >> 32;
    usize::try_from(mixed).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::{
        headers::{Headers, item::Items},
        key::Key,
        quota::Quota,
    };

    #[test]
    fn each_rule_alone_has_a_template_that_is_made_once() {
        let (key, quota, made) = (Key::everyone(), Quota::per_hour(1), Cell::new(0));
        let variants = Variants::new(64);
        for made_first in [true, false] {
            for rule in 0..64 {
                let name = RuleName::new(&format!("rule-{rule}")).expect("a name");
                let charges = [Charge::new(name, &key, quota.as_ref())];
                let before = made.get();
                let template = variants.get(&charges, || {
                    made.set(made.get() + 1);
                    Template::new(
                        Headers::RateLimit.into(),
                        Arc::new(Items::charged(&charges, None)),
                    )
                });
                assert_eq!(template.items.list[0].rule, name);
                assert_eq!(made.get() > before, made_first, "{name}");
            }
        }
    }
}

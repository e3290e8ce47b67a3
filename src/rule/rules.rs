//! One rule or several, as one decision.

use http::request::Parts;
use smallvec::SmallVec;

use super::LivePlan;
use crate::{
    key::{KeyError, KeyKind},
    load::Switch,
    name::RuleName,
    quota::Quota,
    store::Charge,
};

/// What a layer charges for a request: a [`Rule`](crate::Rule), a tuple of up to four (tuples
/// nest), or a `Vec`.
///
/// All charges of a request are one decision: everything is charged, or nothing.
///
/// ```
/// use tower_sluice::{LocalStore, Quota, RateLimitLayer, Rule, key::Everyone};
///
/// let rule = |name, units| Rule::new(name, Everyone, Quota::per_second(units));
/// let nested = ((rule("a", 1), rule("b", 2), rule("c", 3)), (rule("d", 4), rule("e", 5)));
/// RateLimitLayer::rules(nested, LocalStore::new());
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a rule or a tuple of rules",
    note = "a tuple has up to four rules; for more nest tuples, or use a `Vec`",
    note = "`RateLimitLayer::new(extractor, quota, store)` makes a rule of an extractor"
)]
pub trait Rules {
    /// Adds the charges of the request with this head to `before`, and hands all to `then`, once.
    ///
    /// # Errors
    ///
    /// When the request is set aside before any store is asked; `then` is not called.
    fn charge(
        &self,
        parts: &Parts,
        before: &[Charge<'_>],
        then: &mut dyn FnMut(&[Charge<'_>]),
    ) -> Result<(), Aside>;

    /// Hands the charges of the request with this head to `then`, and back what it says: what
    /// [`charge`](Rules::charge) does, for a caller who knows the type and so is compiled into one
    /// piece with it.
    ///
    /// # Errors
    ///
    /// When the request is set aside before any store is asked; `then` is not called.
    #[inline]
    fn charges<T>(&self, parts: &Parts, then: impl FnOnce(&[Charge<'_>]) -> T) -> Result<T, Aside>
    where
        Self: Sized,
    {
        let (mut then, mut said) = (Some(then), None);
        self.charge(parts, &[], &mut |charges| {
            if let Some(then) = then.take() {
                said = Some(then(charges));
            }
        })?;
        // nobody was told of a charge: nothing limits it
        said.ok_or(Aside::Exempt)
    }

    /// Adds the shape of every rule to `shapes`.
    fn describe<'a>(&'a self, shapes: &mut Vec<Shape<'a>>);
}

const _: Option<&dyn Rules> = None;

/// What is known of a rule before any request.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Shape<'a> {
    /// Its name.
    pub name: RuleName,
    /// The kind of its keys, that of requests without an identity among them where they share one.
    pub key_kind: KeyKind,
    /// Its quotas; `None` where they are chosen per request or may change.
    pub quotas: Option<&'a [Quota]>,
    /// The plan from which they may be replaced while the server runs.
    pub live: Option<&'a LivePlan>,
    /// What a request costs, where that is fixed.
    pub cost: Option<u32>,
    /// What a request must leave over, where that is fixed.
    pub headroom: Option<u32>,
    /// Whether requests may wait for their place.
    pub queues: bool,
    /// Whether it refuses nobody now.
    pub report_only: bool,
    /// Whether that is meant to be flipped while the server runs.
    pub(crate) may_report: bool,
    /// What flips it; `None` where nothing does.
    pub report_only_switch: Option<&'a Switch>,
    /// The rule that charges a request where this one does not: of the rules of one
    /// `by_route` exactly one charges.
    pub instead_of: Option<RuleName>,
    /// Probable mistakes in the settings of its extractor; of a `by_route`, on its default alone.
    pub(crate) key_lints: Vec<String>,
    /// Set if `instead_of` charges requests of other methods to its route.
    pub(crate) leaves_methods: bool,
}

impl<'a> Shape<'a> {
    /// The shape of the rule that makes such a charge.
    pub(crate) fn of(charge: &Charge<'a>) -> Self {
        Self {
            name: charge.rule(),
            key_kind: KeyKind::Any,
            quotas: Some(charge.quotas()),
            live: None,
            cost: Some(charge.units()),
            headroom: Some(charge.reserve()),
            queues: !charge.patience().is_zero(),
            report_only: charge.is_report_only(),
            may_report: false,
            report_only_switch: None,
            instead_of: None,
            key_lints: Vec::new(),
            leaves_methods: false,
        }
    }

    /// The fewest units that must fit for a request that costs anything: what it costs and leaves
    /// over, as far as that is fixed; 0 where it costs nothing.
    pub(crate) fn least_need(&self) -> u64 {
        match self.cost.unwrap_or(1) {
            0 => 0,
            cost => u64::from(cost) + u64::from(self.headroom.unwrap_or(0)),
        }
    }
}

/// A request on which no store is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Aside {
    /// No rule applies to it: it passes.
    Exempt,
    /// It has no usable key, or is not let in.
    Refused(KeyError),
}

impl From<KeyError> for Aside {
    fn from(error: KeyError) -> Self {
        Self::Refused(error)
    }
}

/// Hands on `before` and one charge more.
#[inline]
pub(super) fn extend(
    before: &[Charge<'_>],
    charge: Charge<'_>,
    then: &mut dyn FnMut(&[Charge<'_>]),
) {
    if before.is_empty() {
        return then(&[charge]);
    }
    let mut charges: SmallVec<[Charge<'_>; 4]> = before.into();
    charges.push(charge);
    then(&charges);
}

/// Chains rules: the first adds to `before`, the rest to what the first handed on.
fn chain(
    rules: &[&dyn Rules],
    parts: &Parts,
    before: &[Charge<'_>],
    then: &mut dyn FnMut(&[Charge<'_>]),
) -> Result<(), Aside> {
    let Some((first, rest)) = rules.split_first() else {
        then(before);
        return Ok(());
    };
    let mut later = Ok(());
    match first.charge(parts, before, &mut |all| later = chain(rest, parts, all, then)) {
        Ok(()) => later,
        Err(Aside::Exempt) => Err(Aside::Exempt),
        // unless a later rule exempts it from this one too
        Err(Aside::Refused(error)) => match chain(rest, parts, before, &mut |_| ()) {
            Err(Aside::Exempt) => Err(Aside::Exempt),
            _ => Err(Aside::Refused(error)),
        },
    }
}

impl<A: Rules, B: Rules> Rules for (A, B) {
    fn charge(
        &self,
        parts: &Parts,
        before: &[Charge<'_>],
        then: &mut dyn FnMut(&[Charge<'_>]),
    ) -> Result<(), Aside> {
        chain(&[&self.0, &self.1], parts, before, then)
    }

    fn describe<'a>(&'a self, shapes: &mut Vec<Shape<'a>>) {
        self.0.describe(shapes);
        self.1.describe(shapes);
    }
}

impl<A: Rules, B: Rules, C: Rules> Rules for (A, B, C) {
    fn charge(
        &self,
        parts: &Parts,
        before: &[Charge<'_>],
        then: &mut dyn FnMut(&[Charge<'_>]),
    ) -> Result<(), Aside> {
        chain(&[&self.0, &self.1, &self.2], parts, before, then)
    }

    fn describe<'a>(&'a self, shapes: &mut Vec<Shape<'a>>) {
        self.0.describe(shapes);
        self.1.describe(shapes);
        self.2.describe(shapes);
    }
}

impl<A: Rules, B: Rules, C: Rules, D: Rules> Rules for (A, B, C, D) {
    fn charge(
        &self,
        parts: &Parts,
        before: &[Charge<'_>],
        then: &mut dyn FnMut(&[Charge<'_>]),
    ) -> Result<(), Aside> {
        chain(&[&self.0, &self.1, &self.2, &self.3], parts, before, then)
    }

    fn describe<'a>(&'a self, shapes: &mut Vec<Shape<'a>>) {
        self.0.describe(shapes);
        self.1.describe(shapes);
        self.2.describe(shapes);
        self.3.describe(shapes);
    }
}

impl<R: Rules> Rules for Vec<R> {
    fn charge(
        &self,
        parts: &Parts,
        before: &[Charge<'_>],
        then: &mut dyn FnMut(&[Charge<'_>]),
    ) -> Result<(), Aside> {
        let rules: SmallVec<[&dyn Rules; 4]> = self.iter().map(|rules| rules as _).collect();
        chain(&rules, parts, before, then)
    }

    fn describe<'a>(&'a self, shapes: &mut Vec<Shape<'a>>) {
        self.iter().for_each(|rules| rules.describe(shapes));
    }
}

impl<R: Rules + ?Sized> Rules for Box<R> {
    fn charge(
        &self,
        parts: &Parts,
        before: &[Charge<'_>],
        then: &mut dyn FnMut(&[Charge<'_>]),
    ) -> Result<(), Aside> {
        (**self).charge(parts, before, then)
    }

    fn describe<'a>(&'a self, shapes: &mut Vec<Shape<'a>>) {
        (**self).describe(shapes);
    }
}

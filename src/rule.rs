//! Rules: who pays, how much there is, and what a request costs.

use std::{fmt, sync::Arc};

use http::{StatusCode, request::Parts};
use smallvec::SmallVec;

use crate::{
    key::{Everyone, Key, KeyError, KeyExtractor},
    name::RuleName,
    quota::Quota,
    store::{Charge, Store, Unsupported},
};

/// The longest key a rule takes unless told otherwise, in bytes.
const KEY_LEN: usize = 1024;

/// A name, an extractor, the quotas of each of its keys, and the cost of a request.
///
/// ```
/// use tower_sluice::{Missing, Quota, Rule, key::Header};
///
/// let rule = Rule::new(
///     "user",
///     Header::new("x-api-key"),
///     [Quota::per_second(5).burst(20), Quota::per_day(10_000)],
/// )
/// .cost(2)
/// .missing(Missing::Skip);
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Rule<K> {
    name: RuleName,
    extractor: K,
    quotas: Quotas,
    cost: Cost,
    missing: Missing,
    max_key_len: usize,
}

impl<K> Rule<K> {
    /// A rule of one quota, or of several that are charged together.
    ///
    /// # Panics
    ///
    /// When `name` is no [`RuleName`], or there are more than 255 quotas. A name from outside is
    /// parsed to a `RuleName` and given to [`Rule::named`].
    #[track_caller]
    pub fn new(name: &str, extractor: K, quotas: impl Into<Quotas>) -> Self {
        match RuleName::new(name) {
            Ok(name) => Self::named(name, extractor, quotas),
            Err(wrong) => panic!("{wrong}"),
        }
    }

    /// [`Rule::new`] with a name that is already checked.
    ///
    /// # Panics
    ///
    /// When there are more than 255 quotas.
    #[track_caller]
    pub fn named(name: RuleName, extractor: K, quotas: impl Into<Quotas>) -> Self {
        let quotas = quotas.into();
        assert!(quotas.0.len() <= 255, "rule {name}: {} quotas; give at most 255", quotas.0.len());
        let (cost, missing) = (Cost::from(1), Missing::default());
        Self { name, extractor, quotas, cost, missing, max_key_len: KEY_LEN }
    }

    /// What a request costs: a number of units, or [`Cost::from_fn`]; 1 unless set. A request of
    /// cost 0 is not charged.
    pub fn cost(self, cost: impl Into<Cost>) -> Self {
        Self { cost: cost.into(), ..self }
    }

    /// What becomes of a request without an identity; refused with 400 unless set.
    pub fn missing(self, missing: Missing) -> Self {
        Self { missing, ..self }
    }

    /// The longest key taken, in bytes; 1 KiB unless set. A longer one is refused with 400.
    pub fn max_key_len(self, bytes: usize) -> Self {
        Self { max_key_len: bytes, ..self }
    }
}

impl Rule<Everyone> {
    /// A rule that charges nothing and refuses nobody: the opposite of [`Quota::blocked`].
    pub fn unlimited() -> Self {
        Self::named(RuleName::default(), Everyone, [])
    }
}

impl<K: KeyExtractor> Rule<K> {
    fn key(&self, parts: &Parts) -> Result<Option<Key>, KeyError> {
        let error = match self.extractor.extract(parts) {
            Ok(Some(key)) if key.len() > self.max_key_len => {
                let why = format!("key of {} bytes; at most {}", key.len(), self.max_key_len);
                return Err(KeyError::refused(StatusCode::BAD_REQUEST, why));
            }
            Ok(Some(key)) if key.is_blank() => KeyError::missing("key"),
            Err(error) if error.is_missing() => error,
            found => return found,
        };
        match self.missing {
            Missing::Reject(status) => Err(error.with_status(status)),
            Missing::Skip => Ok(None),
            Missing::Share => Ok(Some(Key::unidentified())),
        }
    }
}

/// The quotas of a rule, charged all or none: made of a [`Quota`], an array, a slice or a `Vec`.
#[derive(Clone, Debug)]
pub struct Quotas(SmallVec<[Quota; 1]>);

impl From<Quota> for Quotas {
    fn from(quota: Quota) -> Self {
        Self(SmallVec::from_buf([quota]))
    }
}

impl<const N: usize> From<[Quota; N]> for Quotas {
    fn from(quotas: [Quota; N]) -> Self {
        Self(quotas.into_iter().collect())
    }
}

impl From<&[Quota]> for Quotas {
    fn from(quotas: &[Quota]) -> Self {
        Self(quotas.into())
    }
}

impl From<Vec<Quota>> for Quotas {
    fn from(quotas: Vec<Quota>) -> Self {
        Self(quotas.into())
    }
}

/// What becomes of a request that does not say who it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Missing {
    /// It is refused with this status.
    Reject(StatusCode),
    /// The rule does not apply to it: whoever leaves the identity out is not limited by this rule.
    Skip,
    /// All such requests share one account of the rule.
    Share,
}

/// Refused with 400.
impl Default for Missing {
    fn default() -> Self {
        Self::Reject(StatusCode::BAD_REQUEST)
    }
}

/// What a request costs, in units of quota.
///
/// ```
/// use tower_sluice::Cost;
///
/// Cost::from(5);
/// Cost::from_fn(|parts| if parts.uri.path() == "/export" { 50 } else { 1 });
/// ```
#[derive(Clone)]
pub struct Cost(CostKind);

#[derive(Clone)]
enum CostKind {
    Fixed(u32),
    Read(Arc<dyn Fn(&Parts) -> u32 + Send + Sync>),
}

impl Cost {
    /// The cost that `read` finds in the head of the request.
    pub fn from_fn(read: impl Fn(&Parts) -> u32 + Send + Sync + 'static) -> Self {
        Self(CostKind::Read(Arc::new(read)))
    }

    fn of(&self, parts: &Parts) -> u32 {
        match &self.0 {
            CostKind::Fixed(units) => *units,
            CostKind::Read(read) => read(parts),
        }
    }

    fn fixed(&self) -> Option<u32> {
        match &self.0 {
            CostKind::Fixed(units) => Some(*units),
            CostKind::Read(_) => None,
        }
    }
}

impl From<u32> for Cost {
    fn from(units: u32) -> Self {
        Self(CostKind::Fixed(units))
    }
}

impl fmt::Debug for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            CostKind::Fixed(units) => write!(f, "Cost({units})"),
            CostKind::Read(_) => f.write_str("Cost(fn)"),
        }
    }
}

/// What a layer charges for a request: a [`Rule`], a tuple of up to four (tuples nest), or a `Vec`.
///
/// All charges of a request are one decision: everything is charged, or nothing.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a rule or a tuple of rules",
    note = "`RateLimitLayer::new(extractor, quota, store)` makes a rule of an extractor"
)]
pub trait Rules {
    /// Adds the charges of the request with this head to `before`, and hands all to `then`, once.
    ///
    /// # Errors
    ///
    /// When a rule cannot tell who pays; `then` is not called, and nothing is charged.
    fn charge(
        &self,
        parts: &Parts,
        before: &[Charge<'_>],
        then: &mut dyn FnMut(&[Charge<'_>]),
    ) -> Result<(), KeyError>;

    /// Adds the shape of every rule to `shapes`.
    fn describe<'a>(&'a self, shapes: &mut Vec<Shape<'a>>);
}

/// What is known of a rule before any request.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Shape<'a> {
    /// Its name.
    pub name: RuleName,
    /// Its quotas; none for a rule without limits.
    pub quotas: &'a [Quota],
    /// What a request costs, where that is fixed.
    pub cost: Option<u32>,
}

impl<K: KeyExtractor> Rules for Rule<K> {
    #[inline]
    fn charge(
        &self,
        parts: &Parts,
        before: &[Charge<'_>],
        then: &mut dyn FnMut(&[Charge<'_>]),
    ) -> Result<(), KeyError> {
        let key = if self.quotas.0.is_empty() { None } else { self.key(parts)? };
        match &key {
            None => then(before),
            Some(key) => {
                let charge = Charge::new(self.name, key, &self.quotas.0).cost(self.cost.of(parts));
                if before.is_empty() {
                    then(&[charge]);
                } else {
                    let mut charges: SmallVec<[Charge<'_>; 4]> = before.into();
                    charges.push(charge);
                    then(&charges);
                }
            }
        }
        Ok(())
    }

    fn describe<'a>(&'a self, shapes: &mut Vec<Shape<'a>>) {
        let (name, quotas, cost) = (self.name, &*self.quotas.0, self.cost.fixed());
        shapes.push(Shape { name, quotas, cost });
    }
}

/// Chains rules: the first adds to `before`, the rest to what the first handed on.
fn chain(
    rules: &[&dyn Rules],
    parts: &Parts,
    before: &[Charge<'_>],
    then: &mut dyn FnMut(&[Charge<'_>]),
) -> Result<(), KeyError> {
    let Some((first, rest)) = rules.split_first() else {
        then(before);
        return Ok(());
    };
    let mut later = Ok(());
    first.charge(parts, before, &mut |all| later = chain(rest, parts, all, then))?;
    later
}

impl<A: Rules, B: Rules> Rules for (A, B) {
    fn charge(
        &self,
        parts: &Parts,
        before: &[Charge<'_>],
        then: &mut dyn FnMut(&[Charge<'_>]),
    ) -> Result<(), KeyError> {
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
    ) -> Result<(), KeyError> {
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
    ) -> Result<(), KeyError> {
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
    ) -> Result<(), KeyError> {
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
    ) -> Result<(), KeyError> {
        (**self).charge(parts, before, then)
    }

    fn describe<'a>(&'a self, shapes: &mut Vec<Shape<'a>>) {
        (**self).describe(shapes);
    }
}

/// Why rules cannot be a layer: found when it is built, so that no request meets it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RuleError {
    /// Two rules have one name, and would charge one account.
    SameName(RuleName),
    /// Two quotas would be called the same in header fields.
    SameQuotaName(String),
    /// Every request of the rule would be refused: its fixed cost is above a quota's limit.
    CostAboveLimit {
        /// The rule.
        rule: RuleName,
        /// What a request costs.
        cost: u32,
        /// What the quota ever has.
        limit: u32,
    },
    /// The store cannot do what the rules ask.
    Unsupported(Unsupported),
}

impl fmt::Display for RuleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SameName(name) => write!(f, "two rules are named {name:?}; rename one"),
            Self::SameQuotaName(name) => {
                write!(f, "two quotas are called {name:?} in header fields; use Quota::named")
            }
            Self::CostAboveLimit { rule, cost, limit } => write!(
                f,
                "rule {rule}: cost {cost} is above the quota's limit {limit}, so that every \
                 request would be refused; lower the cost or raise the burst"
            ),
            Self::Unsupported(what) => write!(f, "the store cannot do this: {what}"),
        }
    }
}

impl std::error::Error for RuleError {}

/// Looks for what would refuse or confuse every request.
pub(crate) fn check<S: Store>(shapes: &[Shape<'_>], store: &S) -> Result<(), RuleError> {
    let limiting: Vec<_> = shapes.iter().filter(|shape| !shape.quotas.is_empty()).collect();
    for (at, Shape { name, quotas, cost }) in limiting.iter().enumerate() {
        if limiting[..at].iter().any(|earlier| earlier.name == *name) {
            return Err(RuleError::SameName(*name));
        }
        for quota in quotas.iter().filter(|quota| !quota.is_blocked()) {
            let (cost, limit) = (cost.unwrap_or(0), quota.limit());
            if cost > limit {
                return Err(RuleError::CostAboveLimit { rule: *name, cost, limit });
            }
        }
    }
    if limiting.is_empty() {
        return Ok(());
    }
    let anyone = Key::everyone();
    let charges: Vec<_> = limiting
        .iter()
        .map(|shape| Charge::new(shape.name, &anyone, shape.quotas).cost(shape.cost.unwrap_or(1)))
        .collect();
    store.check(&charges).map_err(RuleError::Unsupported)
}

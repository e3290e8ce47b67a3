//! Tables of steps for leases and for the deny cache: `cases/leases.json` and `cases/deny_cache.json`.
//!
//! The calls are those of one process, or of another one (`plain`) that has neither. Time advances only
//! by the tests.

use std::{
    collections::{BTreeMap, HashMap},
    convert::Infallible,
    fmt::Debug,
    pin::Pin,
};

use serde::Deserialize;
use tokio::task::yield_now;
use tokio_test::{assert_pending, assert_ready_ok, task, task::Spawn};
use tower_sluice::{
    Decision, Key, Quota, Store, StoreExt, decision::Outcome, rule::RuleName, store::Charge,
};

use crate::support::{
    driven::{Counting, Time, millis},
    quota,
    slow::{Slow, When},
};

#[derive(Deserialize)]
struct Case {
    name: String,
    /// The quotas of each account by its name, which is that of its rule and its key.
    accounts: BTreeMap<String, Vec<String>>,
    /// The keys for which there is room.
    #[serde(default = "many")]
    capacity: usize,
    steps: Vec<Step>,
}

/// An operation, and what it must show.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    op: String,
    /// The accounts of one call.
    #[serde(default)]
    on: Vec<String>,
    /// Other quotas of these accounts.
    quotas: Option<Vec<String>>,
    /// The cost for the first account. It is one for the others.
    #[serde(default = "one")]
    cost: u32,
    #[serde(default)]
    report_only: bool,
    #[serde(default = "one")]
    times: u32,
    #[serde(default)]
    plain: bool,
    /// The name of calls that a later step answers, drops or undoes.
    #[serde(default)]
    name: String,
    /// The most units that an `undo` returns.
    units: Option<u32>,
    #[serde(default)]
    millis: u64,
    /// The number of allowed calls.
    allowed: Option<usize>,
    /// The component that made the last decision.
    source: Option<String>,
    /// The wait of the last decision, in milliseconds.
    retry: Option<u64>,
    /// The units that the last decision reports as left of its first quota.
    remaining: Option<u32>,
    /// The quotas of the last decision that denied.
    denied: Option<Vec<bool>>,
    /// The decisions of the shared store.
    calls: Option<usize>,
    most_calls: Option<usize>,
    /// The charges that it has undone.
    given_back: Option<usize>,
    /// The units left in it of accounts.
    #[serde(default)]
    left: BTreeMap<String, u32>,
    #[serde(default)]
    most_left: BTreeMap<String, u32>,
}

fn one() -> u32 {
    1
}

fn many() -> usize {
    64
}

/// An account, as a step charges it.
struct Account {
    rule: RuleName,
    key: Key,
    quotas: Vec<Quota>,
    cost: u32,
    report_only: bool,
}

impl Account {
    fn new(name: &str, quotas: &[String]) -> Self {
        let quotas = quotas.iter().map(|text| quota(text)).collect();
        let rule = RuleName::new(name).expect("a name");
        Self { rule, key: Key::from(name), quotas, cost: 1, report_only: false }
    }

    fn charge(&self) -> Charge<'_> {
        let charge = Charge::new(self.rule, &self.key, &self.quotas).with_cost(self.cost);
        charge.with_report_only(self.report_only)
    }
}

type Asking = Spawn<Pin<Box<dyn Future<Output = Result<Decision, Infallible>>>>>;

/// The process, the store that it shares with others, and its calls.
struct Player<'a, S> {
    case: &'a Case,
    time: Time,
    shared: Counting<Slow>,
    /// Ends with its process.
    store: Option<S>,
    asking: HashMap<&'a str, Asking>,
    taken: HashMap<&'a str, Vec<Decision>>,
}

impl<'a, S> Player<'a, S>
where
    S: Store<Error = Infallible, Future: 'static>,
{
    fn accounts(&self, step: &Step) -> Vec<Account> {
        let quotas = |name| step.quotas.as_ref().unwrap_or(&self.case.accounts[name]);
        let mut accounts: Vec<_> =
            step.on.iter().map(|name| Account::new(name, quotas(name))).collect();
        if let Some(first) = accounts.first_mut() {
            first.cost = step.cost;
            first.report_only = step.report_only;
        }
        accounts
    }

    /// Makes the calls of a step, and returns their decisions.
    async fn calls(&mut self, step: &'a Step) -> Vec<Decision> {
        let accounts = self.accounts(step);
        let charges: Vec<_> = accounts.iter().map(Account::charge).collect();
        let local = &self.shared.store().store;
        let Some(store) = &self.store else { panic!("the process has ended") };
        let mut decisions = Vec::new();
        for _ in 0..step.times {
            let decided = match (step.op.as_str(), step.plain) {
                ("take", true) => local.take(&charges).now(),
                ("take", false) => certain(store.take(&charges).await),
                ("charge", true) => local.adjust(&charges[0], step.cost.into()).now(),
                ("charge", false) => certain(store.adjust(&charges[0], step.cost.into()).await),
                ("refund", false) => {
                    certain(store.adjust(&charges[0], -i64::from(step.cost)).await)
                }
                ("reset", true) => local.reset(&charges[0]).now(),
                ("reset", false) => certain(store.reset(&charges[0]).await),
                ("block", false) => certain(store.block(&charges[0], millis(step.millis)).await),
                ("unblock", false) => certain(store.unblock(&charges[0]).await),
                (op, _) => panic!("{op} is not a step"),
            };
            decisions.push(decided);
        }
        decisions
    }

    /// Begins a call whose answer is held back.
    fn begin(&mut self, step: &'a Step) {
        let accounts = self.accounts(step);
        let charges: Vec<_> = accounts.iter().map(Account::charge).collect();
        self.shared.store().answer(When::Told);
        let store = self.store.as_ref().expect("a process");
        let mut call: Asking = task::spawn(Box::pin(store.take(&charges).into_future()));
        assert_pending!(call.poll());
        self.shared.store().answer(When::AtFirstPoll);
        self.asking.insert(&step.name, call);
    }

    async fn answer(&mut self, step: &'a Step) -> Decision {
        self.shared.store().tell(1);
        yield_now().await;
        let mut call = self.asking.remove(&*step.name).expect("a call");
        assert!(call.is_woken(), "{} hangs", step.name);
        assert_ready_ok!(call.poll())
    }

    fn undo(&self, step: &Step) {
        let accounts = self.accounts(step);
        let charges: Vec<_> = accounts.iter().map(Account::charge).collect();
        for taken in &self.taken[&*step.name] {
            match (&self.store, step.plain) {
                (Some(store), false) => store.undo(&charges, taken, step.units),
                _ => self.shared.store().undo(&charges, taken, step.units),
            }
        }
    }

    /// Advances time in short steps, so that unused units are noticed.
    async fn pass(&self, millis_left: u64) {
        for _ in 0..millis_left / 10 {
            self.time.pass(millis(10)).await;
            yield_now().await;
        }
        self.time.pass(millis(millis_left % 10)).await;
        yield_now().await;
    }

    async fn step(&mut self, step: &'a Step) -> Vec<Decision> {
        match step.op.as_str() {
            "begin" => self.begin(step),
            "answer" => return vec![self.answer(step).await],
            "leave" => drop(self.asking.remove(&*step.name)),
            "undo" => self.undo(step),
            "pass" => self.pass(step.millis).await,
            "end" => self.store = None,
            _ => {
                let decisions = self.calls(step).await;
                self.taken.insert(&step.name, decisions.clone());
                return decisions;
            }
        }
        yield_now().await;
        Vec::new()
    }

    fn left(&self, name: &str) -> u32 {
        let account = Account::new(name, &self.case.accounts[name]);
        let look = self.shared.store().store.take(&[account.charge().with_cost(0)]).now();
        look.outcomes()[0].remaining()
    }

    /// Plays the steps, and returns what differs from the table.
    async fn play(mut self) -> Vec<String> {
        let mut all = Vec::new();
        for (at, step) in self.case.steps.iter().enumerate() {
            let (takes, given_back) = (self.shared.takes(), self.shared.given_back());
            let decisions = self.step(step).await;
            let calls = self.shared.takes() - takes;
            let allowed = decisions.iter().filter(|decision| decision.is_allowed()).count();
            let mut wrong = Wrong(Vec::new());
            wrong.compare("allowed", step.allowed, &allowed);
            if let Some(last) = decisions.last() {
                wrong.compare("source", step.source.as_deref(), &last.source().as_str());
                wrong.compare("retry", step.retry.map(|it| Some(millis(it))), &last.retry_after());
                let remaining = last.outcomes().first().map(Outcome::remaining);
                wrong.compare("remaining", step.remaining.map(Some), &remaining);
                let denied = last.outcomes().iter().map(Outcome::is_denied).collect();
                wrong.compare("denied", step.denied.clone(), &denied);
            }
            wrong.compare("calls", step.calls, &calls);
            wrong.compare("most calls", step.most_calls.map(|most| calls.min(most)), &calls);
            let given_back = self.shared.given_back() - given_back;
            wrong.compare("given back", step.given_back, &given_back);
            for (name, left) in &step.left {
                wrong.compare(name, Some(*left), &self.left(name));
            }
            for (name, most) in &step.most_left {
                let left = self.left(name);
                wrong.compare(name, Some(left.min(*most)), &left);
            }
            let name = &self.case.name;
            all.extend(wrong.0.into_iter().map(|text| format!("{name}, step {at}: {text}")));
        }
        all
    }
}

/// What differs from a step.
struct Wrong(Vec<String>);

impl Wrong {
    fn compare<T: PartialEq + Debug>(&mut self, what: &str, expected: Option<T>, found: &T) {
        if let Some(expected) = expected.filter(|expected| expected != found) {
            self.0.push(format!("{what}: {found:?} instead of {expected:?}"));
        }
    }
}

fn certain(decision: Result<Decision, Infallible>) -> Decision {
    decision.expect("infallible")
}

/// Plays each case, if its answers are not held back also with answers at once.
async fn play<S>(table: &str, cases: usize, wrap: impl Fn(Counting<Slow>, &Case) -> S)
where
    S: Store<Error = Infallible, Future: 'static>,
{
    let table: Vec<Case> = serde_json::from_str(table).expect("a list of cases");
    assert_eq!(table.len(), cases);
    let mut wrong = Vec::new();
    for case in &table {
        let is_held = case.steps.iter().any(|step| step.op == "begin");
        for when in [When::AtFirstPoll, When::AtOnce] {
            if is_held && when == When::AtOnce {
                continue;
            }
            let time = Time::default();
            let shared = Counting::new(Slow::new(time.0.store(1_024), when));
            let store = Some(wrap(shared.clone(), case));
            let (asking, taken) = Default::default();
            let player = Player { case, time, shared, store, asking, taken };
            wrong.extend(player.play().await);
        }
    }
    assert_eq!(wrong, [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn leases_answer_as_in_their_table() {
    let wrap = |shared: Counting<Slow>, case: &Case| shared.leases(5).capacity(case.capacity);
    play(include_str!("cases/leases.json"), 12, wrap).await;
}

#[tokio::test(start_paused = true)]
async fn a_deny_cache_answers_as_in_its_table() {
    let wrap = |shared: Counting<Slow>, case: &Case| shared.deny_cache().capacity(case.capacity);
    play(include_str!("cases/deny_cache.json"), 8, wrap).await;
}

//! A store on PostgreSQL, with public items of the crate only.
//!
//! The functions of `schema.sql` decide. They return what was used of each account, and `call.rs`
//! computes all numbers of a decision from that.

use std::{
    convert::Infallible,
    sync::{Arc, Weak},
    time::Duration,
};

use deadpool_postgres::{Manager, Pool, PoolError};
use tokio::{runtime::Handle, sync::watch, time::interval};
use tokio_postgres::{NoTls, Row, types::ToSql};
use tower::BoxError;
use tower_sluice::{
    Algorithm, Decision, Quota, Store,
    store::{Answer, BoxFuture, Charge, Context, Never, Op, Unsupported},
};

use super::call::{Call, MOST, State, block_name, nanos};

const SCHEMA: &str = include_str!("schema.sql");
const CONNECTIONS: usize = 16;
/// The time between two deletions of rows that say nothing any more.
const SWEEP_INTERVAL: Duration = Duration::from_secs(60);

const TAKE: &str = "SELECT * FROM sluice_take($1, $2, $3, $4, $5, $6, $7, $8, $9)";
const CHANGE: &str = "SELECT * FROM sluice_change($1, $2, $3, $4, $5, $6, $7, $8)";
const RESET: &str = "SELECT sluice_reset($1, $2)";
const BLOCK: &str = "SELECT sluice_block($1, $2, $3)";
const SWEEP: &str = "SELECT sluice_sweep($1)";

/// A store on PostgreSQL, for GCRA and fixed windows. A clone is the same store.
#[derive(Clone)]
pub(crate) struct PostgresStore {
    prefix: String,
    shared: Arc<Shared>,
}

struct Shared {
    pool: Pool,
    clock: Option<Box<dyn Fn() -> Duration + Send + Sync>>,
    /// The number of undos that have not taken effect.
    undoing: watch::Sender<usize>,
}

impl PostgresStore {
    /// Connects, and creates the table and the functions.
    pub(crate) async fn connect(url: &str) -> Result<Self, BoxError> {
        Self::open(url, None).await
    }

    /// Connects as [`connect`](Self::connect) does, with a clock in place of the server's, for tests.
    pub(crate) async fn driven(
        url: &str,
        clock: impl Fn() -> Duration + Send + Sync + 'static,
    ) -> Result<Self, BoxError> {
        Self::open(url, Some(Box::new(clock))).await
    }

    async fn open(
        url: &str,
        clock: Option<Box<dyn Fn() -> Duration + Send + Sync>>,
    ) -> Result<Self, BoxError> {
        let manager = Manager::new(url.parse()?, NoTls);
        let pool = Pool::builder(manager).max_size(CONNECTIONS).build()?;
        pool.get().await?.batch_execute(SCHEMA).await?;
        let shared = Arc::new(Shared { pool, clock, undoing: watch::Sender::new(0) });
        tokio::spawn(sweep(Arc::downgrade(&shared)));
        Ok(Self { prefix: String::new(), shared })
    }

    /// Returns a store with accounts of its own in the same table.
    pub(crate) fn prefix(&self, prefix: &str) -> Self {
        Self { prefix: prefix.to_owned(), shared: self.shared.clone() }
    }

    /// Waits until undone charges have taken effect.
    pub(crate) async fn settled(&self) {
        let mut undoing = self.shared.undoing.subscribe();
        // The sender is alive.
        drop(undoing.wait_for(|undoing| *undoing == 0).await);
    }

    /// Deletes rows that say nothing any more. Returns their number.
    pub(crate) async fn sweep(&self) -> Result<i64, PoolError> {
        self.shared.sweep().await
    }
}

/// Deletes rows that say nothing any more, until the store is dropped.
async fn sweep(store: Weak<Shared>) {
    let mut turns = interval(SWEEP_INTERVAL);
    loop {
        turns.tick().await;
        let Some(store) = store.upgrade() else { return };
        // A failure of the server is one of decisions, too, and the next sweep deletes more.
        while store.sweep().await.is_ok_and(|deleted| deleted > 0) {}
    }
}

impl Shared {
    fn clock(&self) -> Option<i64> {
        self.clock.as_ref().map(|clock| nanos(clock()))
    }

    async fn query(&self, text: &str, values: &[&(dyn ToSql + Sync)]) -> Result<Row, PoolError> {
        let client = self.pool.get().await?;
        let statement = client.prepare_cached(text).await?;
        Ok(client.query_one(&statement, values).await?)
    }

    async fn sweep(&self) -> Result<i64, PoolError> {
        Ok(self.query(SWEEP, &[&self.clock()]).await?.get(0))
    }

    /// Charges, or returns what the charge would be.
    async fn take(&self, call: &Call, is_change: bool) -> Result<Decision, PoolError> {
        let values: [&(dyn ToSql + Sync); 9] = [
            &call.column(|account| &*account.name),
            &call.column(|account| account.kind),
            &call.column(|account| account.period),
            &call.column(|account| account.cost),
            &call.column(|account| account.need),
            &call.column(|account| account.most),
            &call.block_names(),
            &(is_change && !call.is_look()),
            &self.clock(),
        ];
        let row = self.query(TAKE, &values).await?;
        let instant = row.get("instant");
        let blocked_until: Option<Vec<i64>> = row.get("blocked_until");
        let blocked = call.blocked(&blocked_until.unwrap_or_default(), instant);
        Ok(blocked.unwrap_or_else(|| call.decision(row.get("is_allowed"), instant, &states(&row))))
    }

    /// Charges `units` more of each account, or refunds a negative number.
    async fn adjust(&self, call: &Call, changes: Vec<i64>) -> Result<Decision, PoolError> {
        self.change(call, changes, None, Vec::new()).await
    }

    async fn change(
        &self,
        call: &Call,
        changes: Vec<i64>,
        charged_at: Option<i64>,
        held_until: Vec<i64>,
    ) -> Result<Decision, PoolError> {
        let values: [&(dyn ToSql + Sync); 8] = [
            &call.column(|account| &*account.name),
            &call.column(|account| account.kind),
            &call.column(|account| account.period),
            &changes,
            &call.column(|account| account.late_most),
            &charged_at,
            &held_until,
            &self.clock(),
        ];
        let row = self.query(CHANGE, &values).await?;
        Ok(call.decision(true, row.get("instant"), &states(&row)))
    }

    async fn run(&self, op: &Change, call: &Call) -> Result<Decision, PoolError> {
        match op {
            Change::Take => return self.take(call, true).await,
            Change::Peek => return self.take(call, false).await,
            Change::Adjust(changes) => return self.adjust(call, changes.clone()).await,
            Change::Reset => {
                let names = call.column(|account| &*account.name);
                self.query(RESET, &[&names, &self.clock()]).await?;
            }
            Change::Block(name, length) => {
                self.query(BLOCK, &[name, length, &self.clock()]).await?;
            }
        }
        self.take(call, false).await
    }
}

/// The change that a call makes.
enum Change {
    Take,
    Peek,
    Adjust(Vec<i64>),
    Reset,
    /// The row of the block, and its length in nanoseconds. Zero ends a block.
    Block(Vec<u8>, i64),
}

fn states(row: &Row) -> Vec<State> {
    let starts: Option<Vec<i64>> = row.get("starts");
    let used: Option<Vec<i64>> = row.get("used");
    let states = starts.into_iter().flatten().zip(used.into_iter().flatten());
    states.map(|(start, used)| State { start, used }).collect()
}

impl Store for PostgresStore {
    type Error = BoxError;
    type Future = BoxFuture<Result<Decision, BoxError>>;

    fn call(&self, op: Op<'_>, _: &Context<'_>) -> Answer<Self::Future> {
        let change = match op {
            Op::Take(_) => Change::Take,
            Op::Peek(_) => Change::Peek,
            Op::Adjust(charge, units) => {
                Change::Adjust(Call::new(&self.prefix, &[charge.with_cost(1)]).times(units))
            }
            Op::Reset(_) => Change::Reset,
            Op::Block(charge, time) => {
                Change::Block(block_name(&self.prefix, charge), nanos(time).min(MOST))
            }
            Op::Unblock(charge) => Change::Block(block_name(&self.prefix, charge), 0),
            _ => return Answer::Now(Err(Unsupported::new("this operation").into())),
        };
        let call = match op {
            Op::Take(charges) | Op::Peek(charges) => Call::new(&self.prefix, charges),
            _ => Call::new(&self.prefix, &[op.charges()[0].with_cost(0)]),
        };
        let shared = self.shared.clone();
        Answer::Later(Box::pin(async move { Ok(shared.run(&change, &call).await?) }))
    }

    fn undo(&self, charges: &[Charge<'_>], taken: &Decision, units: Option<u32>) {
        let Ok(runtime) = Handle::try_current() else { return };
        if !taken.is_allowed() {
            return;
        }
        let call = Call::new(&self.prefix, charges);
        let charged_at = Some(nanos(taken.charged_at()));
        let held_until = call.held_until(taken);
        let returns = call.returns(units);
        let shared = self.shared.clone();
        shared.undoing.send_modify(|undoing| *undoing += 1);
        runtime.spawn(async move {
            // Units that a failing server does not give back come back by themselves.
            drop(shared.change(&call, returns, charged_at, held_until).await);
            shared.undoing.send_modify(|undoing| *undoing -= 1);
        });
    }

    fn supports(&self, charges: &[Charge<'_>]) -> Result<(), Unsupported> {
        Plain.supports(charges)?;
        for charge in charges {
            if charge.report_only {
                return Err(Unsupported::new("report-only rules; use RedisStore"));
            }
            if !charge.max_wait.is_zero() {
                return Err(Unsupported::new("max_wait; use RedisStore"));
            }
            for quota in charge.quotas {
                supports_quota(quota)?;
            }
        }
        Ok(())
    }
}

fn supports_quota(quota: &Quota) -> Result<(), Unsupported> {
    let is_plain = matches!(
        quota.algorithm(),
        Algorithm::Gcra
            | Algorithm::AnchoredWindow
            | Algorithm::FixedWindow { carry_over: 0, paced: false }
    );
    if !is_plain {
        return Err(Unsupported::new("algorithms other than GCRA and plain fixed windows"));
    }
    if quota.initial().is_some() {
        return Err(Unsupported::new("initial units; use RedisStore"));
    }
    Ok(())
}

/// A store with the default of [`Store::supports`], which finds slots and calendar periods.
struct Plain;

impl Store for Plain {
    type Error = Infallible;
    type Future = Never<Result<Decision, Infallible>>;

    fn call(&self, _: Op<'_>, _: &Context<'_>) -> Answer<Self::Future> {
        Answer::Now(Ok(Decision::deny()))
    }
}

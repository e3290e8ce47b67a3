//! The embedded store on the virtual clock.

use std::convert::Infallible;

use tower_sluice::{
    Decision, LocalStore, Store,
    store::{Answer, Charge, Context, Op, Unsupported},
    testing::FakeClock,
};

/// An embedded store whose clock is the runtime's.
pub struct VirtualLocal {
    store: LocalStore,
    clock: FakeClock,
    start: tokio::time::Instant,
}

impl VirtualLocal {
    /// Creates a store whose clock is zero at `start`.
    pub fn new(start: tokio::time::Instant) -> Self {
        let clock = FakeClock::new();
        // Enough room that no key shares an account.
        Self { store: clock.store(4_096), clock, start }
    }

    fn set_clock(&self) {
        self.clock.advance(self.start.elapsed().saturating_sub(self.clock.now()));
    }
}

impl Store for VirtualLocal {
    type Error = Infallible;
    type Future = <LocalStore as Store>::Future;

    fn call(&self, op: Op<'_>, context: &Context<'_>) -> Answer<Self::Future> {
        self.set_clock();
        self.store.call(op, context)
    }

    fn undo(&self, charges: &[Charge<'_>], taken: &Decision, units: Option<u32>) {
        self.set_clock();
        self.store.undo(charges, taken, units);
    }

    fn supports(&self, charges: &[Charge<'_>]) -> Result<(), Unsupported> {
        self.store.supports(charges)
    }
}

//! Sentinels promote the replica of a killed master.

use tokio::time::Instant;

use crate::{
    app::App,
    fault::{Fault, Findings, Must, World},
    servers::Sentinels,
    stack::{BURST, Door},
    stage::Ran,
};

pub(crate) fn faults() -> Vec<Fault> {
    // An attempt under way asks the sentinels first.
    let must = Must::policy(2 * BURST, &["disconnected", "replica", "budget"]).opens(100);
    let holds = "as a crash; back within a second of the promotion";
    vec![Fault::new("sentinels: master killed", holds, must, async |options| {
        let sentinels = Sentinels::start(options.flavour()).await;
        Promoted { sentinels, done: String::new() }
    })]
}

struct Promoted {
    sentinels: Sentinels,
    done: String,
}

impl World for Promoted {
    fn door(&self, _: usize) -> Door {
        Door::Sentinels(self.sentinels.urls(), Sentinels::NAME.to_owned())
    }

    fn ends_itself(&self) -> bool {
        true
    }

    async fn strike(&mut self, _: &[App], _: Instant) {
        let start = Instant::now();
        self.sentinels.kill_master().await;
        self.sentinels.master().await;
        self.done = format!("promoted after {:.1?}", start.elapsed());
    }

    async fn heal(&mut self) {}

    async fn look(&mut self, _: &Ran) -> Findings {
        Findings::default().note(self.done.clone())
    }
}

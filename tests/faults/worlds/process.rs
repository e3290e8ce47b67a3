//! One of the app processes is killed under load.

use tokio::time::Instant;

use crate::{
    app::App,
    fault::{Fault, Findings, Must, World},
    servers::Server,
    stack::Door,
    stage::Ran,
};

pub(crate) fn faults() -> Vec<Fault> {
    vec![Fault::new(
        "app killed",
        "no effect on the other app, and the limit is never exceeded",
        Must::UNNOTICED,
        async |options| Killed { server: options.server().await },
    )]
}

struct Killed {
    server: Server,
}

impl World for Killed {
    fn door(&self, _: usize) -> Door {
        Door::Server(self.server.url())
    }

    fn has_processes(&self) -> bool {
        true
    }

    async fn strike(&mut self, apps: &[App], _: Instant) {
        match &apps[0] {
            App::Process(child) => child.kill(),
            App::Thread { .. } => unreachable!("a thread cannot be killed"),
        }
    }

    async fn heal(&mut self) {}

    async fn look(&mut self, ran: &Ran) -> Findings {
        let of = |app: usize, after: bool| {
            let entries = ran.logs[app].entries.iter();
            entries.filter(|entry| (entry.asked > ran.healed) == after).count()
        };
        let (killed, other) = (of(0, false), of(1, true));
        Findings::default()
            .note(format!("{killed} decisions of the one, then {other} of the other"))
            .demand(killed > 0 && of(0, true) == 0 && other > 0, "the wrong app was killed".into())
    }
}

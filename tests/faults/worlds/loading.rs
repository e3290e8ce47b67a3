//! A server that restarts and loads its data for a while.

use tokio::time::Instant;

use crate::{
    app::App,
    fault::{Fault, Findings, Must, World},
    options::Options,
    servers::Server,
    stack::{BURST, Door},
    stage::Ran,
};

pub(crate) fn faults() -> Vec<Fault> {
    let must = Must::policy(2 * BURST, &["busy", "disconnected", "budget"]).opens(150);
    let holds = "LOADING is an error of the store; as a crash otherwise; few new connections";
    vec![Fault::new("loading", holds, must, async |options| Loading::start(options).await)]
}

struct Loading {
    server: Server,
    asked: String,
}

impl Loading {
    async fn start(options: &Options) -> Self {
        let server = options.server().await;
        let keys = if options.long { 3_000_000 } else { 500_000 };
        let () = server.command(&format!("DEBUG POPULATE {keys} junk 20")).await;
        let () = server.command("SAVE").await;
        Self { server, asked: String::new() }
    }
}

impl World for Loading {
    fn door(&self, _: usize) -> Door {
        Door::Server(self.server.url())
    }

    async fn strike(&mut self, _: &[App], _: Instant) {
        self.server.kill();
        self.server.launch();
        let start = Instant::now();
        self.server.ready().await.expect("the server loads");
        let loaded = start.elapsed();
        let stat = async |field| self.server.info("stats", field).await.unwrap_or_default();
        let connections = stat("total_connections_received").await;
        let errors = stat("total_error_replies").await;
        self.asked = format!(
            "{loaded:.1?} until it had loaded, with {connections} connections (most of them to ask \
             whether it has) and {errors} commands rejected"
        );
    }

    async fn heal(&mut self) {}

    fn ends_itself(&self) -> bool {
        true
    }

    async fn look(&mut self, _: &Ran) -> Findings {
        Findings::default().note(self.asked.clone())
    }
}

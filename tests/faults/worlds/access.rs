//! A server that suddenly requires a password.

use redis::{Cmd, aio::MultiplexedConnection, cmd};
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
    let must = Must::policy(2 * BURST, &["denied", "disconnected"]).opens(50);
    let holds = "NOAUTH is an error of the store; as a freeze otherwise; few new connections";
    vec![Fault::new("password wanted", holds, must, async |options| Locked::start(options).await)]
}

struct Locked {
    server: Server,
    /// A server without a password at first.
    admin: MultiplexedConnection,
}

impl Locked {
    async fn start(options: &Options) -> Self {
        let server = options.server().await;
        let admin = server.connection().await.expect("connects");
        Self { server, admin }
    }

    async fn say(&mut self, command: &Cmd) {
        let _: redis::Value = command.query_async(&mut self.admin).await.expect("done");
    }

    async fn password(&mut self, password: &str) {
        self.say(cmd("CONFIG").arg("SET").arg("requirepass").arg(password)).await;
    }
}

impl World for Locked {
    fn door(&self, _: usize) -> Door {
        Door::Server(self.server.url())
    }

    /// Existing connections are authenticated already, so they are ended.
    async fn strike(&mut self, _: &[App], _: Instant) {
        self.password("secret").await;
        self.say(cmd("CLIENT").arg("KILL").arg("TYPE").arg("normal").arg("SKIPME").arg("yes"))
            .await;
    }

    async fn heal(&mut self) {
        self.password("").await;
    }

    async fn look(&mut self, _: &Ran) -> Findings {
        let connections = self.server.info("stats", "total_connections_received").await;
        Findings::default().note(format!("{} connections in all", connections.unwrap_or_default()))
    }
}

//! A server that is a replica, or has too few of them.

use tokio::time::Instant;

use crate::{
    app::App,
    fault::{Fault, Findings, Must, World},
    options::Options,
    servers::Server,
    stack::{BURST, Door},
    stage::Ran,
    turnstile::Turnstile,
};

const REPLICA: Must = Must::policy(2 * BURST, &["replica", "disconnected"]);

pub(crate) fn faults() -> Vec<Fault> {
    vec![
        Fault::new(
            "primary becomes a replica",
            "READONLY is an error of the store; as a freeze otherwise; few new connections",
            REPLICA,
            async |options| Demoted { server: options.server().await, stale: true },
        ),
        Fault::new(
            "replica without its primary",
            "MASTERDOWN is an error of the store; as a freeze otherwise; few new connections",
            REPLICA.opens(50),
            async |options| Demoted { server: options.server().await, stale: false },
        ),
        Fault::new(
            "pointed at a replica",
            "READONLY is an error of the store; back when it is promoted",
            REPLICA,
            async |options| Astray::start(options).await,
        ),
        Fault::of_server(
            "too few replicas",
            "NOREPLICAS is an error of the store; as a freeze otherwise",
            Must::policy(2 * BURST, &["replica"]),
            (
                async |server: &mut Server, _| {
                    let () = server.command("CONFIG SET min-replicas-to-write 5").await;
                },
                async |server: &mut Server| {
                    let () = server.command("CONFIG SET min-replicas-to-write 0").await;
                },
            ),
        ),
    ]
}

/// A primary that becomes the replica of an unreachable server, and so keeps its data.
struct Demoted {
    server: Server,
    /// `true` if it answers reads during the fault.
    stale: bool,
}

impl World for Demoted {
    fn door(&self, _: usize) -> Door {
        Door::Server(self.server.url())
    }

    async fn strike(&mut self, _: &[App], _: Instant) {
        let stale = if self.stale { "yes" } else { "no" };
        let () = self.server.command(&format!("CONFIG SET replica-serve-stale-data {stale}")).await;
        let () = self.server.command("REPLICAOF 127.0.0.1 1").await;
    }

    async fn heal(&mut self) {
        self.server.promote().await;
    }

    async fn look(&mut self, _: &Ran) -> Findings {
        let connections = self.server.info("stats", "total_connections_received").await;
        Findings::default().note(format!("{} connections in all", connections.unwrap_or_default()))
    }
}

/// A name that leads to the replica before it is promoted.
struct Astray {
    primary: Server,
    replica: Server,
    turnstile: Turnstile,
}

impl Astray {
    async fn start(options: &Options) -> Self {
        let (primary, replica) = (options.server().await, options.server().await);
        replica.replica_of(primary.address()).await;
        let turnstile = Turnstile::to(primary.address()).await;
        Self { primary, replica, turnstile }
    }
}

impl World for Astray {
    fn door(&self, _: usize) -> Door {
        self.turnstile.door()
    }

    async fn strike(&mut self, _: &[App], _: Instant) {
        assert!(self.primary.runs());
        self.turnstile.turn(self.replica.address());
    }

    async fn heal(&mut self) {
        self.replica.promote().await;
    }

    async fn look(&mut self, _: &Ran) -> Findings {
        let connections = self.turnstile.counts().accepted.len();
        Findings::default().note(format!("{connections} connections in all"))
    }
}

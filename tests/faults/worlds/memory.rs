//! A server whose memory is full: it rejects writes, or evicts accounts.

use std::collections::BTreeMap;

use futures::StreamExt;
use redis::{Client, pipe};
use tokio::{task::JoinHandle, time::Instant};

use super::key_at;
use crate::{
    app::App,
    fault::{Fault, Findings, Must, World},
    options::Options,
    servers::Server,
    stack::{BURST, Door},
    stage::Ran,
};

pub(crate) fn faults() -> Vec<Fault> {
    vec![
        Fault::of_server(
            "memory full",
            "an error of the store, not a denial; as a freeze otherwise",
            Must::policy(2 * BURST, &["memory"]),
            (
                async |server: &mut Server, _| server.command::<()>("CONFIG SET maxmemory 1").await,
                async |server: &mut Server| server.command::<()>("CONFIG SET maxmemory 0").await,
            ),
        ),
        Fault::new(
            "memory full, evicting",
            "no visible effect; at most a burst above the limit for each time that the key's account \
             was dropped",
            Must::UNNOTICED,
            async |options| Evicting::start(options).await,
        ),
    ]
}

/// A server that evicts the least recently used keys when others arrive.
struct Evicting {
    server: Server,
    /// The addresses of evicted keys, as the server reports them.
    dropped: JoinHandle<BTreeMap<u16, u64>>,
    written: u64,
}

impl Evicting {
    async fn start(options: &Options) -> Self {
        let args = ["--maxmemory-policy", "allkeys-lru", "--notify-keyspace-events", "Ee"];
        let server = options.server_with(&args).await;
        let client = Client::open(server.url()).expect("a URL");
        let mut listener = client.get_async_pubsub().await.expect("connects");
        listener.subscribe("__keyevent@0__:evicted").await.expect("listens");
        let dropped = tokio::spawn(async move {
            let (mut counts, mut messages) = (BTreeMap::new(), listener.into_on_message());
            while let Some(message) = messages.next().await {
                match message.get_payload::<String>().expect("text").as_str() {
                    "the-end" => break,
                    address => {
                        if let Some(key) = key_at(address) {
                            *counts.entry(key).or_default() += 1;
                        }
                    }
                }
            }
            counts
        });
        Self { server, dropped, written: 0 }
    }
}

impl World for Evicting {
    fn door(&self, _: usize) -> Door {
        Door::Server(self.server.url())
    }

    async fn strike(&mut self, _: &[App], end: Instant) {
        let used: u64 = self
            .server
            .info("memory", "used_memory")
            .await
            .expect("a size")
            .parse()
            .expect("bytes");
        let () = self.server.command(&format!("CONFIG SET maxmemory {}", used + (1 << 20))).await;
        let mut connection = self.server.connection().await.expect("connects");
        while Instant::now() < end {
            let mut junk = pipe();
            for _ in 0..200 {
                junk.set(format!("junk:{}", self.written), "x".repeat(100)).ignore();
                self.written += 1;
            }
            let () = junk.query_async(&mut connection).await.expect("written");
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    }

    async fn heal(&mut self) {
        let () = self.server.command::<()>("CONFIG SET maxmemory 0").await;
    }

    async fn look(&mut self, _: &Ran) -> Findings {
        let () = self.server.command("PUBLISH __keyevent@0__:evicted the-end").await;
        let dropped = (&mut self.dropped).await.expect("no panic");
        let accounts: u64 = dropped.values().sum();
        let allowance = dropped.into_iter().map(|(key, times)| (key, times * BURST)).collect();
        let found = Findings { allowance, ..Findings::default() };
        found
            .note(format!("{accounts} accounts were dropped"))
            .demand(accounts > 0, "no account was dropped".into())
    }
}

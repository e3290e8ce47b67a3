//! A link that fails between the apps and a healthy server.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::{
    app::App,
    fault::{Fault, Findings, Must, World},
    servers::{Mode, Proxy, Server},
    stack::{BURST, Door},
    stage::Ran,
};

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

const HANGS: Must = Must::policy(2 * BURST, &["budget", "disconnected"]).opens(150);

pub(crate) fn faults() -> Vec<Fault> {
    let like_a_freeze = "as a freeze";
    vec![
        of_link(
            "link half open",
            "as a freeze; the connection is replaced",
            HANGS,
            stays(Mode::BlackHole),
        ),
        of_link(
            "link reset",
            "as a crash without loss",
            Must::policy(2 * BURST, &["disconnected"]).opens(50),
            stays(Mode::Drop),
        ),
        of_link("link closes slowly", like_a_freeze, HANGS, async |proxy: &mut Proxy, end| {
            while Instant::now() < end {
                proxy.set(Mode::BlackHole).await;
                sleep(ms(200)).await;
                proxy.set(Mode::Refuse).await;
                sleep(ms(100)).await;
            }
        }),
        of_link(
            "link slow, within the budget",
            "no visible effect",
            Must::UNNOTICED,
            stays(Mode::Delay(ms(50))),
        ),
        of_link("link slow, beyond the budget", like_a_freeze, HANGS, stays(Mode::Delay(ms(300)))),
        of_link(
            "replies cut",
            "errors, and the connection is replaced",
            Must::policy(2 * BURST, &["disconnected", "reply", "budget"]),
            async |proxy: &mut Proxy, end| {
                while Instant::now() < end {
                    proxy.set(Mode::Truncate(7)).await;
                    sleep(ms(30)).await;
                }
            },
        ),
        of_link(
            "bytes changed",
            "errors, and the connection is replaced",
            // The fault ends and begins again, and after each time the fallback's is used once more.
            Must::policy(3 * BURST, &["reply", "budget", "disconnected", "other"]),
            stays(Mode::Flip { seed: 21, one_in: 300 }),
        ),
    ]
}

/// Sets a mode that stays.
fn stays(mode: Mode) -> impl AsyncFn(&mut Proxy, Instant) + Clone + Send + Sync + 'static {
    async move |proxy: &mut Proxy, _| proxy.set(mode).await
}

fn of_link<S>(name: &'static str, holds: &'static str, must: Must, strike: S) -> Fault
where
    S: AsyncFn(&mut Proxy, Instant) + Clone + Send + Sync + 'static,
{
    Fault::new(name, holds, must, async move |options| {
        let server = options.server().await;
        let proxy = Proxy::start(server.address()).await;
        Wire { server, proxy, strike: strike.clone() }
    })
}

struct Wire<S> {
    server: Server,
    proxy: Proxy,
    strike: S,
}

impl<S: AsyncFn(&mut Proxy, Instant)> World for Wire<S> {
    fn door(&self, _: usize) -> Door {
        Door::Server(self.server.url_at(self.proxy.addr()))
    }

    async fn strike(&mut self, _: &[App], end: Instant) {
        (self.strike)(&mut self.proxy, end).await;
    }

    async fn heal(&mut self) {
        self.proxy.set(Mode::Pass).await;
    }

    async fn look(&mut self, _: &Ran) -> Findings {
        Findings::default().note(format!("{} connections in all", self.proxy.accepted().len()))
    }
}

//! Log lines about blocked keys, which clients can cause.

use std::time::Duration;

use tokio::time::advance;
use tower_sluice::{
    Quota, RateLimitLayer, Rule, key::HeaderKey, middleware::Penalty, testing::FakeClock,
};

use crate::{
    alone,
    log::Log,
    support::{answer, with},
};

#[tokio::test(start_paused = true)]
async fn blocks_of_invented_keys_log_a_line_every_ten_seconds() {
    const MINUTE: Duration = Duration::from_secs(60);
    let _turn = alone();
    let (log, _guard) = Log::start(tracing::Level::INFO);
    let rule = Rule::new("login", HeaderKey::new("x-user"), Quota::per_hour(1));
    let layer = RateLimitLayer::rules(rule, FakeClock::new().store(65_536))
        .penalty("login", Penalty::after(Quota::per_minute(1)).block([MINUTE]));
    let mut invented = 0;
    let mut lines = Vec::new();
    for _ in 0..2 {
        for _ in 0..1_000 {
            invented += 1;
            let user = format!("user {invented}");
            for _ in 0..4 {
                answer(&layer, with(&[("x-user", user.as_str())])).await;
            }
        }
        lines.push(log.read());
        advance(Duration::from_secs(10)).await;
    }
    lines.iter_mut().for_each(|lines| lines.retain(|line| line.contains("too many strikes")));
    assert_eq!(lines.iter().map(Vec::len).collect::<Vec<_>>(), [1, 1], "{lines:?}");
    assert!(lines[0][0].contains("a key of rule login is blocked for"), "{lines:?}");
    // 999 of the first thousand, and the first of the second.
    assert!(lines[1][0].contains("1000 keys of rule login are blocked"), "{lines:?}");
}

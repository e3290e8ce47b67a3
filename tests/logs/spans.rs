//! Spans and log lines hold everything about a decision except the key.

use std::{
    fmt,
    sync::{Arc, Mutex},
};

use tower_sluice::{LocalStore, Quota, RateLimitLayer, Rule, key::HeaderKey};
use tracing::{
    Event, Instrument, Span, Subscriber, debug_span,
    field::{Empty, Field, Visit},
    span::{Id, Record},
    subscriber::set_default,
};
use tracing_subscriber::{
    Layer,
    filter::LevelFilter,
    layer::{Context, SubscriberExt},
};

use crate::{
    alone,
    support::{answer, with},
};

/// Records span fields and events as lines.
#[derive(Clone, Default)]
struct Scribe(Arc<Mutex<Vec<String>>>);

impl Scribe {
    /// The lines since it was last read.
    fn read(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().expect("a log"))
    }

    fn write(&self, line: Line) {
        self.0.lock().expect("a log").push(line.0);
    }
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0 += &format!(" {}={value:?}", field.name());
    }
}

impl<S: Subscriber> Layer<S> for Scribe {
    fn on_record(&self, _: &Id, values: &Record<'_>, _: Context<'_, S>) {
        let mut line = Line("span".into());
        values.record(&mut line);
        self.write(line);
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut line = Line(event.metadata().level().to_string());
        event.record(&mut line);
        self.write(line);
    }
}

/// Sends three requests, of which two pass, within such spans. Returns the lines of `level`.
async fn recorded(level: LevelFilter, span: impl Fn() -> Span) -> Vec<String> {
    let scribe = Scribe::default();
    let layers = tracing_subscriber::registry().with(scribe.clone().with_filter(level));
    let _guard = set_default(layers);
    let rule = Rule::new("user", HeaderKey::new("x-user"), Quota::per_hour(2));
    let layer = RateLimitLayer::rules(rule, LocalStore::new());
    for _ in 0..3 {
        answer(&layer, with(&[("x-user", "alice")])).instrument(span()).await;
    }
    scribe.read()
}

fn declared() -> Span {
    debug_span!(
        "request",
        ratelimit.result = Empty,
        ratelimit.store = Empty,
        ratelimit.policy = Empty,
        ratelimit.remaining = Empty,
        ratelimit.retry_after_ms = Empty,
    )
}

#[tokio::test]
async fn a_span_has_its_declared_fields_and_a_denial_is_logged_at_debug() {
    let _turn = alone();
    let lines = recorded(LevelFilter::DEBUG, declared).await;
    let of = |field: &str| -> Vec<_> {
        lines
            .iter()
            .filter_map(|line| line.split_once(&format!(" {field}=")))
            .map(|(_, v)| v)
            .collect()
    };
    assert_eq!(of("ratelimit.result"), ["\"allowed\"", "\"allowed\"", "\"limited\""]);
    assert_eq!(of("ratelimit.remaining"), ["1", "0", "0"]);
    assert_eq!(of("ratelimit.policy"), ["\"user\""; 3]);
    assert_eq!(of("ratelimit.store"), ["\"local\""; 3]);
    let waits: Vec<u32> =
        of("ratelimit.retry_after_ms").iter().map(|wait| wait.parse().expect("a number")).collect();
    assert!(matches!(waits[..], [1_700_000..=1_800_000]), "{lines:?}");
    let denials: Vec<_> = lines.iter().filter(|line| line.starts_with("DEBUG")).collect();
    assert!(matches!(denials[..], [line] if line.contains("policy=\"user\"")), "{lines:?}");
    assert!(!lines.concat().contains("alice"), "{lines:?}");

    let quiet = recorded(LevelFilter::INFO, declared).await;
    assert_eq!(quiet, [""; 0], "a denial logs nothing above debug");
    let bare = recorded(LevelFilter::DEBUG, || debug_span!("request")).await;
    assert_eq!(bare.len(), 1, "undeclared fields are not recorded: {bare:?}");
}

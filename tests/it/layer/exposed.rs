//! Each value that a layer exposes to handlers, as an extractor of axum.

use std::net::SocketAddr;

use axum::{Router, body::Body, routing::get};
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use tower::ServiceExt;
use tower_sluice::{
    Decision, LocalStore, PeerIp, Quota, RateLimitLayer, Rule,
    middleware::{Adjustment, ChargeHandle, Slot},
};

struct Exposed {
    name: &'static str,
    /// The setter of the layer.
    setting: &'static str,
    /// A router whose handler takes the value.
    app: fn() -> Router,
}

const ALL: [Exposed; 3] = [
    Exposed {
        name: "ChargeHandle",
        setting: "expose_charge",
        app: || Router::new().route("/", get(async |it: ChargeHandle| it.adjust_to(1))),
    },
    Exposed {
        name: "Decision",
        setting: "expose_decision",
        app: || Router::new().route("/", get(async |it: Decision| it.is_allowed().to_string())),
    },
    Exposed {
        name: "Slot",
        setting: "expose_slot",
        app: || Router::new().route("/", get(async |it: Slot| drop(it))),
    },
];

fn layer() -> RateLimitLayer<Rule<PeerIp>, LocalStore> {
    RateLimitLayer::per_ip(Quota::concurrent(1))
}

/// Returns the status and the text of one request.
async fn ask(app: Router) -> (StatusCode, String) {
    let peer = SocketAddr::from(([203, 0, 113, 9], 4711));
    let request = Request::get("/").extension(peer).body(Body::empty()).expect("a request");
    let response = app.oneshot(request).await.expect("infallible");
    let status = response.status();
    let body = response.into_body().collect().await.expect("a body").to_bytes();
    (status, String::from_utf8(body.into()).expect("text"))
}

/// Without the setting, the rejection names it.
#[tokio::test]
async fn each_exposed_value_is_an_extractor_whose_error_names_the_setting() {
    for Exposed { name, setting, app } in ALL {
        for missing in [app(), app().layer(layer())] {
            let (status, text) = ask(missing).await;
            assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR, "{name}");
            let fix = format!(
                "the request has no `{name}`; call `{setting}` on the RateLimitLayer around this handler"
            );
            assert!(text.starts_with(&fix), "{text}");
        }
        let exposing = layer().expose_decision().expose_slot().expose_charge(Adjustment::Keep);
        assert_eq!(ask(app().layer(exposing)).await.0, StatusCode::OK, "{name}");
    }
}

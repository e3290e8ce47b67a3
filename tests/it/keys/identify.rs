//! Identities from an asynchronous lookup before the limiter.

use axum::{
    Router,
    body::Body,
    extract::{FromRef, FromRequestParts},
    routing::get,
};
use http::{Request, StatusCode, request::Parts};
use tokio::task::yield_now;
use tower::{Layer, ServiceBuilder, ServiceExt, load_shed::LoadShed, service_fn};
use tower_sluice::{
    LocalStore, Quota, RateLimitLayer, RequestHead, Rule, identify::IdentifyLayer,
    key::ExtensionKey, rule::OnMissingKey,
};

use crate::support::{Strict, ask, with};

#[derive(Clone, Debug, PartialEq)]
struct User {
    id: u64,
}

/// Allows one request per hour for each user and rejects other requests with 401.
fn hourly() -> RateLimitLayer<Rule<impl tower_sluice::KeyExtractor + Clone>, LocalStore> {
    let rule = Rule::new("user", ExtensionKey::by(|user: &User| user.id), Quota::per_hour(1));
    let missing = OnMissingKey::Reject(StatusCode::UNAUTHORIZED);
    RateLimitLayer::rules(rule.on_missing_key(missing), LocalStore::with_capacity(64))
}

/// The session store. The token is the user's ID.
async fn session(token: Option<String>) -> Option<User> {
    yield_now().await;
    token?.parse().ok().map(|id| User { id })
}

fn token(head: &RequestHead<'_>) -> Option<String> {
    Some(head.headers.get("x-token")?.to_str().ok()?.to_owned())
}

#[tokio::test]
async fn an_awaited_identity_is_charged() {
    let layers = ServiceBuilder::new()
        .layer(IdentifyLayer::from_fn(|head| session(token(head))))
        .layer(hourly())
        // only the instance that reported readiness answers
        .layer_fn(LoadShed::new);
    let mut service = layers.service(Strict::default());
    for (token, status) in [("1", 200), ("1", 429), ("2", 200), ("nobody", 401)] {
        let response = ask(&mut service, with(&[("x-token", token)])).await;
        assert_eq!(response.status().as_u16(), status, "{token}");
    }
}

#[tokio::test]
async fn the_request_passes_unchanged() {
    let inner = service_fn(|request: Request<&'static str>| async move {
        let user = request.extensions().get::<User>().cloned();
        Ok::<_, std::convert::Infallible>((request.uri().path().to_owned(), user, *request.body()))
    });
    let layer = IdentifyLayer::from_fn(|head| session(token(head)));
    let request = |token| Request::get("/x").header("x-token", token).body("body");
    for (token, user) in [("7", Some(User { id: 7 })), ("nobody", None)] {
        let passed = ask(&mut layer.layer(inner), request(token).expect("a request")).await;
        assert_eq!(passed, ("/x".to_owned(), user, "body"));
    }
}

/// The part of the application's state that the extractor uses.
#[derive(Clone)]
struct Tokens {
    offset: u64,
}

impl<S> FromRequestParts<S> for User
where
    Tokens: FromRef<S>,
    S: Send + Sync,
{
    type Rejection = (StatusCode, &'static str);

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Self::Rejection> {
        let user = session(token(&RequestHead::from(&*parts)))
            .await
            .ok_or((StatusCode::IM_A_TEAPOT, "no token"))?;
        Ok(Self { id: user.id + Tokens::from_ref(state).offset })
    }
}

#[tokio::test]
async fn an_axum_extractor_can_identify_and_its_rejection_is_the_response() {
    let tokens = Tokens { offset: 100 };
    let handler = async |user: User| user.id.to_string();
    let skip = Rule::new("user", ExtensionKey::by(|user: &User| user.id), Quota::per_hour(1));
    let store = LocalStore::with_capacity(64);
    let app = Router::new()
        .route("/", get(handler))
        .layer(RateLimitLayer::rules(skip.on_missing_key(OnMissingKey::Skip), store))
        .layer(IdentifyLayer::extractor::<User, _>(tokens.clone()))
        .with_state(tokens);
    let statuses = [("1", 200), ("1", 429), ("2", 200), ("nobody", 418), ("nobody", 418)];
    for (token, status) in statuses {
        let request = Request::get("/").header("x-token", token).body(Body::empty());
        let response = app.clone().oneshot(request.expect("a request")).await.expect("an answer");
        assert_eq!(response.status().as_u16(), status, "{token}");
    }
}

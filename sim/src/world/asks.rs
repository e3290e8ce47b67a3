//! Requests to the layers of a process, and those whose handlers keep a part of their cost, or more.

use std::convert::Infallible;

use http::{Request, Response};
use tower::{Layer, Service, ServiceExt, service_fn, util::BoxCloneSyncService};
use tower_sluice::{Cost, Decision, middleware::ChargeHandle};

/// A request: its key, its weight and cost, and the units that its handler keeps.
#[derive(Clone, Debug)]
pub struct Ask {
    pub key: String,
    pub weight: u32,
    pub cost: u32,
    pub keeps: u32,
}

/// A handler, or the layer of a process around one.
pub type Handler = BoxCloneSyncService<Request<()>, Response<()>, Infallible>;

/// The layer of a process, around the handler.
#[derive(Clone)]
pub struct Layered(Handler);

/// Sends a request of a key, with an extension. Returns the decision, which the layer must expose.
pub async fn send<T>(service: &Handler, key: &str, extension: T) -> Decision
where
    T: Clone + Send + Sync + 'static,
{
    let request = Request::builder().uri("/").header("x-key", key).extension(extension);
    decide(service, request.body(()).expect("a request")).await
}

async fn decide(service: &Handler, request: Request<()>) -> Decision {
    let Ok(response) = service.clone().oneshot(request).await;
    response.extensions().get::<Decision>().expect("an exposed decision").clone()
}

/// Returns the number in a header field.
pub fn number(name: &'static str) -> Cost {
    Cost::from_fn(move |head| {
        let value = head.headers.get(name).and_then(|value| value.to_str().ok());
        value.and_then(|value| value.parse().ok()).expect("a number")
    })
}

impl Layered {
    /// The layer must expose decisions and charges.
    pub fn new<L>(layer: &L) -> Self
    where
        L: Layer<Handler>,
        L::Service: Service<Request<()>, Response = Response<()>, Error = Infallible>,
        L::Service: Clone + Send + Sync + 'static,
        <L::Service as Service<Request<()>>>::Future: Send + 'static,
    {
        let handler = service_fn(async |request: Request<()>| {
            let (ask, extensions) = (request.extensions().get::<Ask>(), request.extensions());
            let Ask { cost, keeps, .. } = ask.expect("a request");
            if keeps != cost {
                extensions.get::<ChargeHandle>().expect("an exposed charge").adjust_to(*keeps);
            }
            Ok::<_, Infallible>(Response::new(()))
        });
        Self(BoxCloneSyncService::new(layer.layer(BoxCloneSyncService::new(handler))))
    }

    pub async fn call(&self, ask: Ask) -> Decision {
        let request = Request::builder().uri("/").header("x-key", &ask.key);
        let request = request.header("x-cost", ask.cost).header("x-weight", ask.weight);
        decide(&self.0, request.extension(ask).body(()).expect("a request")).await
    }
}

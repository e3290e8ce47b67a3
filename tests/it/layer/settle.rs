//! Charges that are adjusted by the head of the response.

use http::StatusCode;
use tower::Layer;
use tower_sluice::{
    Key, Quota, RateLimitLayer, Rule, StoreExt, key::Everyone, middleware::Adjustment,
};

use crate::support::{Strict, ask, driven::limiter, get, shaky::Shaky, store};

const TEN: Quota = Quota::per_hour(10);

#[tokio::test]
async fn a_charge_that_stays_as_it_is_takes_no_call() {
    let shaky = Shaky::new(store());
    let rule = || Rule::new("api", Everyone, TEN).cost(4);
    for (settle, calls) in
        [(Adjustment::Keep, 1), (Adjustment::Charge(4), 2), (Adjustment::Charge(5), 4)]
    {
        let layer = RateLimitLayer::rules(rule(), shaky.clone().fail_open());
        let mut service = layer.adjust(move |_| settle).layer(Strict::default());
        assert_eq!(ask(&mut service, get("/")).await.status(), StatusCode::OK);
        assert_eq!((shaky.calls(), shaky.given_back()), (calls, 0), "{settle:?}");
        drop(limiter("api", shaky.store.clone()).reset(Key::everyone(), &TEN).now());
    }
}

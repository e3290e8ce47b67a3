//! The service of Envoy's interface, over any store.

use std::time::Duration;

use envoy_types::pb::{
    envoy::{
        config::core::v3::HeaderValue,
        extensions::common::ratelimit::v3::RateLimitDescriptor,
        service::ratelimit::v3::{
            RateLimitRequest, RateLimitResponse,
            rate_limit_response::{Code, DescriptorStatus, RateLimit, rate_limit::Unit},
            rate_limit_service_server::RateLimitService,
        },
    },
    google::protobuf,
};
use tonic::{Request, Response, Status};
use tower_sluice::{
    Decision, Key, Quota, Store, StoreExt,
    decision::Outcome,
    store::{Charge, Unsupported},
};

use crate::limits::{Limit, Limits, key};

/// Decides by the limits, with the accounts of the store.
#[derive(Debug)]
pub struct Service<S> {
    limits: Limits,
    store: S,
}

/// A descriptor with a limit.
struct Limited<'a> {
    limit: &'a Limit,
    key: Key,
    cost: u32,
}

impl<S: Store> Service<S> {
    /// Creates a service.
    ///
    /// # Errors
    ///
    /// Fails if the store does not support one of the limits.
    pub fn new(limits: Limits, store: S) -> Result<Self, Unsupported> {
        let key = Key::everyone();
        for limit in limits.iter() {
            store.supports(&[Charge::new(limit.name, &key, &[limit.quota])])?;
        }
        Ok(Self { limits, store })
    }

    /// Charges all descriptors that have a limit, or none.
    async fn decide(&self, limited: &[Option<Limited<'_>>]) -> Result<Decision, Status> {
        let mut charges = Vec::new();
        for Limited { limit, key, cost } in limited.iter().flatten() {
            let quotas = std::slice::from_ref(&limit.quota);
            charges.push(Charge::new(limit.name, key, quotas).with_cost(*cost));
        }
        if charges.is_empty() {
            return Ok(Decision::allow());
        }
        let decided = self.store.take(&charges).await;
        decided.map_err(|error| Status::unavailable(error.into().to_string()))
    }
}

#[tonic::async_trait]
impl<S> RateLimitService for Service<S>
where
    S: Store<Future: 'static> + Send + Sync + 'static,
{
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let request = request.into_inner();
        let mut limited = Vec::new();
        for descriptor in &request.descriptors {
            let limit = self.limits.of(&request.domain, descriptor);
            let cost = cost(descriptor, request.hits_addend)?;
            limited.push(limit.map(|limit| Limited { limit, key: key(descriptor), cost }));
        }
        let decision = self.decide(&limited).await?;
        let mut outcomes = decision.outcomes().iter();
        let mut statuses = Vec::new();
        for limited in &limited {
            statuses.push(match limited {
                Some(limited) => status(limited.limit, outcomes.next()),
                None => DescriptorStatus { code: Code::Ok.into(), ..Default::default() },
            });
        }
        let overall = if decision.is_allowed() { Code::Ok } else { Code::OverLimit };
        Ok(Response::new(RateLimitResponse {
            overall_code: overall.into(),
            statuses,
            response_headers_to_add: headers(&decision),
            ..Default::default()
        }))
    }
}

/// Returns the hits of a descriptor: its own, those of the request, or one.
fn cost(descriptor: &RateLimitDescriptor, hits: u32) -> Result<u32, Status> {
    if descriptor.is_negative_hits {
        return Err(Status::unimplemented("negative hits"));
    }
    match &descriptor.hits_addend {
        Some(own) => Ok(u32::try_from(own.value).unwrap_or(u32::MAX)),
        None => Ok(hits.max(1)),
    }
}

/// Returns the status of a descriptor. The denial of a blocked key has no outcome of its own.
fn status(limit: &Limit, outcome: Option<&Outcome>) -> DescriptorStatus {
    let code = if outcome.is_some_and(|it| !it.is_denied()) { Code::Ok } else { Code::OverLimit };
    let reset = outcome.map_or(Duration::ZERO, Outcome::reset_after);
    DescriptorStatus {
        code: code.into(),
        current_limit: Some(RateLimit {
            name: limit.name.to_string(),
            requests_per_unit: limit.quota.units(),
            unit: unit(&limit.quota).into(),
        }),
        limit_remaining: outcome.map_or(0, Outcome::remaining),
        duration_until_reset: Some(duration(reset)),
        ..Default::default()
    }
}

fn duration(time: Duration) -> protobuf::Duration {
    let seconds = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    protobuf::Duration { seconds, nanos: i32::try_from(time.subsec_nanos()).unwrap_or(0) }
}

fn unit(quota: &Quota) -> Unit {
    match quota.period().as_secs() {
        1 => Unit::Second,
        60 => Unit::Minute,
        3_600 => Unit::Hour,
        86_400 => Unit::Day,
        604_800 => Unit::Week,
        _ => Unit::Unknown,
    }
}

/// Returns the header fields of a denial.
fn headers(decision: &Decision) -> Vec<HeaderValue> {
    let wait = decision.retry_after().filter(|_| !decision.is_allowed());
    let Some(wait) = wait else { return Vec::new() };
    let seconds = wait.as_nanos().div_ceil(1_000_000_000).max(1);
    let key = "retry-after".to_owned();
    vec![HeaderValue { key, value: seconds.to_string(), ..Default::default() }]
}

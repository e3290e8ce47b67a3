//! A guide to this crate, by topic.
//!
//! All examples of the guide are compiled. Examples that need no server are also run.
//!
//! | chapter | topic |
//! |---|---|
//! | [choosing] | The algorithm, the place of the layer, exemptions, and other tools |
//! | [numbers] | Rates, bursts and costs by kind of route, from traffic, and from capacity |
//! | [algorithms] | Pictures of each algorithm, with one series of calls |
//! | [keys] | Choosing keys, trusting their source, and attacks on each |
//! | [proxies] | Client addresses behind nginx, Kubernetes, Traefik, Envoy, AWS, Cloudflare and others |
//! | [slots] | Requests that run at the same time: exports, streams and upgrades |
//! | [plans] | Quotas per user, changes at run time, and costs per request |
//! | [settings] | Every setting, with its default |
//! | [redis] | Data in Redis, possible losses, permissions and tuning |
//! | [beyond] | Several regions, PostgreSQL, Envoy, servers that look like Redis, clients that obey |
//! | [outages] | Responses while the store is down, and alerts |
//! | [production] | A server to copy, metrics, alerts, a dashboard, and a checklist |
//! | [login] | A login in which only failures count, without lock-out from elsewhere |
//! | [recipes] | LLM tokens, sockets, gRPC, outgoing calls, plans from a database |
//! | [troubleshooting] | Symptoms, causes and fixes, and every warning and error |
//! | [testing] | Tests of limits without sleeping, and of custom stores |
//! | [migrating] | Migration from Rust crates, Express, Java, .NET, nginx and Envoy |
//! | [security] | Attacks, the limits of the protection, and limits by kind of route |
//! | [features] | Other rate limiters for Tower, and figures |
//! | [glossary] | The terms of this crate, and terms of other libraries |

/// Items that chapters link to without a path.
mod names {
    pub(super) use crate::{
        decision::*, explain::*, fingerprint::*, key::*, limiter::*, middleware::*, quota::*,
        reject::*, rule::*, store::*, *,
    };
}

pub mod choosing {
    #![doc = include_str!("choosing.md")]
    #![cfg_attr(not(all(feature = "axum", feature = "metrics", feature = "redis")), doc = "", doc = include_str!("without.md"))]

    use super::names::*;
}

pub mod numbers {
    #![doc = include_str!("numbers.md")]
    #![cfg_attr(not(all(feature = "axum", feature = "metrics")), doc = "", doc = include_str!("without.md"))]

    use super::names::*;
}

pub mod algorithms {
    // rustdoc does not copy files, so the pictures are embedded here. The first definition of a
    // link is used. The links at the end of a chapter are for readers of the Markdown file.
    #![doc = include_str!("plots/links.md")]
    #![doc = include_str!("algorithms.md")]

    use super::names::*;
}

pub mod keys {
    #![doc = include_str!("keys.md")]
    #![cfg_attr(not(feature = "axum"), doc = "", doc = include_str!("without.md"))]

    use super::names::*;
}

pub mod proxies {
    #![doc = include_str!("proxies.md")]
    #![cfg_attr(not(feature = "axum"), doc = "", doc = include_str!("without.md"))]

    use super::names::*;
}

pub mod plans {
    #![doc = include_str!("plans.md")]
    #![cfg_attr(not(all(feature = "axum", feature = "serde")), doc = "", doc = include_str!("without.md"))]

    use super::names::*;
}

pub mod slots {
    #![doc = include_str!("slots.md")]
    #![cfg_attr(not(all(feature = "axum", feature = "redis")), doc = "", doc = include_str!("without.md"))]

    use super::names::*;
}

pub mod settings {
    #![doc = include_str!("settings.md")]
    #![cfg_attr(not(feature = "axum"), doc = "", doc = include_str!("without.md"))]

    use super::names::*;
}

pub mod redis {
    #![doc = include_str!("redis.md")]
    #![cfg_attr(not(all(feature = "redis", feature = "testing")), doc = "", doc = include_str!("without.md"))]

    use super::names::*;
}

pub mod beyond {
    #![doc = include_str!("beyond.md")]
    #![cfg_attr(not(all(feature = "redis", feature = "testing")), doc = "", doc = include_str!("without.md"))]

    use super::names::*;
}

pub mod outages {
    #![doc = include_str!("outages.md")]
    #![cfg_attr(not(feature = "redis"), doc = "", doc = include_str!("without.md"))]

    use super::names::*;
}

pub mod login {
    #![doc = include_str!("login.md")]

    use super::names::*;
}

pub mod production {
    #![doc = include_str!("production.md")]
    #![cfg_attr(
        all(feature = "admin", feature = "metrics"),
        doc = "",
        doc = "```no_run"
    )]
    #![cfg_attr(
        not(all(feature = "admin", feature = "metrics")),
        doc = "",
        doc = "```text"
    )]
    #![doc = include_str!("../../examples/production.rs")]
    #![doc = "```"]
    #![cfg_attr(not(all(feature = "metrics", feature = "redis")), doc = "", doc = include_str!("without.md"))]

    use super::names::*;
}

pub mod recipes {
    #![doc = include_str!("recipes.md")]
    #![cfg_attr(not(all(feature = "axum", feature = "redis")), doc = "", doc = include_str!("without.md"))]

    use super::names::*;
}

pub mod troubleshooting {
    #![doc = include_str!("troubleshooting.md")]
    #![cfg_attr(not(all(feature = "axum", feature = "redis")), doc = "", doc = include_str!("without.md"))]

    use super::names::*;
}

pub mod testing {
    #![doc = include_str!("testing.md")]
    #![cfg_attr(not(all(feature = "redis", feature = "testing")), doc = "", doc = include_str!("without.md"))]

    use super::names::*;
}

pub mod migrating {
    #![doc = include_str!("migrating.md")]
    #![cfg_attr(
        not(all(feature = "axum", feature = "governor", feature = "redis", feature = "testing")),
        doc = "",
        doc = include_str!("without.md")
    )]

    use super::names::*;
}

pub mod security {
    #![doc = include_str!("../../SECURITY.md")]
}

pub mod features {
    #![doc = include_str!("features.md")]
}

pub mod glossary {
    #![doc = include_str!("glossary.md")]
    #![cfg_attr(not(feature = "redis"), doc = "", doc = include_str!("without.md"))]

    use super::names::*;
}

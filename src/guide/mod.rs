//! A guide to this crate, by topic.
//!
//! All examples of the guide are compiled, and those without a server are also run.
//!
//! | chapter | topic |
//! |---|---|
//! | [`choosing`] | The algorithm, the numbers, the place of the layer, and exemptions |
//! | [`algorithms`] | Pictures of each algorithm, with one series of calls |
//! | [`keys`] | Choosing keys, trusting their source, and attacks on each |
//! | [`plans`] | Quotas per user, changes at run time, and costs per request |
//! | [`redis`] | Data in Redis, possible losses, permissions and tuning |
//! | [`outages`] | Responses while the store is down, and alerts |
//! | [`testing`] | Tests of limits without sleeping, and of custom stores |
//! | [`simulation`] | The simulation of the whole system: its checks, its findings and its limits |
//! | [`patterns`] | Defects of published Redis limiters, and replacements |
//! | [`migrating`] | Migration from `tower_governor`, `axum-governor`, `tower-rate-limiter` and others |
//! | [`glossary`] | The terms of this crate, in one or two sentences each |

/// Items that chapters link to without a path.
mod names {
    pub(super) use crate::{
        decision::*, explain::*, fingerprint::*, identify::*, key::*, limiter::*, lint::*,
        middleware::*, quota::*, reject::*, rule::*, store::*, *,
    };
}

pub mod choosing {
    #![doc = include_str!("choosing.md")]
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

pub mod plans {
    #![doc = include_str!("plans.md")]
    #![cfg_attr(not(feature = "axum"), doc = "", doc = include_str!("without.md"))]

    use super::names::*;
}

pub mod redis {
    #![doc = include_str!("redis.md")]
    #![cfg_attr(not(all(feature = "redis", feature = "testing")), doc = "", doc = include_str!("without.md"))]

    use super::names::*;
}

pub mod outages {
    #![doc = include_str!("outages.md")]
    #![cfg_attr(not(feature = "redis"), doc = "", doc = include_str!("without.md"))]

    use super::names::*;
}

pub mod testing {
    #![doc = include_str!("testing.md")]
    #![cfg_attr(not(all(feature = "redis", feature = "testing")), doc = "", doc = include_str!("without.md"))]

    use super::names::*;
}

pub mod simulation {
    #![doc = include_str!("simulation.md")]
}

pub mod patterns {
    #![doc = include_str!("patterns.md")]

    use super::names::*;
}

pub mod migrating {
    #![doc = include_str!("migrating.md")]
    #![cfg_attr(not(all(feature = "governor", feature = "testing")), doc = "", doc = include_str!("without.md"))]

    use super::names::*;
}

pub mod glossary {
    #![doc = include_str!("glossary.md")]
    #![cfg_attr(not(feature = "redis"), doc = "", doc = include_str!("without.md"))]

    use super::names::*;
}

//! The guide: the questions people have, in the order they come.
//!
//! The items of the crate say what each does; the guide says which to take, and why. Every example
//! in it is compiled, and those that need no server run, on a clock that is driven.
//!
//! | chapter | answers |
//! |---|---|
//! | [`choosing`] | Which algorithm, which numbers, where does the layer go, and when is this the wrong crate? |
//! | [`algorithms`] | What does each algorithm do with the same calls, drawn? |
//! | [`keys`] | Who pays, whom do I trust for that, and how is each key attacked? |
//! | [`plans`] | How do quotas differ by user, change while the server runs, and price what requests cost? |
//! | [`redis`] | What does Redis store, what may it lose, what must it permit, and how is it tuned? |
//! | [`outages`] | What do clients see while the store is down, and what should wake somebody? |
//! | [`testing`] | How do I test my limits without sleeping, and a store of my own? |
//! | [`patterns`] | What is wrong with the limiters that are published for Redis, and what takes their place? |
//! | [`migrating`] | How do I come from `tower_governor`, `axum-governor`, `tower-rate-limiter` and others? |
//!
//! It is part of the documentation alone: no build of the crate has it.

pub mod choosing {
    #![doc = include_str!("choosing.md")]
    #![cfg_attr(not(all(feature = "axum", feature = "metrics")), doc = "", doc = include_str!("without.md"))]

    use crate::*;
}

pub mod algorithms {
    // Where the pictures are, within this text: rustdoc takes no files along. What is named first
    // holds; the chapter's own names for them are for those who read it as a file.
    #![doc = include_str!("plots/links.md")]
    #![doc = include_str!("algorithms.md")]

    use crate::*;
}

pub mod keys {
    #![doc = include_str!("keys.md")]
    #![cfg_attr(not(feature = "axum"), doc = "", doc = include_str!("without.md"))]

    use crate::*;
}

pub mod plans {
    #![doc = include_str!("plans.md")]
    #![cfg_attr(not(feature = "axum"), doc = "", doc = include_str!("without.md"))]

    use crate::*;
}

pub mod redis {
    #![doc = include_str!("redis.md")]
    #![cfg_attr(not(all(feature = "redis", feature = "testing")), doc = "", doc = include_str!("without.md"))]

    use crate::*;
}

pub mod outages {
    #![doc = include_str!("outages.md")]
    #![cfg_attr(not(feature = "redis"), doc = "", doc = include_str!("without.md"))]

    use crate::*;
}

pub mod testing {
    #![doc = include_str!("testing.md")]
    #![cfg_attr(not(all(feature = "redis", feature = "testing")), doc = "", doc = include_str!("without.md"))]

    use crate::*;
}

pub mod patterns {
    #![doc = include_str!("patterns.md")]

    use crate::*;
}

pub mod migrating {
    #![doc = include_str!("migrating.md")]
    #![cfg_attr(not(all(feature = "governor", feature = "testing")), doc = "", doc = include_str!("without.md"))]

    use crate::*;
}

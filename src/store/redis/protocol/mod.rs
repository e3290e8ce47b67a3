//! Requests to the server, and the replies: the format that the store and the server share. Each
//! account is sent once.
//!
//! An argument of a script is a plan: the quotas and demands of one account, in binary. Products are
//! computed in Rust, because numbers in Lua lose digits.

mod account;
pub(crate) mod addresses;
mod algorithms;
mod plan;
mod quota;
mod reader;
pub(crate) mod reply;
mod request;
pub(crate) mod script;

pub(crate) use self::{
    account::AccountRequest,
    algorithms::{all_letters, check, letter},
    plan::{Change, EncodedPlan, Layout, RequestSlots, SlotTake},
    quota::QuotaRequest,
    request::{Request, RequestKind, ScriptOp},
};

/// The maximum number of slots that one request takes.
pub(crate) const MAX_COST: u32 = 256;

//! The admin router: authentication, the display of accounts, and changes.

mod accounts;
mod gate;
mod health;
mod switches;

use crate::support::admin::*;

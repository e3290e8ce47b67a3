//! Scenario files: any text is run or is an error, with equal results twice.

use futures::executor::block_on;
use tower_sluice::testing::{Case, FakeClock, play};

/// Reads any text.
pub(crate) fn check(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let cases = match Case::read(&text) {
        Ok(cases) => cases,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    for case in cases {
        let played = || match block_on(play(&mut FakeClock::new(), &case)) {
            Ok(played) => format!("{played:?}"),
            Err(error) => error.to_string(),
        };
        assert_eq!(played(), played(), "{}", case.name);
    }
}

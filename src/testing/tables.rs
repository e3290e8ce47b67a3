//! The scenario tables of the conformance kit.

/// Published tables: file names and JSON text for [`Case::read`](super::Case::read).
///
/// The files are in `tests/scenarios` of the package. Times are in nanoseconds. In a `settle` step,
/// a positive number of `units` is a refund.
///
/// An `undo` step reverses the charge of the earlier step `step`, or at most `units` units of that
/// charge. The outcomes of `undo`, `settle` and `reset` show the accounts directly after the
/// operation.
///
/// A `take` holds the slots of concurrent quotas under the name `hold`, and a `release` frees them. A
/// `limit` step changes the limit of the first quota. A case with a `lease` has several processes: it
/// is for stores that several processes share. Each hold counts for that time after its `take` or the
/// last `renew` of its process.
///
/// ```
/// use tower_sluice::testing::{Case, Local, TABLES, play};
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// for (file, text) in TABLES {
///     for case in Case::read(text)? {
///         play(&mut Local::default(), &case).await?; // the embedded store; yours is a `Subject`
///     }
/// }
/// # Ok::<(), tower_sluice::testing::CaseError>(())
/// # }).unwrap();
/// ```
pub const TABLES: &[(&str, &str)] = &[
    ("gcra.json", include_str!("../../tests/scenarios/gcra.json")),
    ("token_bucket.json", include_str!("../../tests/scenarios/token_bucket.json")),
    ("fixed_window.json", include_str!("../../tests/scenarios/fixed_window.json")),
    ("sliding_window.json", include_str!("../../tests/scenarios/sliding_window.json")),
    ("sliding_log.json", include_str!("../../tests/scenarios/sliding_log.json")),
    ("max_debt.json", include_str!("../../tests/scenarios/max_debt.json")),
    ("refunds.json", include_str!("../../tests/scenarios/refunds.json")),
    ("slots.json", include_str!("../../tests/scenarios/slots.json")),
    ("combined.json", include_str!("../../tests/scenarios/combined.json")),
];

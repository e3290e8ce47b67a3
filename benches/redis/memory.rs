//! Memory per account.

use tower_sluice::{Algorithm, Quota};

use crate::{
    case::{Case, take},
    forms::{self, LEAN, THREE_QUOTAS},
    server::Server,
    stats::AtMost,
};

const ACCOUNTS: u32 = 100_000;

/// The history of an account.
#[derive(Clone, Copy)]
enum Used {
    /// Charged this many times.
    Charged(u64),
    /// A sliding window, charged in this many of its buckets.
    Buckets(u64),
}

pub(crate) fn run(server: &mut Server) {
    use Used::{Buckets, Charged};
    let [_, minute, _] = forms::quotas();
    let many = Quota::per_hour(10_000);
    let sliding = many.with_algorithm(Algorithm::SlidingWindow { buckets: 60 });
    let cases = [
        (Case::one(LEAN, minute), Charged(1)),
        (Case::new(THREE_QUOTAS, &[&forms::quotas()]), Charged(1)),
        (Case::one("token bucket", minute.with_algorithm(Algorithm::TokenBucket)), Charged(1)),
        (Case::one("fixed window", many.with_algorithm(Algorithm::fixed_window())), Charged(1)),
        (Case::one("sliding window, 10 used buckets", sliding), Buckets(10)),
        (
            Case::one("sliding log, 10 entries", many.with_algorithm(Algorithm::SlidingLog)),
            Charged(10),
        ),
    ];
    println!("memory of {ACCOUNTS} accounts: bytes per account, ratio, MEMORY USAGE of one");
    let mut first = 0.0;
    for (case, used) in &cases {
        let (bytes, usage) = measured(server, case, *used);
        if first == 0.0 {
            first = bytes;
        }
        let ratio = bytes / first;
        let told = if case.name == THREE_QUOTAS {
            AtMost(1.4, ratio).to_string()
        } else {
            format!("{ratio:>7.2}")
        };
        println!("  {:<36}{bytes:>8.0}{usage:>6}{told}", case.name);
    }
}

/// Returns the bytes per account, and the number of server keys of one.
fn measured(server: &mut Server, case: &Case, used: Used) -> (f64, i64) {
    server.call(&["FLUSHALL", "SYNC"]);
    let commands = case.commands(server, ACCOUNTS, take);
    let before = server.memory();
    let charges = match used {
        Used::Charged(times) => times,
        Used::Buckets(buckets) => {
            forms::fill(server, case, ACCOUNTS, buckets);
            1
        }
    };
    (0..charges).for_each(|_| server.play(commands.iter()));
    let bytes = (server.memory() - before) / f64::from(ACCOUNTS);
    let usage = |key: &Vec<u8>| server.call(&[b"MEMORY".as_slice(), b"USAGE", key]).int();
    (bytes, case.call(0, take).keys().iter().map(usage).sum())
}

//! The comparison of the node with real servers: equal commands must give equal replies.
//!
//! A program of its own, because the clock and the random source of the simulation are not real.

mod sequence;
mod server;
mod snippets;
mod tee;

use std::{
    env,
    path::Path,
    process::ExitCode,
    time::{Duration, Instant},
};

use redis::AsyncConnectionConfig;
use sim::{node, option, quotas, random};

use self::{sequence::Sequence, server::Server, tee::Tee};

const PATIENCE: Duration = Duration::from_secs(60);
/// The number of sequences on one connection.
const ROUND: u64 = 1_000;

/// Runs random sequences against Redis and Valkey: `differential [--sequences N] [--first N]`.
fn main() -> ExitCode {
    let (first, sequences) = (option("--first").unwrap_or(0), option("--sequences"));
    let sequences = sequences.unwrap_or(2_000);
    let fetched = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/valkey/valkey-server");
    let fetched = if fetched.exists() { fetched } else { "valkey-server".into() };
    let fetched = fetched.to_string_lossy().into_owned();
    let programs = [("REDIS_SERVER", "redis-server".to_owned()), ("VALKEY_SERVER", fetched)];
    let equal = programs.into_iter().all(|(variable, default)| {
        let program = env::var(variable).unwrap_or(default);
        compare(&program, first, sequences)
    });
    if equal { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn compare(program: &str, first: u64, sequences: u64) -> bool {
    let server = match Server::start(program) {
        Ok(server) => server,
        Err(error) => {
            println!("{program}: {error}; run scripts/servers");
            return false;
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let (start, mut seed, mut cut) = (Instant::now(), first, 0);
    let difference = runtime.block_on(async {
        while seed < first + sequences {
            let client = redis::Client::open(server.url()).expect("an address");
            // A busy machine may stop a server for a while.
            let config = AsyncConnectionConfig::new().set_response_timeout(Some(PATIENCE));
            let real = client.get_multiplexed_async_connection_with_config(&config).await;
            let real = real.expect("a connection");
            let tee = Tee::new(real);
            // The node is new, but the server still has the scripts of earlier sequences.
            tee.send(&[b"SCRIPT".to_vec(), b"FLUSH".to_vec()]).await;
            for _ in 0..ROUND.min(first + sequences - seed) {
                let whole = Sequence::new(seed, &tee).await.run().await;
                cut += u64::from(!whole);
                if let Some(difference) = tee.difference() {
                    return Some(difference);
                }
                seed += 1;
            }
        }
        None
    });
    if let Some(difference) = &difference {
        println!("{program}: sequence {seed} differs\n{difference}");
    } else {
        println!("{program}: {sequences} sequences, 0 differences, {:.1?}", start.elapsed());
        println!("{cut} of them ended early, at the end of a key");
    }
    difference.is_none()
}

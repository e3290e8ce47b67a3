//! The scripts, assembled from `lua/`: a clock, the algorithms that a call needs, and a frame.

use std::sync::OnceLock;

use crate::quota::{Algorithm, Quota};

const CLOCK: &str = include_str!("../../../lua/clock.lua");
#[cfg(feature = "testing")]
const DRIVEN: &str = include_str!("../../../lua/clock_driven.lua");
const ONE: &str = include_str!("../../../lua/one.lua");
const PLAIN: &str = include_str!("../../../lua/plain.lua");
const TIME: &str = include_str!("../../../lua/time.lua");
const ACCOUNT: &str = include_str!("../../../lua/account.lua");
const TAKE: &str = include_str!("../../../lua/take.lua");
const SETTLE: &str = include_str!("../../../lua/settle.lua");
const BATCH: &str = include_str!("../../../lua/batch.lua");
/// What takes one question of several stands in a function of its own, defined where it is needed.
const GENERAL: [&str; 2] = ["local function general(KEYS, ARGV, plans)\n", "end\n"];
const ALGORITHMS: [(u8, &str); 5] = [
    (b'g', include_str!("../../../lua/gcra.lua")),
    (b't', include_str!("../../../lua/token_bucket.lua")),
    (b'f', include_str!("../../../lua/fixed_window.lua")),
    (b's', include_str!("../../../lua/sliding_window.lua")),
    (b'l', include_str!("../../../lua/sliding_log.lua")),
];
const SETS: usize = 1 << ALGORITHMS.len();

/// By which letter an algorithm is known in a plan and in an account.
pub(super) fn letter(quota: &Quota) -> u8 {
    match quota.counted_by() {
        Algorithm::Gcra => b'g',
        Algorithm::TokenBucket => b't',
        Algorithm::FixedWindow { .. } | Algorithm::AnchoredWindow => b'f',
        Algorithm::SlidingWindow { .. } => b's',
        Algorithm::SlidingLog => b'l',
    }
}

/// A script and its hash.
#[derive(Debug)]
pub(super) struct Script {
    pub(super) text: String,
    pub(super) sha: String,
}

/// What a script is to do with accounts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    /// GCRA quotas that start full and are all charged: what most requests ask.
    Plain,
    Take,
    Settle,
    /// Many questions, each of which `Plain` would answer.
    Batch,
}

/// All scripts of a store, each made when it is first needed: a set of algorithms has its own, so
/// that the server does not define, call by call, what the call does not need.
pub(super) struct Scripts {
    clock: &'static str,
    made: [[OnceLock<Script>; SETS]; 4],
}

impl Default for Scripts {
    fn default() -> Self {
        Self { clock: CLOCK, made: Default::default() }
    }
}

impl Scripts {
    /// By the clock that the last two arguments tell.
    #[cfg(feature = "testing")]
    pub(super) fn driven() -> Self {
        Self { clock: DRIVEN, ..Self::default() }
    }

    /// The script that knows the algorithms of these letters.
    pub(super) fn get(&self, frame: Frame, letters: impl Iterator<Item = u8>) -> &Script {
        let bit = |letter| 1 << ALGORITHMS.iter().take_while(|(known, _)| *known != letter).count();
        let set = letters.fold(0_usize, |set, letter| set | bit(letter)) % SETS;
        self.made[frame as usize][set].get_or_init(|| self.assemble(frame, set))
    }

    fn assemble(&self, frame: Frame, set: usize) -> Script {
        let mut parts = match frame {
            Frame::Plain => vec![self.clock, ONE, TIME, PLAIN, ACCOUNT],
            Frame::Take | Frame::Settle => vec![self.clock, TIME, ACCOUNT],
            Frame::Batch => vec![self.clock, TIME, GENERAL[0], PLAIN, ACCOUNT],
        };
        let of_set = ALGORITHMS.iter().enumerate().filter(|(at, _)| set >> at & 1 == 1);
        parts.extend(of_set.map(|(_, (_, text))| *text));
        parts.push(if frame == Frame::Settle { SETTLE } else { TAKE });
        if frame == Frame::Batch {
            parts.extend([GENERAL[1], BATCH]);
        }
        let text = lean(&parts.concat());
        Script { sha: redis::Script::new(&text).get_hash().to_owned(), text }
    }
}

/// Without comments and indentation: the server keeps what it is sent.
fn lean(text: &str) -> String {
    let lines = text.lines().map(str::trim);
    let code = lines.filter(|line| !line.is_empty() && !line.starts_with("--"));
    code.flat_map(|line| [line, "\n"]).collect()
}

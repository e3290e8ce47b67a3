//! The faults: each begins, lasts for some time, and ends.

use std::{fmt, time::Duration};

use super::oracle::Cause;
use crate::random::Random;

/// A fault. Numbers of processes are indices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    /// The node dies. With `loses`, its keys are lost.
    Kill { loses: bool },
    /// The node does not run for a while.
    Freeze,
    /// Each command takes this long.
    Slow(Duration),
    /// All keys are lost.
    Flush,
    /// A key is evicted.
    Evict,
    /// The scripts are lost.
    ScriptFlush,
    /// The node's clock steps by microseconds.
    Clock(i64),
    /// The node has no memory.
    Full,
    /// Requests, replies or both are held back.
    Partition { process: usize, up: bool, down: bool },
    /// The path is slow.
    Delay { process: usize, most: u64 },
    /// All connections of a process are reset.
    Reset { process: usize },
    /// A process does not run for a while.
    Pause { process: usize },
    /// A process dies and starts again.
    Restart { process: usize },
}

impl Fault {
    pub fn random(random: &mut Random, processes: usize) -> Self {
        let process = random.below(processes);
        match random.within(0..14) {
            0 => Self::Kill { loses: true },
            1 => Self::Kill { loses: false },
            2 => Self::Freeze,
            3 => Self::Slow(Duration::from_millis(random.within(1..200))),
            4 => Self::Flush,
            5 => Self::Evict,
            6 => Self::ScriptFlush,
            7 => {
                let micros = random.within(1..30_000_000).cast_signed();
                Self::Clock(if random.percent(50) { micros } else { -micros })
            }
            8 => Self::Full,
            9 => {
                let (up, down) = *random.pick(&[(true, true), (true, false), (false, true)]);
                Self::Partition { process, up, down }
            }
            10 => Self::Delay { process, most: random.within(1_000..400_000) },
            11 => Self::Reset { process },
            12 => Self::Pause { process },
            _ => Self::Restart { process },
        }
    }

    /// Returns `true` if the fault has no duration.
    pub fn is_instant(self) -> bool {
        matches!(
            self,
            Self::Flush | Self::Evict | Self::ScriptFlush | Self::Clock(_) | Self::Reset { .. }
        )
    }

    /// Returns the cause of a loss, if a key may have more than its limit.
    pub fn loss(self) -> Option<Cause> {
        match self {
            Self::Kill { loses: true } | Self::Flush | Self::Evict => Some(Cause::State),
            Self::Clock(micros) => Some(if micros > 0 { Cause::Forward } else { Cause::Back }),
            _ => None,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kill { loses: true } => write!(f, "node dies and loses its keys"),
            Self::Kill { loses: false } => write!(f, "node dies and keeps its keys"),
            Self::Freeze => write!(f, "node freezes"),
            Self::Slow(work) => write!(f, "node needs {work:?} per command"),
            Self::Flush => write!(f, "all keys are lost"),
            Self::Evict => write!(f, "a key is evicted"),
            Self::ScriptFlush => write!(f, "scripts are lost"),
            Self::Clock(micros) => write!(f, "node's clock steps by {micros} us"),
            Self::Full => write!(f, "node has no memory"),
            Self::Partition { process, up, down } => {
                let of = match (up, down) {
                    (true, true) => "everything",
                    (true, false) => "requests",
                    _ => "replies",
                };
                write!(f, "{of} of p{process} held back")
            }
            Self::Delay { process, most } => write!(f, "up to {most} us of delay for p{process}"),
            Self::Reset { process } => write!(f, "connections of p{process} reset"),
            Self::Pause { process } => write!(f, "p{process} pauses"),
            Self::Restart { process } => write!(f, "p{process} dies"),
        }
    }
}

//! The faults: each begins, lasts for some time, and ends.

use std::{fmt, time::Duration};

use super::{
    deployment::{Deployment, Kind},
    oracle::Cause,
};
use crate::random::Random;

/// A fault. Processes and shards are indices. A fault of a shard is one of its primary.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    /// A server has a fault.
    Server { shard: usize, kind: Trouble },
    /// The clocks of all servers step by microseconds.
    Clock(i64),
    /// A replica takes over. The primary dies, or goes on for a while without knowing.
    Failover { shard: usize, dies: bool, lag: Duration },
    /// A hash slot moves to another primary.
    Move,
    /// Each request of a process arrives twice.
    Repeat { process: usize },
    /// Requests, replies or both are held back.
    Partition { process: usize, up: bool, down: bool },
    /// The path is slow.
    Delay { process: usize, most: u64 },
    /// All connections of a process are reset.
    Reset { process: usize },
    /// The open connections of a process deliver nothing more, and do not end.
    Silence { process: usize },
    /// A process does not run for a while.
    Pause { process: usize },
    /// A process dies and starts again.
    Restart { process: usize },
}

/// A fault of a server.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Trouble {
    /// It dies. With `loses`, its keys are lost.
    Kill { loses: bool },
    /// It does not run for a while.
    Freeze,
    /// Each command takes this long.
    Slow(Duration),
    /// It has no memory.
    Full,
    /// All keys are lost.
    Flush,
    /// A key is evicted.
    Evict,
    /// The scripts are lost.
    ScriptFlush,
}

impl Fault {
    pub fn random(random: &mut Random, processes: usize, nodes: &Deployment) -> Self {
        let (process, shard) = (random.below(processes), random.below(nodes.shards()));
        let server = |kind| Self::Server { shard, kind };
        // Half of the faults of several servers are those that one server cannot have.
        if nodes.kind != Kind::Single && random.percent(40) {
            let lag = Duration::from_millis(*random.pick(&[0, 1, 20, 300]));
            let moves = nodes.kind == Kind::Cluster && random.percent(60);
            let dies = random.percent(60);
            return if moves { Self::Move } else { Self::Failover { shard, dies, lag } };
        }
        match random.within(0..16) {
            0 => server(Trouble::Kill { loses: true }),
            1 => server(Trouble::Kill { loses: false }),
            2 => server(Trouble::Freeze),
            3 => server(Trouble::Slow(Duration::from_millis(random.within(1..200)))),
            4 => server(Trouble::Flush),
            5 => server(Trouble::Evict),
            6 => server(Trouble::ScriptFlush),
            7 => {
                let micros = random.within(1..30_000_000).cast_signed();
                Self::Clock(if random.percent(50) { micros } else { -micros })
            }
            8 => server(Trouble::Full),
            9 => {
                let (up, down) = *random.pick(&[(true, true), (true, false), (false, true)]);
                Self::Partition { process, up, down }
            }
            10 => Self::Delay { process, most: random.within(1_000..400_000) },
            11 => Self::Reset { process },
            12 => Self::Pause { process },
            13 => Self::Repeat { process },
            14 => Self::Silence { process },
            _ => Self::Restart { process },
        }
    }

    /// Returns `true` if the fault has no duration.
    pub fn is_instant(self) -> bool {
        let of_server =
            |kind| matches!(kind, Trouble::Flush | Trouble::Evict | Trouble::ScriptFlush);
        match self {
            Self::Server { kind, .. } => of_server(kind),
            other => matches!(other, Self::Clock(_) | Self::Reset { .. }),
        }
    }

    /// Returns the cause of a loss, if a key may have more than its limit.
    pub fn loss(self) -> Option<Cause> {
        let state =
            |kind| matches!(kind, Trouble::Kill { loses: true } | Trouble::Flush | Trouble::Evict);
        match self {
            Self::Server { kind, .. } if state(kind) => Some(Cause::State),
            Self::Clock(micros) => Some(if micros > 0 { Cause::Forward } else { Cause::Back }),
            _ => None,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Server { shard, kind } => write!(f, "the primary of shard {shard} {kind}"),
            Self::Clock(micros) => write!(f, "all servers' clocks step by {micros} us"),
            Self::Failover { shard, dies: true, .. } => {
                write!(f, "the primary of shard {shard} dies, and its replica takes over")
            }
            Self::Failover { shard, dies: false, .. } => {
                write!(f, "the replica of shard {shard} takes over from a primary that goes on")
            }
            Self::Move => write!(f, "a hash slot moves"),
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
            Self::Silence { process } => write!(f, "connections of p{process} fall silent"),
            Self::Repeat { process } => write!(f, "each request of p{process} arrives twice"),
            Self::Pause { process } => write!(f, "p{process} pauses"),
            Self::Restart { process } => write!(f, "p{process} dies"),
        }
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kill { loses: true } => write!(f, "dies and loses its keys"),
            Self::Kill { loses: false } => write!(f, "dies and keeps its keys"),
            Self::Freeze => write!(f, "freezes"),
            Self::Slow(work) => write!(f, "needs {work:?} per command"),
            Self::Flush => write!(f, "loses all keys"),
            Self::Evict => write!(f, "evicts a key"),
            Self::ScriptFlush => write!(f, "loses its scripts"),
            Self::Full => write!(f, "has no memory"),
        }
    }
}

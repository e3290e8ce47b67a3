//! Unexpected values at the keys of accounts.

use redis::{Cmd, cmd};
use tokio::time::Instant;

use crate::{
    app::App,
    fault::{Fault, Findings, Must, World},
    judge::admissions,
    servers::Server,
    stack::{BURST, Door},
    stage::Ran,
};

/// Writes a value of another type to every key.
const OTHER_TYPES: &str = r"
for i, key in ipairs(redis.call('KEYS', 'sluice:4:*')) do
  redis.call('DEL', key)
  local put = { { 'RPUSH', key, 'x' }, { 'HSET', key, 'x', 'y' }, { 'SADD', key, 'x' },
    { 'ZADD', key, 1, 'x' }, { 'XADD', key, '*', 'x', 'y' } }
  redis.call(unpack(put[i % #put + 1]))
end";

/// Writes invalid strings to every key: words, empty strings, halves, wrong lengths, impossible
/// instants.
const BROKEN: &str = r"
for i, key in ipairs(redis.call('KEYS', 'sluice:4:*')) do
  local value = redis.call('GET', key)
  local put = { 'notanumber', '', '0', string.rep('\255', 19), string.sub(value, 1, -4),
    value .. 'x', struct.pack('<I7c1HI7H', 1, 'g', 9, 2^55, 0),
    struct.pack('<I7c1HI7H', 1, 'g', 9, 1, 65535), struct.pack('<I7c1HI7H', 1, 'g', 7, 2^50, 0),
    string.rep('g', 4000) }
  redis.call('SET', key, put[i % #put + 1])
end";

/// Moves all times in every account, as a step of the server's clock in the other direction does.
const STEP: &str = r"
local by = tonumber(ARGV[1])
for _, key in ipairs(redis.call('KEYS', 'sluice:4:*')) do
  local value, ends = redis.call('GET', key), redis.call('PEXPIRETIME', key)
  if #value ~= 19 or ends <= 0 then return redis.error_reply('no account') end
  local last, letter, length, us, ns = struct.unpack('<I7c1HI7H', value)
  value = struct.pack('<I7c1HI7H', last + by, letter, length, us + by, ns)
  redis.call('SET', key, value, 'PXAT', string.format('%.0f', ends + by / 1000))
end";

const MINUTE: i64 = 60_000_000;

pub(crate) fn faults() -> Vec<Fault> {
    let one_burst = Must::UNNOTICED.overshoots(Some(BURST));
    let healed = "no visible effect; at most a burst above the limit";
    vec![
        rewritten("wrong type under the keys", healed, one_burst, OTHER_TYPES, 0),
        rewritten("broken values under the keys", healed, one_burst, BROKEN, 0),
        rewritten("clock steps forward", healed, one_burst, STEP, -MINUTE),
        rewritten(
            "clock steps back",
            "no visible effect, the limit is never exceeded, and no key waits longer",
            Must::UNNOTICED,
            STEP,
            MINUTE,
        ),
    ]
}

fn rewritten(
    name: &'static str,
    holds: &'static str,
    must: Must,
    script: &'static str,
    by: i64,
) -> Fault {
    Fault::new(name, holds, must, async move |options| {
        let mut change = cmd("EVAL");
        change.arg(script).arg(0).arg(by);
        Rewritten { server: options.server().await, change }
    })
}

struct Rewritten {
    server: Server,
    change: Cmd,
}

impl World for Rewritten {
    fn door(&self, _: usize) -> Door {
        Door::Server(self.server.url())
    }

    async fn strike(&mut self, _: &[App], _: Instant) {
        let () = self.server.run(&self.change).await.expect("rewritten");
    }

    async fn heal(&mut self) {}

    /// No key may be denied for long because of such a value either.
    async fn look(&mut self, ran: &Ran) -> Findings {
        let mut longest = std::time::Duration::ZERO;
        for times in admissions(ran).values_mut() {
            times.sort_unstable();
            let gaps = times.windows(2).map(|pair| pair[1].0 - pair[0].0);
            let last = times.last().map(|last| ran.ended - last.0);
            longest = gaps.chain(last).fold(longest, Ord::max);
        }
        Findings::default()
            .note(format!("no key was denied for longer than {longest:.0?}"))
            .demand(longest.as_secs() < 1, format!("a key was denied for {longest:.0?}"))
    }
}

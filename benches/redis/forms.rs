//! The compared commands: those that the store sends, and well-known ones.

use redis::Value;
use tower_sluice::{Algorithm, Quota};

use crate::{
    case::{Case, evalsha},
    server::Server,
};

const KEYS: u32 = 1_000;
/// A limit that is not exhausted here, with debts that grow from run to run.
const AMPLE: u32 = 10_000_000;

pub(crate) const PLAIN: &str = "plain microsecond script";
pub(crate) const LEAN: &str = "one quota";
pub(crate) const POOL: &str = "one quota of all keys";
pub(crate) const SHARE: &str = "a fair share and its pool";
pub(crate) const THREE_QUOTAS: &str = "three quotas of one key";
pub(crate) const THREE_RULES: &str = "three rules (three keys)";

/// The usual published GCRA script for a single limit, with times in whole microseconds.
const PLAIN_SCRIPT: &str = "
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local interval, most, cost = ARGV[1] + 0, ARGV[2] + 0, ARGV[3] + 0
local tat = (redis.call('GET', KEYS[1]) or now) + 0
if tat < now then
  tat = now
end
local after = tat + cost * interval
local room = now + most - after
if room < 0 then
  return {0, math.floor((now + most - tat) / interval), -room, tat - now}
end
redis.call('SET', KEYS[1], string.format('%d', after), 'PX', math.ceil((after - now) / 1000))
return {1, math.floor(room / interval), 0, after - now}
";

/// A command for many keys, which alternates with others.
pub(crate) struct Form {
    pub(crate) name: &'static str,
    /// The packed commands, one per key.
    pub(crate) commands: Vec<Vec<u8>>,
}

/// Returns 10 per second, 100 per minute and 1000 per hour, never exhausted.
pub(crate) fn quotas() -> [Quota; 3] {
    [Quota::per_second(10), Quota::per_minute(100), Quota::per_hour(1_000)]
        .map(|quota| quota.with_burst(AMPLE))
}

pub(crate) fn all(server: &mut Server) -> Vec<Form> {
    let mut forms = known(server);
    forms.extend(decisions(server));
    forms
}

fn known(server: &mut Server) -> Vec<Form> {
    let (empty, sha) = (server.load("return 1"), server.load(PLAIN_SCRIPT));
    let plain = |name: &'static str, [interval, most]: [&str; 2]| {
        // As long as a key of the store.
        let key = |at| format!("{name:x<26.26}:{at:06}").into();
        let arg = |text: &str| text.into();
        let args = |at| vec![arg("1"), key(at), arg(interval), arg(most), arg("1")];
        Form { name, commands: (0..KEYS).map(|at| evalsha(&sha, args(at))).collect() }
    };
    vec![
        plain(PLAIN, ["600000", "6000000000000"]),
        plain("plain microsecond script, denied", ["3600000000", "3600000000"]),
        Form { name: "PING", commands: vec![redis::cmd("PING").get_packed_command()] },
        Form { name: "EVALSHA return 1", commands: vec![evalsha(&empty, vec!["0".into()])] },
    ]
}

fn decisions(server: &mut Server) -> Vec<Form> {
    let [second, minute, hour] = quotas();
    let one = Quota::per_hour(1);
    let window = Algorithm::fixed_window();
    let sliding = Algorithm::SlidingWindow { buckets: 10 };
    let allowed = [
        Case::one(LEAN, minute),
        Case::new(THREE_QUOTAS, &[&[second, minute, hour]]),
        Case::new(THREE_RULES, &[&[second], &[minute], &[hour]]),
        Case::one(POOL, minute).sharing(0),
        Case::new(SHARE, &[&[second], &[minute]]).sharing(1),
        Case::one("token bucket", minute.with_algorithm(Algorithm::TokenBucket)),
        Case::one("fixed window", Quota::per_hour(AMPLE).with_algorithm(window)),
        Case::one("sliding window", Quota::per_hour(AMPLE).with_algorithm(sliding)),
    ];
    let denied = [
        Case::one("one quota, denied", one),
        Case::new("three quotas of one key, denied", &[&[second, minute, one]]),
        Case::new("three rules, denied", &[&[second], &[minute], &[one]]),
        Case::one("token bucket, denied", one.with_algorithm(Algorithm::TokenBucket)),
        Case::one("fixed window, denied", one.with_algorithm(Algorithm::AnchoredWindow)),
    ];
    let mut form = |case: &Case, is_allowed| {
        let commands = case.commands(server, KEYS);
        server.play(commands.iter());
        server.play(commands.iter());
        // The commands of a form do what its name says, on valid accounts.
        let last = server.ask(&commands[0]);
        let Value::BulkString(bytes) = &last else { panic!("{}: {last:?}", case.name) };
        let (said, healed) = (bytes[9] == 1, bytes[13]);
        assert!(said == is_allowed && healed == 0, "{}: {last:?}", case.name);
        Form { name: case.name, commands }
    };
    let mut forms: Vec<_> = allowed.iter().map(|case| form(case, true)).collect();
    forms.extend(denied.iter().map(|case| form(case, false)));
    forms
}

//! The compared commands: those that the store sends, and well-known ones.

use std::{
    ops::Range,
    time::{Duration, SystemTime},
};

use tower_sluice::{Algorithm, Quota};

use crate::{
    case::{Ask, Case, back, block, evalsha, late, take},
    server::Server,
    wire::pack,
};

const KEYS: u32 = 1_000;
/// A limit that is not exhausted here, with debts that grow from run to run.
const AMPLE: u32 = 10_000_000;
const MINUTE: Duration = Duration::from_secs(60);
/// The approximate time in which each key of the log is charged a hundred times.
const LOG: Duration = Duration::from_millis(40);
const LOG_KEYS: u32 = 20;

pub(crate) const PLAIN: &str = "plain microsecond script";
pub(crate) const PLAIN_ONE: &str = "plain, one integer back";
pub(crate) const LEAN: &str = "one quota";
pub(crate) const ALIKE: &str = "one quota, the way of several";
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

/// The plain script with a different answer: the units left, or the wait as a negative number.
const PLAIN_ONE_SCRIPT: &str = "
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
  return room
end
redis.call('SET', KEYS[1], string.format('%d', after), 'PX', math.ceil((after - now) / 1000))
return math.floor(room / interval)
";

/// A command for many keys, which alternates with others.
pub(crate) struct Form {
    pub(crate) name: &'static str,
    /// The packed commands, one per key.
    pub(crate) commands: Vec<Vec<u8>>,
    /// The number of calls before each measurement.
    pub(crate) warm: usize,
}

impl Form {
    fn new(name: &'static str, commands: Vec<Vec<u8>>) -> Self {
        Self { name, commands, warm: 0 }
    }
}

/// Returns 10 per second, 100 per minute and 1000 per hour, never exhausted.
pub(crate) fn quotas() -> [Quota; 3] {
    [Quota::per_second(10), Quota::per_minute(100), Quota::per_hour(1_000)]
        .map(|quota| quota.with_burst(AMPLE))
}

/// Returns the cases with a latency and a client cost.
pub(crate) fn whole() -> [Case; 3] {
    let [second, minute, hour] = quotas();
    [
        Case::one(LEAN, minute),
        Case::new(THREE_QUOTAS, &[&[second, minute, hour]]),
        Case::new(THREE_RULES, &[&[second], &[minute], &[hour]]),
    ]
}

pub(crate) fn all(server: &mut Server) -> Vec<Form> {
    let mut forms = known(server);
    forms.extend(allowed(server));
    forms.extend(denied(server));
    forms
}

fn known(server: &mut Server) -> Vec<Form> {
    let empty = server.load("return 1");
    let mut plain = |name: &'static str, script: &str, [interval, most]: [&str; 2]| {
        let sha = server.load(script);
        // As long as a key of the store.
        let key = |at| format!("{name:x<26.26}:{at:06}").into();
        let arg = |text: &str| text.into();
        let args = |at| vec![arg("1"), key(at), arg(interval), arg(most), arg("1")];
        Form::new(name, (0..KEYS).map(|at| evalsha(&sha, args(at))).collect())
    };
    vec![
        plain(PLAIN, PLAIN_SCRIPT, ["600000", "6000000000000"]),
        plain(PLAIN_ONE, PLAIN_ONE_SCRIPT, ["600000", "6000000000000"]),
        plain("plain microsecond script, denied", PLAIN_SCRIPT, ["3600000000", "3600000000"]),
        Form::new("PING", vec![pack(&["PING"])]),
        Form::new("EVALSHA return 1", vec![evalsha(&empty, vec!["0".into()])]),
    ]
}

fn allowed(server: &mut Server) -> Vec<Form> {
    let [second, minute, hour] = quotas();
    let ten = Quota::new(AMPLE, 10 * MINUTE).expect("a quota");
    let sixty = Quota::per_hour(AMPLE);
    let sliding = |buckets| Algorithm::SlidingWindow { buckets };
    let mut forms: Vec<_> = whole().iter().map(|case| admitted(server, case)).collect();
    forms.extend([
        admitted(server, &Case::one(POOL, minute).sharing(0)),
        admitted(server, &Case::new(SHARE, &[&[second], &[minute]]).sharing(1)),
        alike(server, minute),
    ]);
    forms.extend(
        [
            Case::new("three rules, five quotas", &[&[second, minute], &[minute, hour], &[hour]]),
            Case::one("token bucket", minute.with_algorithm(Algorithm::TokenBucket)),
            Case::one("fixed window", sixty.with_algorithm(Algorithm::fixed_window())),
        ]
        .map(|case| admitted(server, &case)),
    );
    let ten = Case::one("sliding window, 10 buckets", ten.with_algorithm(sliding(10)));
    let sixty = Case::one("sliding window, 60 buckets", sixty.with_algorithm(sliding(60)));
    forms.push(filled(server, &ten, 10));
    forms.push(filled(server, &sixty, 60));
    forms.push(log(server));
    forms.push(settled(server, "settle: a unit more", minute, late));
    forms.push(settled(server, "settle: a unit back", minute, back));
    forms
}

fn denied(server: &mut Server) -> Vec<Form> {
    let [second, minute, _] = quotas();
    let one = Quota::per_hour(1);
    let mut forms: Vec<_> = [
        Case::one("one quota, denied", one),
        Case::new("three quotas of one key, denied", &[&[second, minute, one]]),
        Case::new("three rules, denied", &[&[second], &[minute], &[one]]),
        Case::one("token bucket, denied", one.with_algorithm(Algorithm::TokenBucket)),
        Case::one("fixed window, denied", one.with_algorithm(Algorithm::AnchoredWindow)),
    ]
    .into_iter()
    .map(|case| {
        let commands = case.commands(server, KEYS, take);
        server.play(commands.iter());
        checked(server, Form::new(case.name, commands), false)
    })
    .collect();
    let case = Case::one("a blocked key", minute);
    let blocks = case.commands(server, KEYS, block);
    server.play(blocks.iter());
    let commands = case.commands(server, KEYS, take);
    forms.push(checked(server, Form::new(case.name, commands), false));
    forms
}

fn admitted(server: &mut Server, case: &Case) -> Form {
    let commands = case.commands(server, KEYS, take);
    checked(server, Form::new(case.name, commands), true)
}

/// Charges one quota without its own fast path, like several quotas.
fn alike(server: &mut Server, quota: Quota) -> Form {
    let case = Case::one(ALIKE, quota);
    let script = case.call(0, take).script;
    let lines = include_str!("../../lua/one.lua").lines().map(str::trim);
    let code = lines.filter(|line| !line.is_empty() && !line.starts_with("--"));
    let without = script.replace(&code.flat_map(|line| [line, "\n"]).collect::<String>(), "");
    assert!(without.len() < script.len(), "the script has its short cut");
    scripted(server, &case, &without)
}

/// Runs a case with another script.
fn scripted(server: &mut Server, case: &Case, script: &str) -> Form {
    let sha = server.load(script);
    let commands = (0..KEYS).map(|key| evalsha(&sha, case.call(key, take).args)).collect();
    checked(server, Form::new(case.name, commands), true)
}

/// Fills accounts of a sliding window with a charge in each bucket.
fn filled(server: &mut Server, case: &Case, buckets: u64) -> Form {
    fill(server, case, KEYS, buckets);
    let form = admitted(server, case);
    let call = case.call(0, take);
    let length = server.call(&[b"STRLEN".as_slice(), &call.keys()[0]]).int();
    let entries = u64::try_from(length).expect("an account") / 14;
    assert!(entries >= buckets, "{}: {entries} buckets", case.name);
    form
}

/// The places in a stored account with one entry (lua/README.md): its length, the sum of a sliding window,
/// and the buckets.
const LENGTH: Range<usize> = 8..10;
const SUM: Range<usize> = 21..26;

/// Writes accounts of a sliding window of one-minute buckets, used in all but the newest.
fn fill(server: &mut Server, case: &Case, keys: u32, buckets: u64) {
    let now = SystemTime::UNIX_EPOCH.elapsed().expect("a clock");
    let int = |number: u128, bytes: usize| number.to_le_bytes()[..bytes].to_vec();
    let instant = |back: u32| [int((now - MINUTE * back).as_micros(), 7), int(0, 2)].concat();
    let used = 1..u32::try_from(buckets).expect("a few buckets");
    let earlier: Vec<_> = used.rev().flat_map(|back| [instant(back), int(1, 5)].concat()).collect();
    let first = case.commands(server, 1, take);
    server.play(first.iter());
    let stored = server.call(&[b"GET".as_slice(), &case.call(0, take).keys()[0]]);
    let mut value = stored.bytes().to_vec();
    let length = u16::from_le_bytes([value[LENGTH.start], value[LENGTH.start + 1]]);
    let length = u128::from(length) + earlier.len() as u128;
    value.splice(LENGTH, int(length, 2));
    value.splice(SUM, int(u128::from(buckets), 5));
    value.splice(SUM.end..SUM.end, earlier);
    let sets = (0..keys).map(|key| {
        let call = case.call(key, take);
        pack(&[b"SET".as_slice(), &call.keys()[0], &value, b"PX", b"3600000"])
    });
    server.play(sets.collect::<Vec<_>>().iter());
}

/// Prepares a log of some hundred entries, in which each charge evicts about one.
fn log(server: &mut Server) -> Form {
    let quota = Quota::new(1_000, LOG).expect("a quota").with_algorithm(Algorithm::SlidingLog);
    let case = Case::one("sliding log, about 100", quota);
    let commands = case.commands(server, LOG_KEYS, take);
    let form = checked(server, Form::new(case.name, commands), true);
    Form { warm: 120 * LOG_KEYS as usize, ..form }
}

/// Prepares accounts deep in debt, so that any refund fits.
fn settled(server: &mut Server, name: &'static str, quota: Quota, ask: Ask) -> Form {
    let case = Case::one(name, quota);
    let debt: Ask = |store, charges| take(store, &[charges[0].with_cost(AMPLE / 2)]);
    let debts = case.commands(server, KEYS, debt);
    server.play(debts.iter());
    let commands = case.commands(server, KEYS, ask);
    checked(server, Form::new(name, commands), true)
}

/// Checks that the commands of a form do what its name says, on valid accounts.
fn checked(server: &mut Server, form: Form, allowed: bool) -> Form {
    server.play(form.commands.iter());
    let last = server.ask(&form.commands[0]);
    let (said, healed) = (last.bytes()[9] == 1, last.bytes()[13]);
    assert!(said == allowed && healed == 0, "{}: {last:?}", form.name);
    form
}

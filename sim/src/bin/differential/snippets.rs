//! Single commands, and short scripts that convert values between Lua and the server.

use super::tee::Tee;
use crate::random::Random;

const SCRIPTS: [&str; 24] = [
    "return {1.9, -1.9, 0, 2^40, 'a', true}",
    "return {1, false, 2, nil, 3}",
    "return false",
    "return",
    "return {ok = 'fine'}",
    "return {err = 'ERR broken'}",
    "return redis.call('GET', KEYS[1])",
    "return redis.pcall('LINDEX', KEYS[1], 0)",
    "local r = redis.pcall('ZCARD', KEYS[1]) return {type(r), r}",
    "local r = redis.pcall('GET', KEYS[1]) return type(r) == 'table' and r.err or type(r)",
    "return redis.call('RPUSH', KEYS[1], 1, 2.5, 3e5)",
    "return redis.call('MGET', KEYS[1], 'nothing', KEYS[2])",
    "return redis.call('PSETEX', KEYS[1], 9000, ARGV[1])",
    "redis.call('PSETEX', KEYS[1], 9000, ARGV[1]) return redis.call('LPOP', KEYS[1])",
    "return redis.call('NONSENSE', 1)",
    "return redis.call('ZADD', KEYS[1], 1700000000000000 + #ARGV[1], ARGV[1], '(5', 'x')",
    "return redis.call('ZADD', KEYS[1], 1700000000000000 + #ARGV[1], ARGV[1], 2^50 + 1, 'x')",
    "local r = redis.pcall('ZRANGE', KEYS[1], -1, -1, 'WITHSCORES') return r.err or tonumber(r[2] or 1) / 1000",
    "local r = redis.pcall('ZMSCORE', KEYS[1], 'x', 'y') return {type(r[1]), type(r[2]), #r}",
    "local r = redis.call('ZRANGE', KEYS[1], '+inf', string.format('(%.0f', 3), 'BYSCORE', 'REV', 'LIMIT', 0, 2) return {r, #r}",
    "return {struct.unpack('<BI7Hi7Hi3', ARGV[1])}",
    "return {struct.unpack('<c3Bi6I5i1i2I4', ARGV[1], 3)}",
    "return struct.pack('<BI7Hi7HI5c0c2i1i3', #ARGV[1], 1234567890123, 999, -5, 70000, 2^39, ARGV[1], 'abc', -1, -2)",
    "return {struct.unpack('<Bc0', '\\3abcdef')}",
];

const COMMANDS: [&str; 52] = [
    "GET k",
    "PSETEX k 7000 v",
    "PSETEX k 0 v",
    "PSETEX k x v",
    "MGET k j nothing",
    "EXISTS k j k",
    "DEL k",
    "DEL k j",
    "PTTL k",
    "PEXPIRE k 9000",
    "PEXPIRE k 0",
    "PEXPIRE nothing 5",
    "RPUSH k a b a c",
    "LPOP k",
    "LINDEX k 0",
    "LINDEX k -1",
    "LINDEX k x",
    "LRANGE k 0 -1",
    "LRANGE k -2 1",
    "LSET k -1 z",
    "LSET k 9 z",
    "LREM k 1 a",
    "LREM k -1 a",
    "LREM k 0 b",
    "ZADD k 1 a 2 b 2 c",
    "ZADD k 3 a 1.5 d -inf e",
    "ZADD k XX 7 a 7 nothing",
    "ZADD nothing XX 8 a",
    "ZADD k 1 a 2",
    "ZADD k 1 a x b",
    "ZADD k 5 a 6 a",
    "ZADD k 1700000000123456 a 1700000000123457 g",
    "ZREM k a nothing a",
    "ZREM k b c d e f g",
    "ZCARD k",
    "ZCOUNT k (1 +inf",
    "ZCOUNT k 2 (1700000000123457",
    "ZCOUNT k x 1",
    "ZMSCORE k a nothing g",
    "ZRANGE k 0 -1 WITHSCORES",
    "ZRANGE k -2 9",
    "ZRANGE k 3 1",
    "ZRANGE k 0 -1 REV",
    "ZRANGE k x 1",
    "ZRANGE k -inf 3 BYSCORE LIMIT 0 2",
    "ZRANGE k +inf (1 BYSCORE REV LIMIT 1 5 WITHSCORES",
    "ZRANGE k 1 2 LIMIT 0 1",
    "ZRANGE k 1 2 BYSCORE LIMIT 0",
    "ZRANGE k 1 9 BYSCORE LIMIT -1 3",
    "ZRANGE k 1 9 BYSCORE LIMIT 1 -1",
    "SCRIPT FLUSH",
    "GET",
];

fn key(random: &mut Random, tee: &Tee) -> Vec<u8> {
    let keys = tee.node_keys();
    if keys.is_empty() || random.percent(70) {
        return random.pick(&[b"k", b"j"]).to_vec();
    }
    random.pick(&keys).clone()
}

/// Runs a short script on both sides.
pub async fn eval(random: &mut Random, tee: &Tee) {
    let script = random.pick(&SCRIPTS).as_bytes().to_vec();
    let length = random.below(60);
    let (one, two) = (key(random, tee), key(random, tee));
    let argument = random.bytes(length);
    tee.send(&[b"EVAL".to_vec(), script, b"2".to_vec(), one, two, argument]).await;
}

/// Runs a command on both sides.
pub async fn command(random: &mut Random, tee: &Tee) {
    let key = key(random, tee);
    let words = random.pick(&COMMANDS).split(' ');
    let word = |word: &str| if word == "k" { key.clone() } else { word.as_bytes().to_vec() };
    tee.send(&words.map(word).collect::<Vec<_>>()).await;
}

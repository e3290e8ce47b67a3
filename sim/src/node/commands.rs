//! The commands that the store's scripts and its client send.

use std::collections::VecDeque;

use super::{
    data::{Data, Value},
    reply::Reply,
    sorted,
};

pub type Args<'a> = &'a [Vec<u8>];
pub type Answer = Result<Reply, String>;

/// A command on keys: its name, the number of arguments at least and at most, whether it needs
/// memory, whether it changes keys, and its function.
struct Command(&'static str, usize, usize, bool, bool, fn(&mut Data, Args) -> Answer);

const ANY: usize = usize::MAX;
const COMMANDS: [Command; 20] = [
    Command("get", 1, 1, false, false, get),
    Command("psetex", 3, 3, true, true, psetex),
    Command("mget", 1, ANY, false, false, mget),
    Command("exists", 1, ANY, false, false, exists),
    Command("del", 1, ANY, false, true, del),
    Command("pttl", 1, 1, false, false, pttl),
    Command("pexpire", 2, 2, false, true, pexpire),
    Command("time", 0, 0, false, false, time),
    Command("lindex", 2, 2, false, false, lindex),
    Command("lrange", 3, 3, false, false, lrange),
    Command("lset", 3, 3, true, true, lset),
    Command("lrem", 3, 3, false, true, lrem),
    Command("rpush", 2, ANY, true, true, rpush),
    Command("lpop", 1, 1, false, true, lpop),
    Command("zadd", 3, ANY, true, true, sorted::zadd),
    Command("zrem", 2, ANY, false, true, sorted::zrem),
    Command("zcard", 1, 1, false, false, sorted::zcard),
    Command("zcount", 3, 3, false, false, sorted::zcount),
    Command("zmscore", 2, ANY, false, false, sorted::zmscore),
    Command("zrange", 3, ANY, false, false, sorted::zrange),
];

/// The effect of a command, known before it runs.
#[derive(Clone, Copy, Debug)]
pub struct Effect {
    pub needs_memory: bool,
    pub writes: bool,
}

fn find(name: &[u8]) -> Option<&'static Command> {
    COMMANDS.iter().find(|command| name.eq_ignore_ascii_case(command.0.as_bytes()))
}

/// Returns the effect of a command on keys, or `None` for any other command.
pub fn effect(name: &[u8]) -> Option<Effect> {
    find(name).map(|command| Effect { needs_memory: command.3, writes: command.4 })
}

/// Runs a command on keys.
pub fn run(data: &mut Data, name: &[u8], args: Args) -> Reply {
    let Some(Command(name, least, most, _, _, run)) = find(name) else {
        return unknown(name, args);
    };
    if args.len() < *least || args.len() > *most {
        return Reply::error(format!("ERR wrong number of arguments for '{name}' command"));
    }
    run(data, args).unwrap_or_else(Reply::Error)
}

/// The error of a command that the server does not have.
pub fn unknown(name: &[u8], args: Args) -> Reply {
    let quoted = args.iter().map(|arg| format!("'{}' ", String::from_utf8_lossy(arg)));
    let (name, args) = (String::from_utf8_lossy(name), quoted.collect::<String>());
    Reply::error(format!("ERR unknown command '{name}', with args beginning with: {args}"))
}

pub fn integer(arg: &[u8]) -> Result<i64, String> {
    let strict = |text: &str| !text.starts_with('+') && (text == "0" || !text.starts_with('0'));
    let number =
        str::from_utf8(arg).ok().filter(|text| strict(text)).and_then(|it| it.parse().ok());
    number.ok_or_else(|| "ERR value is not an integer or out of range".into())
}

pub fn count(number: usize) -> Reply {
    Reply::Integer(i64::try_from(number).unwrap_or(i64::MAX))
}

fn or_nil(value: Option<Vec<u8>>) -> Reply {
    value.map_or(Reply::Nil, Reply::Bulk)
}

fn get(data: &mut Data, args: Args) -> Answer {
    Ok(or_nil(data.text(&args[0])?.cloned()))
}

fn psetex(data: &mut Data, args: Args) -> Answer {
    let end = data.millis().checked_add(integer(&args[1])?).filter(|end| *end > data.millis());
    let end = end.ok_or("ERR invalid expire time in 'psetex' command")?;
    data.set(&args[0], Value::Text(args[2].clone()), Some(end));
    Ok(Reply::ok())
}

fn mget(data: &mut Data, args: Args) -> Answer {
    let values = args.iter().map(|key| or_nil(data.text(key).ok().flatten().cloned()));
    Ok(Reply::Array(values.collect()))
}

fn exists(data: &mut Data, args: Args) -> Answer {
    Ok(count(args.iter().filter(|key| data.get(key).is_some()).count()))
}

fn del(data: &mut Data, args: Args) -> Answer {
    Ok(count(args.iter().filter(|key| data.remove(key)).count()))
}

fn pttl(data: &mut Data, args: Args) -> Answer {
    let left = match data.expires(&args[0]) {
        None => -2,
        Some(None) => -1,
        Some(Some(end)) => (end - data.millis()).max(0),
    };
    Ok(Reply::Integer(left))
}

fn pexpire(data: &mut Data, args: Args) -> Answer {
    let end = data.millis().checked_add(integer(&args[1])?);
    let end = end.ok_or("ERR invalid expire time in 'pexpire' command")?;
    let exists = data.expire(&args[0], end);
    if exists && end <= data.millis() {
        data.remove(&args[0]);
    }
    Ok(Reply::Integer(exists.into()))
}

fn time(data: &mut Data, _: Args) -> Answer {
    let (seconds, micros) = (data.now.div_euclid(1_000_000), data.now.rem_euclid(1_000_000));
    Ok(Reply::Array([seconds, micros].map(|it| Reply::bulk(it.to_string())).into()))
}

/// Returns the position that an index of a command names, which counts from the end if negative.
fn position(index: i64, length: usize) -> Option<usize> {
    let length = i64::try_from(length).ok()?;
    let index = if index < 0 { index.checked_add(length)? } else { index };
    usize::try_from(index).ok().filter(|_| index < length)
}

fn lindex(data: &mut Data, args: Args) -> Answer {
    let list = data.list(&args[0])?;
    let Some(list) = list else { return Ok(Reply::Nil) };
    let at = position(integer(&args[1])?, list.len());
    Ok(or_nil(at.and_then(|at| list.get(at)).cloned()))
}

fn lrange(data: &mut Data, args: Args) -> Answer {
    let (first, last) = (integer(&args[1])?, integer(&args[2])?);
    let Some(list) = data.list(&args[0])? else { return Ok(Reply::Array(Vec::new())) };
    let length = i64::try_from(list.len()).unwrap_or(i64::MAX);
    let absolute = |index: i64| if index < 0 { index.saturating_add(length) } else { index };
    let (first, last) = (absolute(first).max(0), absolute(last).min(length - 1));
    let within = (0..).zip(list.iter()).filter(|(at, _)| (first..=last).contains(at));
    Ok(Reply::Array(within.map(|(_, item)| Reply::Bulk(item.clone())).collect()))
}

fn lset(data: &mut Data, args: Args) -> Answer {
    let list = data.list(&args[0])?.ok_or("ERR no such key")?;
    let at = position(integer(&args[1])?, list.len()).ok_or("ERR index out of range")?;
    list[at].clone_from(&args[2]);
    Ok(Reply::ok())
}

fn lrem(data: &mut Data, args: Args) -> Answer {
    let most = integer(&args[1])?;
    let Some(list) = data.list(&args[0])? else { return Ok(Reply::Integer(0)) };
    let mut left = if most == 0 { u64::MAX } else { most.unsigned_abs() };
    let mut removed = 0;
    let mut keep = |item: &Vec<u8>| {
        let gone = left > 0 && *item == args[2];
        left -= u64::from(gone);
        removed += usize::from(gone);
        !gone
    };
    if most < 0 {
        let mut kept: VecDeque<_> = list.drain(..).rev().filter(|item| keep(item)).collect();
        kept.make_contiguous().reverse();
        *list = kept;
    } else {
        list.retain(|item| keep(item));
    }
    data.remove_empty(&args[0]);
    Ok(count(removed))
}

fn rpush(data: &mut Data, args: Args) -> Answer {
    if data.list(&args[0])?.is_none() {
        data.set(&args[0], Value::List(VecDeque::new()), None);
    }
    let Some(list) = data.list(&args[0])? else { return Ok(Reply::Nil) };
    list.extend(args[1..].iter().cloned());
    Ok(count(list.len()))
}

fn lpop(data: &mut Data, args: Args) -> Answer {
    let popped = data.list(&args[0])?.and_then(VecDeque::pop_front);
    data.remove_empty(&args[0]);
    Ok(or_nil(popped))
}

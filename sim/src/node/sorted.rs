//! The commands on sorted sets.

use super::{
    commands::{Answer, Args, count, integer},
    data::{Data, Sorted, Value},
    reply::Reply,
};

/// A score with the text that the servers return, such as `12` or `-inf`.
fn text(score: f64) -> Reply {
    Reply::bulk(score.to_string())
}

fn float(arg: &[u8]) -> Option<f64> {
    str::from_utf8(arg).ok()?.parse().ok().filter(|score: &f64| !score.is_nan())
}

/// A limit of a range of scores, which the range contains unless it begins with `(`.
fn limit(arg: &[u8]) -> Result<(f64, bool), String> {
    let (arg, excluded) = match arg.strip_prefix(b"(") {
        Some(rest) => (rest, true),
        None => (arg, false),
    };
    let score = float(arg).ok_or("ERR min or max is not a float")?;
    Ok((score, excluded))
}

/// Returns whether scores are within two limits.
fn within(least: &[u8], most: &[u8]) -> Result<impl Fn(f64) -> bool + use<>, String> {
    let ((least, above), (most, below)) = (limit(least)?, limit(most)?);
    Ok(move |score| {
        let enough = if above { score > least } else { score >= least };
        enough && if below { score < most } else { score <= most }
    })
}

pub fn zadd(data: &mut Data, args: Args) -> Answer {
    let is_old_only = args[1].eq_ignore_ascii_case(b"xx");
    let pairs = if is_old_only { &args[2..] } else { &args[1..] };
    if pairs.is_empty() || pairs.len() % 2 == 1 {
        return Err("ERR syntax error".into());
    }
    let score = |pair: &[Vec<u8>]| float(&pair[0]).ok_or("ERR value is not a valid float");
    let scores = pairs.chunks(2).map(score).collect::<Result<Vec<_>, _>>()?;
    if data.sorted(&args[0])?.is_none() {
        if is_old_only {
            return Ok(Reply::Integer(0));
        }
        data.set(&args[0], Value::Sorted(Sorted::new()), None);
    }
    let Some(set) = data.sorted(&args[0])? else { return Ok(Reply::Nil) };
    let mut added = 0;
    for (score, pair) in scores.into_iter().zip(pairs.chunks(2)) {
        match set.iter().position(|(_, member)| *member == pair[1]) {
            Some(at) => drop(set.remove(at)),
            None if is_old_only => continue,
            None => added += 1,
        }
        let after = set.partition_point(|(other, member)| {
            *other < score || *other == score && *member < pair[1]
        });
        set.insert(after, (score, pair[1].clone()));
    }
    Ok(count(added))
}

pub fn zrem(data: &mut Data, args: Args) -> Answer {
    let Some(set) = data.sorted(&args[0])? else { return Ok(Reply::Integer(0)) };
    let before = set.len();
    set.retain(|(_, member)| !args[1..].contains(member));
    let removed = before - set.len();
    data.remove_empty(&args[0]);
    Ok(count(removed))
}

pub fn zcard(data: &mut Data, args: Args) -> Answer {
    Ok(count(data.sorted(&args[0])?.map_or(0, |set| set.len())))
}

pub fn zcount(data: &mut Data, args: Args) -> Answer {
    let within = within(&args[1], &args[2])?;
    let set = data.sorted(&args[0])?;
    Ok(count(set.map_or(0, |set| set.iter().filter(|(score, _)| within(*score)).count())))
}

pub fn zmscore(data: &mut Data, args: Args) -> Answer {
    let set = data.sorted(&args[0])?.map(|set| &*set);
    let score = |member: &Vec<u8>| {
        let found = set.and_then(|set| set.iter().find(|(_, other)| other == member));
        found.map_or(Reply::Nil, |(score, _)| text(*score))
    };
    Ok(Reply::Array(args[1..].iter().map(score).collect()))
}

/// Returns the positions that two indices name, which count from the end if negative.
fn positions(first: i64, last: i64, length: usize) -> impl Fn(usize) -> bool {
    let length = i64::try_from(length).unwrap_or(i64::MAX);
    let absolute = |index: i64| if index < 0 { index.saturating_add(length) } else { index };
    let (first, last) = (absolute(first), absolute(last));
    move |at| i64::try_from(at).is_ok_and(|at| (first..=last).contains(&at))
}

/// The options of a range: its order, the members that it skips and returns, and its scores.
#[derive(Default)]
struct Options {
    by_score: bool,
    reversed: bool,
    limit: Option<(i64, i64)>,
    with_scores: bool,
}

fn options(mut args: Args) -> Result<Options, String> {
    let mut options = Options::default();
    while let Some(name) = args.first() {
        let mut taken = 1;
        match (name.to_ascii_lowercase().as_slice(), args) {
            (b"withscores", _) => options.with_scores = true,
            (b"byscore", _) => options.by_score = true,
            (b"rev", _) => options.reversed = true,
            (b"limit", [_, skipped, most, ..]) => {
                options.limit = Some((integer(skipped)?, integer(most)?));
                taken = 3;
            }
            _ => return Err("ERR syntax error".into()),
        }
        args = &args[taken..];
    }
    Ok(options)
}

pub fn zrange(data: &mut Data, args: Args) -> Answer {
    let Options { by_score, reversed, limit, with_scores } = options(&args[3..])?;
    if limit.is_some() && !by_score {
        let text =
            "ERR syntax error, LIMIT is only supported in combination with either BYSCORE or BYLEX";
        return Err(text.into());
    }
    let found: Sorted = if by_score {
        let (least, most) = if reversed { (2, 1) } else { (1, 2) };
        let within = within(&args[least], &args[most])?;
        let set = data.sorted(&args[0])?.map(|set| &*set).into_iter().flatten();
        let mut found: Sorted = set.filter(|(score, _)| within(*score)).cloned().collect();
        if reversed {
            found.reverse();
        }
        let (skipped, most) = limit.unwrap_or((0, -1));
        // A negative offset skips everything, and a negative number is no limit.
        let skipped = usize::try_from(skipped).unwrap_or(usize::MAX);
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        found.into_iter().skip(skipped).take(most).collect()
    } else {
        let (first, last) = (integer(&args[1])?, integer(&args[2])?);
        let mut all = data.sorted(&args[0])?.map(|set| set.clone()).unwrap_or_default();
        if reversed {
            all.reverse();
        }
        let named = positions(first, last, all.len());
        (0..).zip(all).filter(|(at, _)| named(*at)).map(|(_, it)| it).collect()
    };
    let reply = |(score, member)| {
        let score = with_scores.then(|| text(score));
        [Some(Reply::Bulk(member)), score].into_iter().flatten()
    };
    Ok(Reply::Array(found.into_iter().flat_map(reply).collect()))
}

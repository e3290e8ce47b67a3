//! The command line: the duration, and the store.

use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    Local,
    Redis,
}

#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) time: Duration,
    pub(crate) stores: Vec<Kind>,
}

impl Options {
    /// Ignores other options: `cargo test` gives its own to all.
    pub(crate) fn read(mut args: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options =
            Self { time: Duration::from_secs(60), stores: vec![Kind::Local, Kind::Redis] };
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
            match arg.as_str() {
                "--minutes" => {
                    let minutes: f64 = value()?.parse().map_err(|why| format!("{arg}: {why}"))?;
                    let time = Duration::try_from_secs_f64(minutes * 60.0);
                    options.time = time.map_err(|why| format!("{arg}: {why}"))?;
                }
                "--store" => {
                    options.stores = match value()?.as_str() {
                        "local" => vec![Kind::Local],
                        "redis" => vec![Kind::Redis],
                        other => return Err(format!("{arg} {other}: local or redis")),
                    };
                }
                _ => {}
            }
        }
        Ok(options)
    }
}

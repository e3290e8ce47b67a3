//! The command line: the faults to run, and their duration.

use std::time::Duration;

use crate::servers::{Flavour, Server};

/// The parameters of a run.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) before: Duration,
    pub(crate) during: Duration,
    pub(crate) after: Duration,
    /// The requests per second of one app.
    pub(crate) rate: u32,
    pub(crate) keys: u16,
    /// The faults that run at the same time.
    pub(crate) at_a_time: usize,
    pub(crate) long: bool,
    flavour: Flavour,
    pub(crate) list: bool,
    only: Vec<String>,
    parts: Vec<String>,
    /// The order to an app in its own process.
    pub(crate) child: Option<String>,
}

impl Options {
    fn short() -> Self {
        Self {
            before: Duration::from_millis(1_000),
            during: Duration::from_millis(1_200),
            after: Duration::from_millis(1_500),
            rate: 500,
            keys: 50,
            at_a_time: 3,
            long: false,
            flavour: Flavour::Redis,
            list: false,
            only: Vec::new(),
            parts: Vec::new(),
            child: None,
        }
    }

    fn long() -> Self {
        let five = Duration::from_secs(5);
        let (before, during, after) = (five, five, five);
        let (rate, keys, at_a_time, long) = (1_000, 100, 1, true);
        Self { before, during, after, rate, keys, at_a_time, long, ..Self::short() }
    }

    /// Ignores the arguments of cargo's own test programs: `cargo test` gives them to all.
    pub(crate) fn read(args: impl Iterator<Item = String>) -> Result<Self, String> {
        let (mut options, mut args) = (Self::short(), args);
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
            match arg.as_str() {
                "--long" => {
                    let Self { list, only, parts, flavour, .. } = options;
                    options = Self { list, only, parts, flavour, ..Self::long() };
                }
                "--valkey" => options.flavour = Flavour::Valkey,
                "--list" => options.list = true,
                "--only" => options.only.push(value()?),
                "--child" => options.child = Some(value()?),
                "--at-a-time" => {
                    options.at_a_time = value()?.parse().map_err(|why| format!("{arg}: {why}"))?;
                }
                word if word.starts_with('-') => {}
                part => options.parts.push(part.to_owned()),
            }
        }
        Ok(options)
    }

    /// Starts a server that answers.
    pub(crate) async fn server(&self) -> Server {
        self.server_with(&[]).await
    }

    /// Starts a server with more arguments.
    pub(crate) async fn server_with(&self, args: &[&str]) -> Server {
        Server::start(self.flavour, args).await
    }

    pub(crate) fn flavour(&self) -> Flavour {
        self.flavour
    }

    /// Returns `true` if a fault is selected: by its name, by a part of its name, or because no
    /// name was given.
    pub(crate) fn wants(&self, name: &str) -> bool {
        let named = self.only.iter().any(|only| only == name);
        let part = self.parts.iter().any(|part| name.contains(part.as_str()));
        named || part || (self.only.is_empty() && self.parts.is_empty())
    }
}

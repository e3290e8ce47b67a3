//! What the command line says: which faults, and how long.

use std::time::Duration;

use crate::servers::{Flavour, Server};

/// How faults are played.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) before: Duration,
    pub(crate) during: Duration,
    pub(crate) after: Duration,
    /// Decisions per second that one app asks for.
    pub(crate) rate: u32,
    pub(crate) keys: u16,
    /// Faults that are played at the same time.
    pub(crate) at_a_time: usize,
    pub(crate) long: bool,
    flavour: Flavour,
    pub(crate) list: bool,
    only: Vec<String>,
    parts: Vec<String>,
    /// What an app in a process of its own is to do.
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

    /// Arguments of cargo's own test programs are let pass: `cargo test` gives the same to all.
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

    /// A server that answers.
    pub(crate) async fn server(&self) -> Server {
        self.server_with(&[]).await
    }

    /// A server with more arguments.
    pub(crate) async fn server_with(&self, args: &[&str]) -> Server {
        Server::start(self.flavour, args).await
    }

    pub(crate) fn flavour(&self) -> Flavour {
        self.flavour
    }

    /// Whether a fault is to be played: it was named, or has a part of a name, or nothing was said.
    pub(crate) fn wants(&self, name: &str) -> bool {
        let named = self.only.iter().any(|only| only == name);
        let part = self.parts.iter().any(|part| name.contains(part.as_str()));
        named || part || (self.only.is_empty() && self.parts.is_empty())
    }
}

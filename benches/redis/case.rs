//! Requests to the store, and the commands that it sends to the server.

use std::net::{IpAddr, Ipv4Addr};

use futures::FutureExt;
use smallvec::SmallVec;
use tower_sluice::{Key, Quota, RedisStore, StoreExt, rule::RuleName, store::Charge};

use crate::{
    record::{Call, Recorder},
    server::Server,
};

/// A request to the store, with several rules of several quotas each.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    rules: Vec<(RuleName, Vec<Quota>)>,
    /// The rule with one account for all keys.
    shared: Option<usize>,
}

impl Case {
    /// Creates a case with its own rules, and thus its own accounts.
    pub(crate) fn new(name: &'static str, rules: &[&[Quota]]) -> Self {
        let rule = |(at, quotas): (usize, &&[Quota])| {
            (RuleName::new(&format!("{name} {at}")).expect("a name"), quotas.to_vec())
        };
        Self { name, rules: rules.iter().enumerate().map(rule).collect(), shared: None }
    }

    pub(crate) fn one(name: &'static str, quota: Quota) -> Self {
        Self::new(name, &[&[quota]])
    }

    /// Lets all keys share the account of the rule with this index.
    pub(crate) fn sharing(self, rule: usize) -> Self {
        Self { shared: Some(rule), ..self }
    }

    /// Passes the charges of one request to `with`.
    pub(crate) fn charges<R>(&self, key: u32, with: impl FnOnce(&[Charge<'_>]) -> R) -> R {
        let [key, shared] =
            [key, 0].map(|n| Key::from(IpAddr::from(Ipv4Addr::from_bits(0x0a00_0000 + n))));
        let charges = self.rules.iter().enumerate().map(|(at, (rule, quotas))| {
            let key = if self.shared == Some(at) { &shared } else { &key };
            Charge::new(*rule, key, quotas)
        });
        with(&charges.collect::<SmallVec<[_; 3]>>())
    }

    /// Returns the script call that the store sends.
    pub(crate) fn call(&self, key: u32) -> Call {
        let recorder = Recorder::default();
        let store = RedisStore::with_connection(recorder.clone()).lazy().expect("a store");
        let asked = self.charges(key, |charges| store.take(charges)).into_future();
        // The recorder fails the call after recording it.
        asked.now_or_never().expect("at once").expect_err("there is no server");
        recorder.take()
    }

    /// Returns the packed commands for `keys` keys.
    pub(crate) fn commands(&self, server: &mut Server, keys: u32) -> Vec<Vec<u8>> {
        let calls: Vec<_> = (0..keys).map(|key| self.call(key)).collect();
        let sha = server.load(&calls[0].script);
        calls.into_iter().map(|call| evalsha(&sha, call.args)).collect()
    }
}

pub(crate) fn evalsha(sha: &str, mut args: Vec<Vec<u8>>) -> Vec<u8> {
    args.splice(0..0, ["EVALSHA".into(), sha.into()]);
    redis::pack_command(&args)
}

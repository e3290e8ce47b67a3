//! Every ACL of the guide on a real server, with the code of its page that opens a store for its user.

use std::{fs, path::Path};

use redis::aio::ConnectionLike;
use tower_sluice::{
    Quota, RedisStore, Store,
    store::{RedisBuilder, RedisError},
};

use crate::{
    accounts::Account,
    probe::everything,
    servers::{Cluster, Flavour, Server},
};

const ACL: &str = "ACL SETUSER ";

/// A page of the guide.
struct Page {
    name: String,
    text: String,
}

/// Code of a page that opens a store: `RedisStore::connect("redis://user:password@…").prefix("shop")`.
#[derive(Debug)]
struct Opening {
    constructor: String,
    /// The user and the password of its address.
    login: String,
    settings: Vec<Setting>,
}

#[derive(Debug)]
struct Setting {
    name: String,
    argument: String,
}

fn pages() -> Vec<Page> {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../src/guide"));
    let paths =
        fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    let pages = paths.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    let read = pages.map(|path| Page {
        name: path.display().to_string(),
        text: fs::read_to_string(&path).expect("text"),
    });
    read.collect()
}

impl Page {
    /// Returns the commands, each with its indented lines.
    fn acls(&self) -> Vec<String> {
        let mut acls: Vec<String> = Vec::new();
        let mut is_acl = false;
        for line in self.text.lines() {
            if line.starts_with(ACL) {
                acls.push(line.to_owned());
                is_acl = true;
            } else if let Some(acl) = acls.last_mut().filter(|_| is_acl && line.starts_with("    "))
            {
                acl.push(' ');
                acl.push_str(line.trim());
            } else {
                is_acl = false;
            }
        }
        let name = &self.name;
        assert_eq!(acls.len(), self.text.matches(ACL).count(), "{name}: start a line with {ACL}");
        acls
    }

    /// Returns the code that opens a store with a user and a password.
    fn openings(&self) -> Vec<Opening> {
        let code =
            self.text.lines().map(|line| line.split(" // ").next().unwrap_or_default().trim());
        let code: String = code.collect();
        code.split("RedisStore::").skip(1).filter_map(|call| self.opening(call)).collect()
    }

    fn opening(&self, call: &str) -> Option<Opening> {
        let (constructor, mut rest) = call.split_once('(')?;
        if !["connect", "cluster", "sentinel"].contains(&constructor) {
            return None;
        }
        let (addresses, behind) = rest.split_once(')')?;
        let (login, _) = addresses.split_once("redis://")?.1.split_once('@')?;
        rest = behind;
        let mut settings = Vec::new();
        while let Some((name, behind)) =
            rest.strip_prefix('.').and_then(|call| call.split_once('('))
        {
            if name == "lazy" || name.starts_with("await") {
                break;
            }
            let (argument, behind) = behind.split_once(')')?;
            let argument = argument.trim_matches('"').to_owned();
            settings.push(Setting { name: name.to_owned(), argument });
            rest = behind;
        }
        let is_open = rest.starts_with(".await") || rest.starts_with(".lazy()");
        assert!(is_open, "{}: {constructor} ends in {:.40}", self.name, rest);
        Some(Opening { constructor: constructor.to_owned(), login: login.to_owned(), settings })
    }
}

impl Opening {
    /// Returns `true` for a command of the user. A command without a password is for clusters.
    fn needs(&self, acl: &str) -> bool {
        let user = self.login.split(':').next().unwrap_or_default();
        let is_of_user = acl.starts_with(&format!("{ACL}{user} "));
        is_of_user && (acl.contains(" on >") || self.constructor == "cluster")
    }

    fn set<C>(&self, mut builder: RedisBuilder<C>) -> RedisBuilder<C>
    where
        C: ConnectionLike + Clone + Send + Sync + 'static,
    {
        for setting in &self.settings {
            builder = match setting.name.as_str() {
                "prefix" => builder.prefix(&setting.argument),
                "secret" => builder.secret([7; 16]),
                "readable_keys" => builder.readable_keys(),
                "hash_tag_by_key" => builder.hash_tag_by_key(),
                name => panic!("add the setting {name} to this test"),
            };
        }
        builder
    }

    /// Runs the commands on a server, or on all of a cluster, and everything that a store can do.
    async fn plays(&self, acls: &[&String], flavour: Flavour) {
        if self.constructor == "connect" {
            let server = Server::start(flavour, &[]).await;
            run(acls, &[&server]).await;
            let url = format!("redis://{}@{}", self.login, server.address());
            return works(self.set(RedisStore::connect(&url))).await;
        }
        assert_eq!(self.constructor, "cluster", "add the constructor to this test");
        let cluster = Cluster::start(flavour).await;
        run(acls, &cluster.nodes().iter().collect::<Vec<_>>()).await;
        let urls = cluster.nodes().iter();
        let urls: Vec<_> =
            urls.map(|node| format!("redis://{}@{}", self.login, node.address())).collect();
        let urls: Vec<_> = urls.iter().map(String::as_str).collect();
        works(self.set(RedisStore::cluster(&urls))).await;
    }
}

async fn run(acls: &[&String], servers: &[&Server]) {
    for server in servers {
        for acl in acls {
            let () = server.command(acl).await;
        }
    }
}

async fn works<C>(builder: RedisBuilder<C>)
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
    RedisStore<C>: Store<Error = RedisError>,
{
    let store = builder.await.unwrap_or_else(|error| panic!("{error}"));
    everything(&store).await;
    let slots = Account::new("slots", Quota::concurrent(1));
    let held = slots.take(&store, 1).await.expect("a slot");
    assert!(held.is_allowed());
    assert!(!slots.passes(&store).await);
}

#[tokio::test]
async fn every_acl_of_the_guide_permits_the_code_beside_it() {
    let mut played = 0;
    for page in pages() {
        let acls = page.acls();
        let openings = page.openings();
        for opening in &openings {
            let acls: Vec<_> = acls.iter().filter(|acl| opening.needs(acl)).collect();
            assert!(!acls.is_empty(), "{}: no ACL for {opening:?}", page.name);
            for flavour in Flavour::ALL {
                opening.plays(&acls, flavour).await;
            }
            played += 1;
        }
        for acl in &acls {
            let is_played = openings.iter().any(|opening| opening.needs(acl));
            assert!(is_played, "{}: no code opens a store for {acl}", page.name);
        }
    }
    assert!(played >= 2, "{played} openings");
}

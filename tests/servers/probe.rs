//! The check of the server before the first request.
//!
//! Its errors contain the fix and no password.

use std::time::Duration;

use redis::Cmd;
use tower_sluice::{
    Quota, RedisStore, Store, StoreExt,
    store::{RedisError, RedisErrorKind as Kind},
};

use crate::{
    accounts::{Account, LONG, connect, lazy, quotas},
    servers::{Cluster, FakeServer, Flavour, Reply, Server, eventually, name},
};

/// The end of an error for missing rights, after the words of the server.
const PERMIT: &str = "; permit it: ACL SETUSER <user> ~sluice:* +eval +evalsha +time +get +mget \
                      +exists +psetex +del +pttl +pexpire +lindex +lrange +lset +rpush +lpop \
                      +lrem +zadd +zrem +zrange +zcard +zcount +zmscore +info +select \
                      +script|load";

/// Returns the URL of a server for a user.
fn url_of(server: &Server, user: &str) -> String {
    format!("redis://{user}:hunter2@{}", server.address())
}

/// Returns every text form of an error.
fn texts(error: &RedisError) -> String {
    format!("{error} {error:?} {error:#?} {error:#}")
}

async fn connect_error(url: &str) -> RedisError {
    let error = RedisStore::connect(url).await.expect_err("no connection");
    assert!(!texts(&error).contains("hunter2"), "{}", texts(&error));
    error
}

/// Runs every operation of a store, with every algorithm.
pub(crate) async fn everything<S: Store<Error = RedisError>>(store: &S) {
    for (name, quota) in quotas(3, LONG) {
        let account = Account::new(name, quota);
        let charge = account.charge(1);
        let ok = |answer: Result<_, RedisError>| answer.unwrap_or_else(|e| panic!("{name}: {e}"));
        for _ in 0..2 {
            let taken = ok(store.take(&[charge]).await);
            drop(ok(store.adjust(&charge, 1).await));
            drop(ok(store.adjust(&charge, -1).await));
            assert_eq!(account.left(store).await, 2, "{name}");
            store.undo(&[charge], &taken, None);
            let back = async || (account.left(store).await == 3).then_some(());
            eventually("the units are back", back).await;
            drop(ok(store.take(&[charge]).await));
            drop(ok(store.take(&[charge.with_cost(4)]).await));
            drop(ok(store.block(&charge, Duration::from_secs(9)).await));
            drop(ok(store.unblock(&charge).await));
            drop(ok(store.reset(&charge).await));
        }
        assert_eq!(account.passed(store, 4).await, 3, "{name}");
    }
}

#[tokio::test]
async fn the_error_for_missing_rights_shows_the_command_that_grants_them() {
    for flavour in Flavour::ALL {
        let server = Server::start(flavour, &[]).await;
        for (at, rights) in [
            "~sluice:* +@all -evalsha",
            "~sluice:* +@all -psetex",
            // A batch needs these.
            "~sluice:* +@all -mget",
            "~sluice:* +@all -exists",
            "~sluice:* +@all -time",
            // Held slots need these.
            "~sluice:* +@all -zadd",
            "~sluice:* +@all -zmscore",
            "~sluice:* +@all -zrem",
            "~other:* +@all",
            "+@all",
            "~sluice:* -@all",
            "",
        ]
        .into_iter()
        .enumerate()
        {
            let user = format!("user{at}");
            let () = server.command(&format!("ACL SETUSER {user} on >hunter2 {rights}")).await;
            let error = connect_error(&url_of(&server, &user)).await;
            assert_eq!(error.kind(), Kind::Denied, "{rights}: {error}");
            let text = error.to_string();
            assert!(text.ends_with(PERMIT), "{text}");
            let start = text.find("ACL SETUSER <user> ~sluice:* ").expect("the command");
            let () = server.command(&text[start..].replace("<user>", &user)).await;
            let store = RedisStore::connect(url_of(&server, &user)).await;
            let store = store.unwrap_or_else(|error| panic!("{flavour:?} {rights}: {error}"));
            everything(&store).await;
            let clear = store.reopen().readable_keys().lazy().expect("a store");
            assert!(Account::new("a", Quota::per_second(1)).take(&clear, 1).await.is_ok());
            let error = store.reopen().prefix("elsewhere").await.expect_err("another prefix");
            assert!(error.to_string().contains("~elsewhere:* "), "{error}");
            let () = server.command("FLUSHALL").await;
        }
    }
}

#[tokio::test]
async fn the_error_for_missing_rights_on_a_cluster_shows_the_command_too() {
    for flavour in Flavour::ALL {
        let cluster = Cluster::start(flavour).await;
        let everywhere = async |command: &str| {
            for node in cluster.nodes() {
                let () = node.command(command).await;
            }
        };
        let urls = |password: &str| -> Vec<String> {
            let url = |node: &Server| format!("redis://app:{password}@{}", node.address());
            cluster.nodes().iter().map(url).collect()
        };
        let connect = async |urls: Vec<String>| {
            let urls: Vec<_> = urls.iter().map(String::as_str).collect();
            RedisStore::cluster(&urls).await
        };
        everywhere("ACL SETUSER app on >secret").await;
        let error = connect(urls("hunter2")).await.expect_err("a wrong password");
        assert!(!texts(&error).contains("hunter2"), "{error}");
        assert!(error.to_string().contains("check the user and password"), "{error}");
        assert_eq!(error.kind(), Kind::Denied, "{error}");
        let error = connect(urls("secret")).await.expect_err("no rights");
        assert_eq!(error.kind(), Kind::Denied, "{error}");
        let text = error.to_string();
        let start = text.find("ACL SETUSER <user> ~sluice:* ").expect("the command");
        everywhere(&text[start..].replace("<user>", "app")).await;
        let store = connect(urls("secret")).await.unwrap_or_else(|error| panic!("{error}"));
        everything(&store).await;
    }
}

#[tokio::test]
async fn a_right_revoked_later_is_an_error_of_its_kind() {
    for flavour in Flavour::ALL {
        let server = Server::start(flavour, &[]).await;
        let () = server.command("ACL SETUSER app on >hunter2 ~* +@all").await;
        let store = connect(&url_of(&server, "app")).await;
        let account = Account::new("a", Quota::per_hour(9));
        // `plain.lua` reads by MGET what `one.lua` cannot read by GET.
        for right in ["-psetex", "-evalsha", "-get -mget"] {
            let () = server.command(&format!("ACL SETUSER app +@all {right}")).await;
            let error = account.take(&store, 1).await.expect_err("the right is missing");
            assert_eq!(error.kind(), Kind::Denied, "{flavour:?} {right}: {error}");
        }
        let () = server.command("ACL SETUSER app +@all").await;
        assert_eq!(account.left(&store).await, 9, "nothing was charged");
    }
}

#[tokio::test]
async fn the_right_to_info_is_optional() {
    let server = Server::start(Flavour::Redis, &["--maxmemory-policy", "allkeys-lru"]).await;
    let () = server.command("ACL SETUSER app on >hunter2 ~* +@all -info").await;
    let warnings = connect(&url_of(&server, "app")).await.probe().await.expect("a good server");
    assert_eq!(warnings, [""; 0]);
}

/// Returns the policies that the server lists in its error for an unknown one.
async fn policies(server: &Server) -> Vec<String> {
    let mut set = redis::cmd("CONFIG");
    set.arg("SET").arg("maxmemory-policy").arg("unknown");
    let unknown: Result<(), _> = server.run(&set).await;
    let text = unknown.expect_err("no such policy").to_string();
    let (_, list) = text.split_once("one of the following: ").unwrap_or_else(|| panic!("{text}"));
    list.split(',').map(|policy| policy.trim().to_owned()).collect()
}

#[tokio::test]
async fn every_policy_that_evicts_causes_a_warning() {
    for flavour in Flavour::ALL {
        let server = Server::start(flavour, &["--maxmemory", "100mb"]).await;
        let store = connect(&server.url()).await;
        let policies = policies(&server).await;
        assert!(policies.len() >= 8, "{policies:?}");
        for policy in policies {
            let () = server.command(&format!("CONFIG SET maxmemory-policy {policy}")).await;
            let found = store.probe().await.expect("a good server");
            let said = format!(
                "maxmemory-policy is {policy}: a server out of memory evicts accounts, and their \
                 keys get a fresh quota; set noeviction"
            );
            let expected = if policy == "noeviction" { vec![] } else { vec![said] };
            assert_eq!(found, expected, "{flavour:?}");
            // The probe leaves no key behind.
            assert_eq!(server.command::<u32>("DBSIZE").await, 0);
        }
    }
}

#[tokio::test]
async fn a_replica_is_an_error() {
    let (master, replica) = (Server::redis().await, Server::redis().await);
    replica.replica_of(master.address()).await;
    let error = RedisStore::connect(replica.url()).await.expect_err("a replica");
    assert_eq!(error.kind(), Kind::Replica);
    assert!(error.to_string().contains("give the address of the primary"), "{error}");
}

/// Returns the warnings about a server that says this about itself.
async fn warnings(info: String) -> Result<Vec<String>, RedisError> {
    let server = FakeServer::start(move |words| {
        let text = if name(words) == "INFO" { info.as_str() } else { "" };
        Reply::from(format!("${}\r\n{text}\r\n", text.len()))
    });
    RedisStore::connect(server.await.url()).await?.probe().await
}

#[tokio::test]
async fn old_servers_and_garnet_are_errors_and_dragonfly_is_a_warning() {
    let old = |version| format!("the server is Redis {version}; 6.2 or later is needed");
    let garnet = "the server is Garnet 1.0.87: its scripts are not atomic by default, and its PSETEX \
                  ends at 24 days; use Redis or Valkey";
    for (said, problem) in [
        ("redis_version:5.0.7", old("5.0.7")),
        ("redis_version:6.0.16", old("6.0.16")),
        ("garnet_version:1.0.87\r\nredis_version:7.4.3", garnet.to_owned()),
    ] {
        let error = warnings(format!("# Server\r\n{said}\r\n")).await.expect_err(said);
        assert_eq!((error.kind(), error.to_string()), (Kind::Config, format!("redis: {problem}")));
    }
    for version in ["6.2.0", "10.1.0"] {
        let found = warnings(format!("# Server\r\nredis_version:{version}\r\n")).await;
        assert_eq!(found.expect("a good server"), [""; 0]);
    }
    let dragonfly = "redis_version:7.4.0\r\ndragonfly_version:df-v1.40.1\r\n";
    let found = warnings(dragonfly.to_owned()).await.expect("a server that answers");
    assert!(matches!(&found[..], [one] if one.contains("clock stands still")), "{found:?}");
}

#[tokio::test]
async fn a_wrong_password_is_denied_and_shown_nowhere() {
    let server = Server::start(Flavour::Redis, &["--requirepass", "secret"]).await;
    let address = server.address();
    for url in [
        format!("redis://:hunter2@{address}"),
        format!("redis://default:hunter2@{address}/3"),
        format!("redis://nobody:hunter2@{address}?protocol=resp3"),
        format!("redis://{address}"),
    ] {
        let error = connect_error(&url).await;
        assert_eq!(error.kind(), Kind::Denied, "{url}: {error}");
        assert!(error.to_string().ends_with("; check the user and password"), "{error}");
    }
    let store = connect(&server.url()).await;
    assert!(!format!("{store:?} {store:#?}").contains("secret"));
    // After a change of the password, existing connections stay valid in Redis.
    let mut change = Cmd::new();
    change.arg("CONFIG").arg("SET").arg("requirepass").arg("other");
    let () = server.run(&change).await.expect("changed");
    assert!(Account::new("a", Quota::per_hour(9)).take(&store, 1).await.is_ok());
    let error = Account::new("a", Quota::per_hour(9)).take(&lazy(&server.url()), 1).await;
    assert_eq!(error.expect_err("the old password").kind(), Kind::Denied);
}

#[tokio::test]
async fn an_unknown_database_is_an_error() {
    let server = Server::redis().await;
    for number in ["-1", "99"] {
        let url = format!("{}/{number}", server.url());
        let error = RedisStore::connect(&url).await.expect_err("no such database");
        assert!(error.to_string().contains("database"), "{error}");
    }
    assert!(RedisStore::connect(format!("{}/3", server.url())).await.is_ok());
}

#[tokio::test]
async fn no_address_is_an_error() {
    let none = RedisStore::sentinel(&[], "mymaster").await.expect_err("no address");
    assert_eq!(none.kind(), Kind::Config, "{none}");
    assert!(RedisStore::cluster(&[]).await.is_err());
}

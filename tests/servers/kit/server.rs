//! The servers that other tests use: they start, fail on request, and leave nothing behind.
#![allow(clippy::print_stdout)]

use std::{
    env, fs,
    io::{BufRead, BufReader},
    net::TcpStream,
    path::Path,
    process::{Command, Stdio},
    sync::atomic::{AtomicUsize, Ordering::SeqCst},
    thread,
    time::Duration,
};

use redis::RedisResult;
use tokio::time::timeout;

use crate::servers::{Flavour, MOST, PATIENCE, Server, Turn, eventually};

/// Returns `true` if a process of this id exists.
fn exists(pid: u32) -> bool {
    let kill = format!("kill -0 {pid} 2>/dev/null");
    Command::new("sh").args(["-c", &kill]).status().expect("sh runs").success()
}

#[tokio::test]
async fn a_server_answers_and_is_gone_when_dropped() {
    for flavour in Flavour::ALL {
        let server = Server::start(flavour, &["--maxmemory", "3mb"]).await;
        let (pid, address, path) = (server.pid(), server.address(), server.path().to_owned());
        assert_eq!(server.command::<String>("PING").await, "PONG");
        let set: (String, u32) = server.command("CONFIG GET maxmemory").await;
        assert_eq!(set.1, 3 << 20, "{flavour:?}");
        assert_eq!(server.command::<String>("DEBUG SLEEP 0").await, "OK");
        assert!(exists(pid) && path.exists());
        drop(server);
        assert!(!exists(pid) && !path.exists());
        assert!(TcpStream::connect(address).is_err(), "{flavour:?}");
    }
}

#[tokio::test]
async fn a_crash_loses_everything_but_the_port() {
    let mut server = Server::redis().await;
    let before = (server.port(), server.pid());
    let () = server.command("SET a 1").await;
    server.kill();
    assert!(!server.runs() && TcpStream::connect(server.address()).is_err());
    server.restart().await;
    assert_eq!(server.port(), before.0);
    assert_ne!(server.pid(), before.1);
    assert_eq!(server.command::<Option<u32>>("GET a").await, None);
}

#[tokio::test]
async fn saved_data_is_loaded_at_the_next_launch() {
    let slow = ["--key-load-delay", "2000", "--loading-process-events-interval-bytes", "1024"];
    let mut server = Server::start(Flavour::Redis, &slow).await;
    let () = server.command("DEBUG POPULATE 500").await;
    let () = server.command("SAVE").await;
    server.kill();
    server.launch();
    let loading =
        async || server.attempt::<String>("GET key:0").await.err()?.code().map(str::to_owned);
    assert_eq!(eventually("an answer", loading).await, "LOADING");
    server.ready().await.expect("it starts");
    assert_eq!(server.command::<u32>("DBSIZE").await, 500);
    server.restart().await;
    assert_eq!(server.command::<u32>("DBSIZE").await, 0);
}

#[tokio::test]
async fn a_frozen_server_answers_later() {
    let server = Server::redis().await;
    server.stop();
    let ask = server.command::<u32>("INCR a");
    tokio::pin!(ask);
    assert!(timeout(Duration::from_millis(200), &mut ask).await.is_err());
    server.cont();
    assert_eq!(ask.await, 1);
    server.stop();
}

#[tokio::test]
async fn a_replica_has_the_data_and_takes_no_writes_until_it_is_promoted() {
    let (master, replica) = (Server::redis().await, Server::redis().await);
    let () = master.command("SET a 1").await;
    replica.replica_of(master.address()).await;
    assert_eq!(replica.command::<u32>("GET a").await, 1);
    let error: RedisResult<String> = replica.attempt("SET a 2").await;
    assert_eq!(error.expect_err("a replica").code(), Some("READONLY"));
    replica.promote().await;
    assert_eq!(replica.command::<u32>("INCR a").await, 2);
}

#[tokio::test]
async fn a_password_is_used_by_the_tests_and_required_of_others() {
    let server = Server::start(Flavour::Redis, &["--requirepass", "secret"]).await;
    assert_eq!(server.command::<String>("PING").await, "PONG");
    assert_eq!(server.url(), format!("redis://:secret@{}", server.address()));
    let open = redis::Client::open(format!("redis://{}", server.address())).expect("a URL");
    let mut open = open.get_multiplexed_async_connection().await.expect("connects");
    let said: RedisResult<String> = redis::cmd("PING").query_async(&mut open).await;
    assert_eq!(said.expect_err("no password").code(), Some("NOAUTH"));
}

#[tokio::test]
#[should_panic(expected = "Bad directive or wrong number of arguments")]
async fn a_server_that_does_not_start_shows_its_log() {
    Server::start(Flavour::Redis, &["--no-such-thing", "1"]).await;
}

#[test]
fn a_missing_server_is_an_error_with_a_fix() {
    let nowhere = || Some("/nonexistent".into());
    let why = Flavour::Redis.find(None, nowhere()).expect_err("no server");
    assert_eq!(why, "redis-server is missing: run scripts/servers, or name one in REDIS_SERVER");
    let why = Flavour::Valkey.find(nowhere(), env::var_os("PATH")).expect_err("no server");
    assert_eq!(why, "VALKEY_SERVER is /nonexistent, which is no file");
}

/// The environment variable that is set when the test below runs in order to be killed.
const HOLD: &str = "SLUICE_HOLD_A_SERVER";

/// A process of the test below. Does nothing by itself.
#[tokio::test]
async fn held() {
    if env::var_os(HOLD).is_some() {
        let server = Server::redis().await;
        println!("\nheld {} {}", server.pid(), server.path().display());
        tokio::time::sleep(PATIENCE).await;
    }
}

#[tokio::test]
async fn tests_that_are_killed_leave_nothing() {
    let mut tests = Command::new(env::current_exe().expect("a path"));
    tests.args(["--exact", "kit::server::held", "--nocapture"]).env(HOLD, "1");
    let mut tests = tests.stdout(Stdio::piped()).spawn().expect("starts");
    let output = BufReader::new(tests.stdout.take().expect("a pipe"));
    let mut lines = output.lines().map_while(Result::ok);
    let line = lines.find(|line| line.starts_with("held ")).expect("a line");
    tests.kill().expect("the process is killed");
    tests.wait().expect("it ends");

    let mut words = line.split(' ').skip(1);
    let pid = words.next().and_then(|pid| pid.parse().ok()).expect("an id");
    let path = Path::new(words.next().expect("a path"));
    let gone = async || (!exists(pid) && !path.exists()).then_some(());
    eventually("the server and its files are gone", gone).await;
    let home = path.parent().expect("a folder");
    let gone = async || fs::metadata(home).is_err().then_some(());
    eventually("the folder of the tests is gone", gone).await;
}

#[test]
fn few_tests_have_servers_at_the_same_time() {
    let (running, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        for test in 0..3 * MOST {
            let thread = thread::Builder::new().name(format!("test::{test}"));
            let turn = || {
                let (_turn, _another) = (Turn::take(), Turn::take());
                most.fetch_max(running.fetch_add(1, SeqCst) + 1, SeqCst);
                thread::sleep(Duration::from_millis(10));
                running.fetch_sub(1, SeqCst);
            };
            thread.spawn_scoped(scope, turn).expect("a thread");
        }
    });
    let most = most.into_inner();
    assert!((1..=MOST).contains(&most), "{most}");
}

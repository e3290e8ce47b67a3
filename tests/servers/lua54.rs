//! The scripts under Lua 5.4, as in servers that look like Redis: each case of the conformance kit.
//!
//! Redis has Lua 5.1, in which all numbers are floats.

use std::{
    io::{BufRead, BufReader, Read, Write},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use tower_sluice::{RedisStore, testing::TABLES};

use crate::{
    servers::{FakeServer, Reply},
    support::tables::all_pass,
};

/// The commands that the scripts use, in a process of Lua 5.4.
struct Emulation {
    process: Child,
    commands: ChildStdin,
    replies: BufReader<ChildStdout>,
}

impl Emulation {
    fn start() -> Self {
        let mut lua = Command::new("lua5.4");
        lua.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/servers/lua54.lua"));
        let lua = lua.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = lua.spawn().expect("lua5.4 runs: scripts/servers installs it");
        let commands = process.stdin.take().expect("its input");
        let replies = BufReader::new(process.stdout.take().expect("its output"));
        Self { process, commands, replies }
    }

    fn run(&mut self, words: &[Vec<u8>]) -> Reply {
        let mut command = format!("{}\n", words.len()).into_bytes();
        for word in words {
            command.extend(format!("{}\n", word.len()).into_bytes());
            command.extend(word);
            command.push(b'\n');
        }
        self.commands.write_all(&command).expect("it reads");
        let mut length = String::new();
        self.replies.read_line(&mut length).expect("it replies");
        let mut reply = vec![0; length.trim().parse().expect("a length")];
        self.replies.read_exact(&mut reply).expect("it replies");
        Reply::Bytes(reply)
    }
}

impl Drop for Emulation {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[tokio::test]
async fn the_scripts_decide_under_lua_5_4_as_under_lua_5_1() {
    let mut emulation = Emulation::start();
    let server = FakeServer::start(move |words| emulation.run(words)).await;
    let mut subject = RedisStore::connect(server.url()).await.expect("a store");
    for (file, _) in TABLES {
        let cases = all_pass(&mut subject, file).await;
        assert!(cases.0 > 0 && cases.1 == 0, "{file}: {cases:?}");
    }
}

//! The examples, run as a user does: real processes, real sockets, real time.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    process::Command,
    thread,
    time::Duration,
};

use serde_json::{Value, json};

use crate::support::programs::{ANY_PORT, Answer, Server, ask, end, example};

fn quickstart(address: &str) -> Command {
    let mut command = example("quickstart");
    command.env("ADDR", address);
    command
}

fn gateway(flags: &[&str]) -> Command {
    let mut command = example("gateway");
    command.args(["--addr", ANY_PORT]).args(flags);
    command
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("text")
}

/// Uses up the burst of the quickstart and returns the first rejection.
fn exhaust(server: &Server) -> Answer {
    for _ in 0..10 {
        assert_eq!(server.get("/").status, 200);
    }
    // five units per second refill, so a slow machine may get a few more
    (0..100).map(|_| server.get("/")).find(|answer| answer.status != 200).expect("a rejection")
}

#[test]
fn quickstart_allows_its_burst_and_denials_have_retry_after() {
    let server = Server::start(quickstart(ANY_PORT));
    let curl = server.line_with("curl");
    assert!(curl.contains(&format!("http://{}/", server.address)), "{curl}");

    let denied = exhaust(&server);
    assert_eq!(denied.status, 429, "{denied:?}");
    let wait = denied.header("retry-after").and_then(|wait| wait.parse().ok()).expect("a wait");
    assert!(wait >= 1);
    let line = server.line_with("rejected");
    assert!(line.contains("127.0.0.1:") && line.contains("GET /: retry after 1 s"), "{line}");

    thread::sleep(Duration::from_secs(wait));
    assert_eq!(server.get("/").status, 200);
}

/// Connects from this address: Linux assigns all of 127.0.0.0/8 to the loopback interface.
#[cfg(target_os = "linux")]
fn connect_from(from: [u8; 4], to: SocketAddr) -> TcpStream {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
    let connecting = async {
        let socket = tokio::net::TcpSocket::new_v4()?;
        socket.bind(SocketAddr::from((from, 0)))?;
        socket.connect(to).await?.into_std()
    };
    let stream = runtime.expect("a runtime").block_on(connecting).expect("connects");
    stream.set_nonblocking(false).expect("blocks");
    stream
}

/// Waits until the process handles SIGINT. On a busy machine, a server responds before the task
/// that waits for the signal has started.
#[cfg(unix)]
fn handles_interrupts(process: u32) {
    const SIGINT: u64 = 1 << 1;
    let status = format!("/proc/{process}/status");
    let handled = || {
        // not Linux: the signal mask cannot be read
        let Ok(status) = std::fs::read_to_string(&status) else { return true };
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        let caught = caught.and_then(|signals| u64::from_str_radix(signals.trim(), 16).ok());
        caught.is_some_and(|signals| signals & SIGINT != 0)
    };
    let start = std::time::Instant::now();
    while !handled() {
        assert!(start.elapsed() < Duration::from_secs(60), "SIGINT is not handled");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[cfg(unix)]
#[test]
fn the_gateway_exits_cleanly_on_ctrl_c() {
    let mut server = Server::start(gateway(&[]));
    let idle = TcpStream::connect(server.address).expect("connects");
    assert_eq!(server.get("/").status, 200);
    handles_interrupts(server.child.id());
    let kill = format!("kill -INT {}", server.child.id());
    assert!(Command::new("sh").args(["-c", &kill]).status().expect("runs").success());
    assert_eq!(server.child.wait().expect("ends").code(), Some(0));
    drop(idle);
}

const ADDRESS: &str = "name=ip key=peer quota='5/h burst 10'";

/// Returns the output of an example that needs no flags and exits by itself.
fn printed(example: Command) -> String {
    let name = format!("{example:?}");
    let output = end(example);
    assert!(output.status.success(), "{name}: {}", text(&output.stderr));
    text(&output.stdout).to_owned()
}

#[test]
fn small_examples_print_the_expected_output() {
    for (program, lines) in [
        (
            example("late_cost"),
            "after ten words: 990 tokens left\nafter one that was cut: 890 tokens left",
        ),
        (example("outgoing"), "http://b.example/ answers"),
        (example("own_store"), "429 Too Many Requests Some(\"\\\"default\\\";r=0\")"),
    ] {
        let said = printed(program);
        assert!(said.contains(lines), "{lines:?} is not in {said}");
    }
}

/// Replaces the file as an editor does, with another file at its path.
struct LimitsFile(std::path::PathBuf);

impl LimitsFile {
    fn new(name: &str) -> Self {
        let name = format!("{name}-{}.toml", std::process::id());
        Self(std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(name))
    }

    /// `user` is the text of the rule below its name.
    fn write(&self, user: &str) -> &Self {
        let text = format!(
            "[site]\nname = 'site'\nquotas = []\n\n[user]\nname = 'user'\n{user}\n\n\
             [plans]\ngold = '9/h'\n\n[customers]\nalice = 'gold'\n"
        );
        let beside = self.0.with_extension("new");
        std::fs::write(&beside, text).expect("a file");
        std::fs::rename(beside, &self.0).expect("in its place");
        self
    }

    fn serve(&self) -> Command {
        let mut command = example("config");
        command.arg(&self.0).env("ADDR", ANY_PORT);
        command
    }
}

impl Drop for LimitsFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Returns the status, and the limit of the rule `user`.
fn asked(server: &Server, key: &str) -> (u16, String) {
    let answer = server.get_with("/", &format!("x-api-key: {key}\r\n"));
    let policy = answer.header("ratelimit-policy").expect("a policy");
    let limit = policy.split("q=").nth(1).and_then(|rest| rest.split(';').next()).expect("a limit");
    (answer.status, limit.to_owned())
}

#[test]
fn config_applies_new_limits_to_a_running_server_without_a_refill() {
    let file = LimitsFile::new("reload");
    let server = Server::start(file.write("quotas = '3/h'").serve());
    let of = |key: &str| asked(&server, key);
    for _ in 0..3 {
        assert_eq!(of("bob"), (200, "3".into()));
    }
    assert_eq!(of("bob"), (429, "3".into()));
    assert_eq!(of("alice"), (200, "9".into()), "a plan of her own");

    file.write("quotas = '5/h'");
    server.line_with("the new limits apply");
    assert_eq!(of("bob"), (429, "5".into()), "one hour is still charged");
    for _ in 0..5 {
        assert_eq!(of("carol"), (200, "5".into()));
    }
    assert_eq!(of("carol"), (429, "5".into()));

    for (user, said) in [
        ("quotas = '5/fortnight'", "period is \"fortnight\"; end it with one of"),
        ("quotas = '7/h'\nrate = 7", "unknown field `rate`, expected one of `name`, `quotas`"),
        ("quotas = '7/h", "TOML parse error at line 7"),
        ("quotas = '7/h'\ncost = 8", "rule user: cost 8 is above the quota's limit 7"),
    ] {
        file.write(user);
        // the line of the file and the error follow where TOML reports them
        let mut line = server.line_with("the old limits stay");
        if !line.contains(said) {
            line = server.line_with(said);
        }
        assert!(line.contains(said));
        assert_eq!(of("dave").1, "5");
    }
    assert_eq!(of("bob"), (429, "5".into()));

    file.write("quotas = '7/h'\nmissing = 'skip'");
    server.line_with("user: missing stays as it is until a restart");
    server.line_with("the new limits apply");
    assert_eq!(of("erin"), (200, "7".into()));
    assert_eq!(server.get("/").status, 400, "the rule still rejects a request without a key");
}

#[test]
fn ten_thousand_wrong_passwords_do_not_lock_the_owner_out() {
    let said = printed(example("login"));
    assert!(said.contains("50 were tried, the rest denied"), "{said}");
    assert!(said.contains("the owner logged in 100 times during the attack"), "{said}");
}

/// Returns the gateway's fields of a request that passed.
fn passed(source: &str, outcomes: &Value) -> Value {
    json!({
        "allowed": true, "overage": false, "would_deny": false, "waited_ms": 0,
        "source": source, "outcomes": outcomes,
    })
}

#[test]
fn gateway_responds_with_the_decision_of_all_rules() {
    let server = Server::start(gateway(&[
        "--rule",
        ADDRESS,
        "--rule",
        "name=user key=header:x-api-key quota=3/h,100/day cost=2 missing=skip",
    ]));
    let ip = |remaining: u32| {
        let reset = (10 - remaining) * 720_000;
        json!({
            "rule": "ip", "limit": 10, "remaining": remaining,
            "reset_after_ms": reset, "next_after_ms": 720_000, "retry_after_ms": 0,
        })
    };
    let user = |limit: u32, unit_ms: u32| {
        json!({
            "rule": "user", "limit": limit, "remaining": limit - 2,
            "reset_after_ms": 2 * unit_ms, "next_after_ms": unit_ms, "retry_after_ms": 0,
        })
    };
    let first = server.get_with("/anything/at/all", "x-api-key: alice\r\n");
    assert_eq!(first.status, 200);
    let outcomes = json!([ip(9), user(3, 1_200_000), user(100, 864_000)]);
    assert_eq!(first.json(), passed("local", &outcomes));

    let denied = server.get_with("/", "x-api-key: alice\r\naccept: application/json\r\n");
    assert_eq!(denied.status, 429);
    assert_eq!(denied.json()["violated-policies"], json!(["user-1h"]));

    let without = server.get("/").json();
    assert_eq!(without["outcomes"].as_array().map(Vec::len), Some(1), "user was skipped");
    assert_eq!(without["outcomes"][0]["remaining"], 8, "the denial charged nothing");
}

#[cfg(all(feature = "admin", target_os = "linux"))]
#[test]
fn admin_limits_wrong_guesses_by_address_without_locking_out_others() {
    const RIGHT: &str = "authorization: Basic YWRtaW46c2VjcmV0\r\n";
    const WRONG: &str = "authorization: Basic YWRtaW46c2VjcmVs\r\n";
    let mut command = example("admin");
    command.env("ADDR", ANY_PORT).env("ADMIN_PASSWORD", "secret");
    let server = Server::start(command);
    let here = |credentials: &str| server.get_with("/admin/api/layers", credentials).status;
    // neither the right password nor a missing one is a wrong guess
    for _ in 0..20 {
        assert_eq!((here(RIGHT), here("")), (200, 401));
    }
    let preflight = format!("{WRONG}access-control-request-method: GET\r\norigin: http://x\r\n");
    let guesses: Vec<_> = (0..6)
        .map(|guess| match guess % 3 {
            0 => here(WRONG),
            1 => server.get_with("/admin/no/such/route", WRONG).status,
            _ => {
                let stream = TcpStream::connect(server.address).expect("connects");
                crate::support::programs::exchange(
                    stream,
                    "OPTIONS /admin/api/layers",
                    &preflight,
                    "",
                )
                .status
            }
        })
        .collect();
    assert_eq!(guesses, [401, 401, 401, 401, 401, 429]);
    let denied = server.get_with("/admin/api/layers", RIGHT);
    assert_eq!(denied.status, 429, "a right guess is denied, or a denial ends no guessing");
    assert!(denied.header("retry-after").is_some());
    let elsewhere = connect_from([127, 0, 0, 2], server.address);
    assert_eq!(ask(elsewhere, "/admin/api/layers", RIGHT).status, 200);
    assert_eq!(server.get("/").status, 200, "the site is limited by rules of its own");
}

/// Opens a connection, requests an export, and reads the first bytes of the response.
fn begin_export(server: &Server) -> (TcpStream, String) {
    let mut stream = TcpStream::connect(server.address).expect("connects");
    let head = "GET /export HTTP/1.1\r\nhost: test\r\nx-api-key: alice\r\n\r\n";
    stream.write_all(head.as_bytes()).expect("sends");
    let mut bytes = [0; 12];
    stream.read_exact(&mut bytes).expect("a status line");
    (stream, text(&bytes).to_owned())
}

#[test]
fn exports_of_one_customer_run_two_at_a_time() {
    let mut command = example("exports");
    command.env("ADDR", ANY_PORT);
    let server = Server::start(command);
    let running: Vec<_> = (0..2).map(|_| begin_export(&server)).collect();
    assert!(running.iter().all(|(_, status)| status == "HTTP/1.1 200"), "{running:?}");
    let denied = server.get_with("/export", "x-api-key: alice\r\n");
    assert_eq!(denied.status, 429);
    assert!(denied.header("ratelimit-policy").is_some_and(|it| it.contains("concurrent-requests")));
    assert!(server.get("/running").body.starts_with("2 exports"));
    drop(running);
    let ends = |_: &u32| {
        thread::sleep(Duration::from_millis(20));
        server.get("/running").body.starts_with("0 exports")
    };
    assert!((0..3_000).find(ends).is_some(), "clients that leave free their slots");
}

/// Its assertions compare the charged tokens.
#[test]
fn llm_gateway_charges_used_tokens_and_frees_the_slots_of_clients_that_leave() {
    let mut command = example("llm_gateway");
    command.arg("check");
    let output = end(command);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let said = text(&output.stdout);
    for (after, line) in [
        ("two streams run:", "  running: 2"),
        ("one client leaves:", "  running: 1"),
        ("the other one reads its whole answer:", "  running: 0"),
        ("the second of two long prompts: 429 Too Many Requests", "  running: 1"),
    ] {
        assert!(said.contains(&format!("{after}\n{line}\n")), "{after}: {said}");
    }
    assert!(said.contains("a third one is denied: 429"), "{said}");
}

//! Instructions per decision, counted by callgrind: those of the client with many concurrent callers,
//! and those of the server. Other load on the machine does not affect them.

use std::process::Command;

use crate::{callers, forms, server::Server};

/// Decisions of the shorter and of the longer run. Startup costs cancel out.
const FEW: u32 = 10_240;
const MANY: u32 = 30_720;
/// Calls of a form, whose instructions are counted.
const CALLS: u32 = 1_000;
/// Decisions before the counted ones, which load the script.
const WARM: u32 = 10;
/// With more callers, callgrind is so slow that they wait for more than a second.
const CALLERS: u32 = 256;

pub(crate) fn run(server: &Server) {
    println!("client instructions per decision, {CALLERS} callers, one thread");
    for name in callers::names() {
        let each = counted(server, name, MANY) - counted(server, name, FEW);
        println!("  {name:<32}{:>8}", each / u64::from(MANY - FEW));
    }
}

/// Prints the server's instructions for each form, and for slots that a store takes and frees.
pub(crate) fn of_server() {
    let mut server = Server::counted();
    let forms = forms::all(&mut server);
    println!("server instructions per call");
    for form in &forms {
        server.play(form.commands.iter().cycle().take(form.warm));
        let count = server.instructions(|server| {
            server.play(form.commands.iter().cycle().take(CALLS as usize));
        });
        println!("  {:<36}{:>8}", form.name, count / u64::from(CALLS));
    }
    println!("server instructions per decision of one caller, slots with their frees");
    for name in callers::slot_names() {
        let url = server.url();
        callers::decide(&url, name, 1, WARM);
        let count = server.instructions(|_| callers::decide(&url, name, 1, CALLS));
        println!("  {name:<36}{:>8}", count / u64::from(CALLS));
    }
}

/// Returns callgrind's count for a process that makes these decisions.
fn counted(server: &Server, name: &str, decisions: u32) -> u64 {
    let itself = std::env::current_exe().expect("this program");
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(itself)
        .args(["client", &server.url(), name, &CALLERS.to_string(), &decisions.to_string()])
        .output()
        .expect("valgrind is installed");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}: {told}");
    let count = told.split("Collected :").nth(1).and_then(|rest| rest.split_whitespace().next());
    count.and_then(|count| count.parse().ok()).unwrap_or_else(|| panic!("{name}: {told}"))
}

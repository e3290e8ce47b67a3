//! Instructions of the client per decision with many concurrent callers, counted by callgrind.
//! Other load on the machine does not affect them.

use std::process::Command;

use crate::{callers, server::Server};

/// Decisions of the shorter and of the longer run. Startup costs cancel out.
const FEW: u32 = 20_480;
const MANY: u32 = 61_440;
const CALLERS: [u32; 2] = [256, 1_024];

pub(crate) fn run(server: &Server) {
    println!("client instructions per decision, one thread");
    for name in callers::names() {
        for callers in CALLERS {
            let count = |decisions| counted(server, name, callers, decisions);
            let each = (count(MANY) - count(FEW)) / u64::from(MANY - FEW);
            println!("  {name:<32}{callers:>6} callers{each:>8}");
        }
    }
}

/// Returns callgrind's count for a process that makes these decisions.
fn counted(server: &Server, name: &str, callers: u32, decisions: u32) -> u64 {
    let itself = std::env::current_exe().expect("this program");
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(itself)
        .args(["client", &server.url(), name, &callers.to_string(), &decisions.to_string()])
        .output()
        .expect("valgrind is installed");
    let told = String::from_utf8_lossy(&output.stderr);
    let count = told.split("Collected :").nth(1).and_then(|rest| rest.split_whitespace().next());
    count.and_then(|count| count.parse().ok()).unwrap_or_else(|| panic!("{name}: {told}"))
}

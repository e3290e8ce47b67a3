//! Instructions of the server, counted by callgrind. Other load on the machine does not affect them.

use crate::{callers, forms, server::Server};

/// Calls of a form, whose instructions are counted.
const CALLS: u32 = 1_000;
/// Decisions before the counted ones, which load the script.
const WARM: u32 = 10;

/// Prints the server's instructions for each form, and for slots that a store takes and frees.
pub(crate) fn run() {
    let mut server = Server::counted();
    let forms = forms::all(&mut server);
    println!("server instructions per call");
    for form in &forms {
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

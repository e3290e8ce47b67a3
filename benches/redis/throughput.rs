//! Server CPU per decision.

use redis::Connection;

use crate::{
    forms::{self, Form, LEAN, PLAIN, POOL, SHARE, THREE_QUOTAS, THREE_RULES},
    server::{Server, connect, read},
    stats::{AtMost, Series},
};

const CONNECTIONS: usize = 50;
/// Pipelined commands per connection, and decisions per turn.
const WAYS: [(&str, usize, usize); 2] = [("P1", 1, 1_000), ("P16", 16, 1_600)];
/// Targets: a form, its base, and the maximum ratio of their costs.
const TARGETS: [(&str, &str, f64); 2] = [(LEAN, PLAIN, 0.9), (SHARE, POOL, 2.2)];
const OTHERS: [(&str, &str); 3] =
    [(THREE_QUOTAS, LEAN), (THREE_QUOTAS, PLAIN), (THREE_RULES, LEAN)];

pub(crate) fn run(server: &mut Server, rounds: usize) {
    let forms = forms::all(server);
    let mut load = Load::new(&server.url());
    let mut times = vec![[Series::default(), Series::default()]; forms.len()];
    let mut turns = vec![0; forms.len()];
    for round in 0..rounds {
        for at in (0..forms.len()).map(|at| (at + round) % forms.len()) {
            for (way, (_, depth, count)) in WAYS.iter().enumerate() {
                let before = server.cpu();
                load.play(&forms[at], &mut turns[at], *depth, *count);
                times[at][way].0.push((server.cpu() - before) * 1e6 / *count as f64);
            }
        }
    }
    let named: Vec<_> = forms.iter().map(|form| form.name).zip(&times).collect();
    print_ratios(&named);
    print_times(&named);
}

type Named<'a> = [(&'static str, &'a [Series; 2])];

fn of<'a>(times: &Named<'a>, name: &str) -> &'a [Series; 2] {
    times.iter().find(|(known, _)| *known == name).map(|(_, times)| *times).expect("a form")
}

fn print_ratios(times: &Named<'_>) {
    println!("server CPU, ratios");
    let targets = TARGETS.map(|(form, base, target)| (form, base, Some(target)));
    let others = OTHERS.map(|(form, base)| (form, base, None));
    for (form, base, target) in targets.into_iter().chain(others) {
        for (way, (name, ..)) in WAYS.iter().enumerate() {
            let ratio = of(times, form)[way].over(&of(times, base)[way]);
            let told = match target {
                Some(target) => AtMost(target, ratio).to_string(),
                None => format!("{ratio:>7.2}"),
            };
            println!("  {name:<4}{:<66}{told}", format!("{form} / {base}"));
        }
    }
}

fn print_times(times: &Named<'_>) {
    println!("\nserver CPU per decision: us, ratio to the plain script, decisions per core-second");
    println!("  {:<36}{:>24}{:>28}", "", WAYS[0].0, WAYS[1].0);
    let base = of(times, PLAIN);
    for (name, of) in times {
        print!("  {name:<36}");
        for (time, base) in of.iter().zip(base) {
            let micros = time.median();
            print!("{micros:>10.2}{:>8.2}{:>8.0}k ", time.over(base), 1e3 / micros);
        }
        println!();
    }
    println!();
}

/// Connections that keep the server busy.
struct Load(Vec<Connection>);

impl Load {
    fn new(url: &str) -> Self {
        Self((0..CONNECTIONS).map(|_| connect(url).expect("the server listens")).collect())
    }

    /// Sends at least `count` commands, continuing with the key after the last turn's.
    fn play(&mut self, form: &Form, next: &mut usize, depth: usize, count: usize) {
        for _ in 0..count.div_ceil(depth * CONNECTIONS) {
            for connection in &mut self.0 {
                let commands = (0..depth).flat_map(|_| {
                    *next += 1;
                    &form.commands[*next % form.commands.len()]
                });
                let commands = commands.copied().collect::<Vec<_>>();
                connection.send_packed_command(&commands).expect("the server reads");
            }
            for connection in &mut self.0 {
                (0..depth).for_each(|_| drop(read(connection)));
            }
        }
    }
}

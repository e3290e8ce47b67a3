//! One seed has one story, also in separate processes.

use std::process::Command;

fn story(seed: &str) -> String {
    let program = env!("CARGO_BIN_EXE_sim");
    let output = Command::new(program).args(["--seed", seed, "--trace"]).output();
    String::from_utf8(output.expect("it runs").stdout).expect("a text")
}

#[test]
fn one_seed_prints_one_story_in_two_processes() {
    for seed in ["1", "2", "3", "4", "5", "6", "7", "8"] {
        let (one, two) = (story(seed), story(seed));
        assert!(one.lines().count() > 50, "{one}");
        assert!(one == two, "the stories of seed {seed} differ");
    }
    assert!(story("1") != story("2"));
}

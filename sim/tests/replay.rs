//! One seed has one story, also in separate processes and after other seeds.

use std::process::Command;

fn run(args: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_sim")).args(args).arg("--trace").output();
    String::from_utf8(output.expect("it runs").stdout).expect("a text")
}

fn story(seed: &str) -> String {
    run(&["--seed", seed])
}

fn sharing(seed: &str) -> String {
    run(&["--sharing", "--seed", seed])
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

#[test]
fn a_seed_of_shared_limits_has_one_story_alone_and_after_others() {
    let all = run(&["--sharing", "--seeds", "1..4"]);
    for seed in ["1", "2", "3"] {
        let (one, two) = (sharing(seed), sharing(seed));
        assert!(one == two, "the stories of seed {seed} differ");
        let (events, _) = one.trim_end().rsplit_once('\n').expect("many lines");
        assert!(events.lines().count() > 50 && all.contains(events), "seed {seed} differs");
    }
}

#[test]
fn a_seed_tells_the_same_story_after_other_seeds() {
    // After those of seeds.txt. A run of many seeds ends after twenty with violations.
    let all = run(&["--seeds", "1..5"]);
    for seed in ["1", "2", "3", "4"] {
        let alone = story(seed);
        // The last line has the sums, which the run of all seeds adds up.
        let (events, _) = alone.trim_end().rsplit_once('\n').expect("many lines");
        assert!(events.lines().count() > 50 && all.contains(events), "seed {seed} differs");
    }
}

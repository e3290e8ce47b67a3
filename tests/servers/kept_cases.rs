//! The failing cases that property tests keep.
#![allow(clippy::print_stdout)]

use std::{
    env,
    path::Path,
    process::{Command, Output},
};

use proptest::{
    strategy::Just,
    test_runner::{TestCaseError, TestError, TestRunner},
};

use crate::support::regressions::keeping;

const DISABLED: &str = "PROPTEST_DISABLE_FAILURE_PERSISTENCE";

#[test]
fn a_failing_case_of_a_comparison_with_a_server_is_not_written() {
    let mut runner = TestRunner::new(keeping(file!()));
    let fails = runner.run(&Just(1), |_| Err(TestCaseError::fail("the server was slow")));
    assert!(matches!(fails, Err(TestError::Fail(_, 1))), "{fails:?}");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/regressions/servers");
    assert!(folder.join("parity.txt").exists());
    assert!(!folder.join("kept_cases.txt").exists());
}

/// A process of the test below. Does nothing by itself.
#[test]
fn child() {
    for file in ["dev/../tests/servers/parity.rs", "dev/../tests/it/rules/definition.rs"] {
        println!("keeps cases: {}", keeping(file).failure_persistence.is_some());
    }
}

fn output(child: &mut Command) -> String {
    let Output { stdout, .. } =
        child.args(["--exact", "kept_cases::child", "--nocapture"]).output().expect("it runs");
    String::from_utf8(stdout).expect("text")
}

#[test]
fn the_variable_of_proptest_disables_kept_cases() {
    let program = env::current_exe().expect("a path");
    let kept = output(Command::new(&program).env_remove(DISABLED));
    assert_eq!(kept.matches("keeps cases: true").count(), 2, "{kept}");
    let disabled = output(Command::new(&program).env(DISABLED, "1"));
    assert_eq!(disabled.matches("keeps cases: false").count(), 2, "{disabled}");
}

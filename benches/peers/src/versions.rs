//! The measured versions.

const LOCK: &str = include_str!("../Cargo.lock");

/// Returns the names with their versions in the lock file.
pub fn line(names: &[&str]) -> String {
    let line: Vec<_> = names.iter().map(|name| format!("{name} {}", version(name))).collect();
    line.join(", ")
}

fn version(name: &str) -> &'static str {
    let entry =
        LOCK.split("[[package]]").find(|entry| entry.contains(&format!("name = \"{name}\"")));
    let version = entry.and_then(|entry| entry.split("version = \"").nth(1));
    version.and_then(|rest| rest.split('"').next()).unwrap_or("?")
}

//! The measured versions.

const LOCK: &str = include_str!("../Cargo.lock");

/// Returns the subjects with their versions in the lock file.
pub fn line() -> String {
    let names = ["tower-sluice", "tower_governor", "axum-governor", "governor"];
    names.map(|name| format!("{name} {}", version(name))).join(", ")
}

fn version(name: &str) -> &'static str {
    let entry =
        LOCK.split("[[package]]").find(|entry| entry.contains(&format!("name = \"{name}\"")));
    let version = entry.and_then(|entry| entry.split("version = \"").nth(1));
    version.and_then(|rest| rest.split('"').next()).unwrap_or("?")
}

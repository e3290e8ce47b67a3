//! The folders of servers, and the process that ends servers when the tests cannot.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::LazyLock,
};

use super::random;

/// Waits until the tests end in any way: its input is a pipe that then closes. Kills the remaining
/// servers (those in a `static`, or all when the tests were killed) and removes all files. Each
/// folder has the id of its server in the file `pid`.
const GUARD: &str = r#"
trap '' INT TERM HUP
read -r _
for pid in "$1"/*/pid; do
    if [ -f "$pid" ]; then kill -9 "$(cat "$pid")"; fi
done
rm -rf "$1"
"#;

/// The folder of all servers of this process.
static HOME: LazyLock<Home> = LazyLock::new(Home::open);

struct Home {
    path: PathBuf,
    _guard: Child,
}

impl Home {
    fn open() -> Self {
        let name = format!("tower-sluice-{}-{:x}", std::process::id(), random());
        let path = env::temp_dir().join(name);
        fs::create_dir(&path).expect("a temporary folder");
        let mut guard = Command::new("sh");
        guard.args(["-c", GUARD, "guard"]).arg(&path);
        guard.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        Self { path, _guard: guard.spawn().expect("sh runs") }
    }
}

/// The folder of a server, removed with it.
#[derive(Debug)]
pub(super) struct Folder(PathBuf);

impl Folder {
    /// Creates the folder of the server on `port`, which no other server has at the time.
    pub(super) fn new(port: u16) -> Self {
        let path = HOME.path.join(port.to_string());
        fs::create_dir(&path).expect("a folder");
        Self(path)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

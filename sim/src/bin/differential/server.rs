//! A real server on a Unix socket, which ends with the comparison.

use std::{
    env, fs, io,
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

/// A running server.
pub struct Server {
    child: Child,
    folder: PathBuf,
}

impl Server {
    /// Starts `program`, such as `redis-server`.
    ///
    /// # Errors
    ///
    /// Fails if the program cannot start or does not listen within ten seconds.
    pub fn start(program: &str) -> io::Result<Self> {
        let name = PathBuf::from(program);
        let name = name.file_name().map(|name| name.to_string_lossy().into_owned());
        let folder = format!("sim-{}-{}", name.unwrap_or_default(), std::process::id());
        let folder = env::temp_dir().join(folder);
        fs::create_dir_all(&folder)?;
        let child = Command::new(program)
            .args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket", "socket"])
            .current_dir(&folder)
            .stdout(Stdio::null())
            .spawn()?;
        let server = Self { child, folder };
        for _ in 0..500 {
            if server.folder.join("socket").exists() {
                return Ok(server);
            }
            thread::sleep(Duration::from_millis(20));
        }
        Err(io::Error::other(format!("{program} does not listen")))
    }

    pub fn url(&self) -> String {
        format!("unix://{}/socket", self.folder.display())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
        drop(fs::remove_dir_all(&self.folder));
    }
}

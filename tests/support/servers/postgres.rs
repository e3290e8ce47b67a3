//! A PostgreSQL server of a test.

use std::{
    env,
    fs::{self, File, Permissions},
    os::unix::{
        fs::{MetadataExt, PermissionsExt, chown},
        process::CommandExt,
    },
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::Instant,
};

use super::{PATIENCE, Turn, home::Folder, insist, port::Port};

/// The user and group `nobody`, because PostgreSQL does not run as root.
const NOBODY: u32 = 65_534;

/// An empty PostgreSQL server, of which nothing remains.
#[derive(Debug)]
pub(crate) struct Postgres {
    process: Option<Child>,
    folder: Folder,
    port: Port,
    _turn: Turn,
}

impl Postgres {
    /// Starts a server, and waits until it answers.
    pub(crate) async fn start() -> Self {
        insist(async || {
            let mut server = Self::new();
            server.create();
            server.launch();
            server.ready().await.map(|()| server)
        })
        .await
    }

    fn new() -> Self {
        let turn = Turn::take();
        let port = Port::reserve();
        let folder = Folder::new(port.number());
        Self { process: None, folder, port, _turn: turn }
    }

    pub(crate) fn url(&self) -> String {
        format!("postgres://sluice@{}/postgres", self.port.address())
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// Returns a command that runs as a user with fewer rights, whose output is in the log.
    fn command(&self, name: &str) -> Command {
        let log = File::options().create(true).append(true).open(self.folder.path().join("log"));
        let log = log.expect("a log");
        let mut command = Command::new(program(name));
        command.current_dir(self.folder.path()).stdin(Stdio::null());
        command.arg("-D").arg(self.data());
        command.stdout(log.try_clone().expect("a log")).stderr(log);
        if is_root(&self.folder) {
            command.uid(NOBODY).gid(NOBODY);
        }
        command
    }

    /// Creates its files.
    fn create(&self) {
        fs::create_dir(self.data()).expect("a folder");
        if is_root(&self.folder) {
            chown(self.data(), Some(NOBODY), Some(NOBODY)).expect("another owner");
            // Under a strict umask, no other user may enter the folders.
            for folder in self.folder.path().ancestors().take(2) {
                let rights = Permissions::from_mode(0o755);
                fs::set_permissions(folder, rights).expect("other rights");
            }
        }
        let mut create = self.command("initdb");
        create.args(["--auth=trust", "--username=sluice", "--no-sync", "--locale=C"]);
        assert!(create.status().expect("initdb runs").success(), "{}", self.log());
    }

    fn launch(&mut self) {
        let mut server = self.command("postgres");
        server.args(["-p", &self.port.number().to_string()]);
        server.args(["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="]);
        server.args(["-c", "fsync=off"]);
        let process = server.spawn().expect("postgres runs");
        fs::write(self.folder.path().join("pid"), process.id().to_string()).expect("a file");
        self.process = Some(process);
    }

    async fn ready(&mut self) -> Result<(), String> {
        let start = Instant::now();
        loop {
            if tokio_postgres::connect(&self.url(), tokio_postgres::NoTls).await.is_ok() {
                return Ok(());
            }
            let ended = self.process.as_mut().expect("it runs").try_wait().expect("a status");
            if ended.is_some() || start.elapsed() > PATIENCE {
                return Err(format!("postgres does not answer ({ended:?}):\n{}", self.log()));
            }
            tokio::time::sleep(super::LOOK).await;
        }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        let Some(mut process) = self.process.take() else {
            return;
        };
        // The immediate end, after which no process of the server remains.
        let quit = format!("kill -QUIT {}", process.id());
        let _ = Command::new("sh").args(["-c", &quit]).status();
        process.wait().expect("it ends");
        let _ = fs::remove_file(self.folder.path().join("pid"));
    }
}

fn is_root(folder: &Folder) -> bool {
    fs::metadata(folder.path()).expect("a folder").uid() == 0
}

/// Returns the program: of the folder `POSTGRES_BIN`, or of the newest Debian package.
fn program(name: &str) -> PathBuf {
    if let Some(folder) = env::var_os("POSTGRES_BIN") {
        return PathBuf::from(folder).join(name);
    }
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let programs = versions.map(|version| version.path().join("bin").join(name));
    let newest = programs.filter(|program| program.exists()).max();
    newest.expect("PostgreSQL: run scripts/servers, or set POSTGRES_BIN")
}

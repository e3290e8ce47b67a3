use std::{
    fs::{self, File},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use super::{
    Flavour, PATIENCE, Turn,
    flavour::{LOCALE, in_target},
    home::Folder,
    insist,
    port::Port,
};

/// A separate server of a test, with no data, of which nothing remains.
#[derive(Debug)]
pub(crate) struct Server {
    program: PathBuf,
    args: Vec<String>,
    password: String,
    process: Option<Child>,
    folder: Folder,
    port: Port,
    _turn: Turn,
}

impl Server {
    /// Starts a Redis server, and waits until it answers.
    pub(crate) async fn redis() -> Self {
        Self::start(Flavour::Redis, &[]).await
    }

    /// Starts a server with more arguments, such as `["--maxmemory", "2mb"]`, and waits until it
    /// answers.
    pub(crate) async fn start(flavour: Flavour, args: &[&str]) -> Self {
        insist(async || {
            let mut server = Self::new(flavour, args);
            server.launch();
            server.ready().await.map(|()| server)
        })
        .await
    }

    /// Creates a server that does not run yet.
    pub(super) fn new(flavour: Flavour, args: &[&str]) -> Self {
        let mut server = Self::bare(flavour);
        let port = server.port().to_string();
        let ours = ["--port", &port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"];
        // After a diskless sync, the replica receives nothing for up to a second although it
        // reports to follow: writes of that time would be lost with their master.
        let sync = ["--repl-diskless-sync", "no", "--rdb-del-sync-files", "yes"];
        let debug = ["--enable-debug-command", "yes"];
        let debug = if flavour.restricts_debug() { &debug[..] } else { &[] };
        server.args =
            [&ours[..], &sync, debug, args].concat().into_iter().map(String::from).collect();
        let password = args.iter().skip_while(|arg| **arg != "--requirepass").nth(1);
        server.password = password.copied().unwrap_or_default().to_owned();
        server
    }

    /// Creates a sentinel that does not run yet. It reads the file `sentinel.conf` of its folder.
    pub(super) fn sentinel(flavour: Flavour) -> Self {
        let mut server = Self::bare(flavour);
        server.args = vec!["sentinel.conf".to_owned(), "--sentinel".to_owned()];
        server
    }

    fn bare(flavour: Flavour) -> Self {
        let turn = Turn::take();
        let port = Port::reserve();
        Self {
            program: flavour.program(),
            args: Vec::new(),
            password: String::new(),
            process: None,
            folder: Folder::new(port.number()),
            port,
            _turn: turn,
        }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port.number()
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.port.address()
    }

    pub(crate) fn url(&self) -> String {
        self.url_at(self.address())
    }

    /// Returns the URL of this server behind `address`, the one of a [`super::Proxy`].
    pub(crate) fn url_at(&self, address: SocketAddr) -> String {
        match self.password.as_str() {
            "" => format!("redis://{address}"),
            password => format!("redis://:{password}@{address}"),
        }
    }

    /// Returns the folder of its files, which is removed with the server.
    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    /// Returns the id of its process, which must run.
    pub(crate) fn pid(&self) -> u32 {
        self.process.as_ref().expect("it runs").id()
    }

    /// Returns `true` if its process runs, even if it is frozen.
    pub(crate) fn runs(&self) -> bool {
        self.process.is_some()
    }

    /// Starts the process with its saved data, and does not wait.
    pub(crate) fn launch(&mut self) {
        assert!(!self.runs(), "the server runs already");
        let log = File::options().create(true).append(true).open(self.file("log"));
        let log = log.expect("a log");
        let mut command = Command::new(&self.program);
        command.args(&self.args).current_dir(self.path()).stdin(Stdio::null());
        command.env("LC_ALL", LOCALE).env("LOCPATH", in_target("locale"));
        command.stdout(log.try_clone().expect("a log")).stderr(log);
        let process = command.spawn().unwrap_or_else(|e| panic!("{}: {e}", self.program.display()));
        fs::write(self.file("pid"), process.id().to_string()).expect("a file");
        self.process = Some(process);
    }

    /// Waits until this process answers, and has loaded its data.
    pub(crate) async fn ready(&mut self) -> Result<(), String> {
        let start = Instant::now();
        let own = self.pid().to_string();
        loop {
            if self.attempt::<String>("PING").await.is_ok() {
                return match self.info("server", "process_id").await {
                    pid if pid == Some(own) => Ok(()),
                    other => Err(format!("{} is the port of process {other:?}", self.port())),
                };
            }
            let ended = self.process.as_mut().expect("it runs").try_wait().expect("a status");
            if ended.is_some() || start.elapsed() > PATIENCE {
                let log = fs::read_to_string(self.file("log")).unwrap_or_default();
                let name = self.program.display();
                return Err(format!("{name} {:?} does not answer ({ended:?}):\n{log}", self.args));
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Kills the process. Its port stays reserved.
    pub(crate) fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().expect("the process is killed");
            let _ = fs::remove_file(self.file("pid"));
            process.wait().expect("it ends");
        }
    }

    /// Kills the server if it runs, and starts it on the same port without data.
    pub(crate) async fn restart(&mut self) {
        self.kill();
        let _ = fs::remove_file(self.file("dump.rdb"));
        self.launch();
        self.ready().await.unwrap_or_else(|why| panic!("{why}"));
    }

    /// Freezes the server: the kernel still accepts connections, but nothing is answered.
    pub(crate) fn stop(&self) {
        self.signal("STOP");
        let status = format!("/proc/{}/status", self.pid());
        let frozen = |text: String| text.contains("State:\tT");
        // The signal takes effect a moment later.
        while fs::read_to_string(&status).is_ok_and(|text| !frozen(text)) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Continues after [`Server::stop`], with the requests received since.
    pub(crate) fn cont(&self) {
        self.signal("CONT");
    }

    fn signal(&self, name: &str) {
        let kill = format!("kill -{name} {}", self.pid());
        assert!(Command::new("sh").args(["-c", &kill]).status().expect("sh runs").success());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

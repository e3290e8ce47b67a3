//! nginx in front of the server, if it is installed.

use std::{
    env, fs, io,
    net::{SocketAddr, TcpListener, TcpStream},
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

const PATIENCE: Duration = Duration::from_secs(20);

/// A running nginx, which ends when this value is dropped.
///
/// | path | connections to the server |
/// |---|---|
/// | `/…` | kept, HTTP/1.1 |
/// | `/default/…` | as nginx has them by default |
pub(crate) struct Nginx {
    process: Child,
    folder: PathBuf,
    pub(crate) address: SocketAddr,
}

impl Nginx {
    /// Starts nginx in front of `server`. Returns `None` if it is not installed.
    pub(crate) fn start(server: SocketAddr) -> Option<Self> {
        // Debian has no /usr/sbin in the path of users.
        let path = format!("{}:/usr/sbin:/usr/local/sbin", env::var("PATH").unwrap_or_default());
        let found = env::split_paths(&path).map(|folder| folder.join("nginx"));
        let program = found.into_iter().find(|program| program.is_file())?;
        let folder = env::temp_dir().join(format!("tower-sluice-nginx-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let address = free_address().expect("a port");
        let file = folder.join("nginx.conf");
        let parts = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
        let parts = parts.map(|part| format!("{part}_temp_path {}/{part};", folder.display()));
        let text = format!(
            "daemon off;
master_process off;
pid {folder}/pid;
error_log {folder}/errors;
events {{ worker_connections 256; }}
http {{
    access_log off;
    client_max_body_size 0;
    {parts}
    upstream app {{ server {server}; keepalive 8; }}
    server {{
        listen {address};
        location / {{
            proxy_pass http://app;
            proxy_http_version 1.1;
            proxy_set_header Connection \"\";
        }}
        location /default/ {{ proxy_pass http://{server}/; }}
    }}
}}
",
            folder = folder.display(),
            parts = parts.join("\n    "),
        );
        fs::write(&file, text).expect("the configuration");
        let mut command = Command::new(program);
        command.arg("-e").arg(folder.join("errors")).arg("-c").arg(&file).stdin(Stdio::null());
        let process = command.spawn().expect("nginx");
        let mut nginx = Self { process, folder, address };
        nginx.wait();
        Some(nginx)
    }

    /// Waits until nginx accepts connections.
    fn wait(&mut self) {
        let start = Instant::now();
        while TcpStream::connect(self.address).is_err() {
            let ended = self.process.try_wait().expect("a process");
            let errors = fs::read_to_string(self.folder.join("errors")).unwrap_or_default();
            assert!(ended.is_none() && start.elapsed() < PATIENCE, "nginx: {ended:?} {errors}");
            thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
        drop(fs::remove_dir_all(&self.folder));
    }
}

/// Returns an address on which nothing listens.
fn free_address() -> io::Result<SocketAddr> {
    TcpListener::bind("127.0.0.1:0")?.local_addr()
}

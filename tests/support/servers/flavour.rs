use std::{
    env,
    ffi::OsString,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

/// The locale of all servers, in whose order `a` comes before `B`: Lua compares texts by it. Made by
/// `scripts/servers`.
pub(super) const LOCALE: &str = "en_US.UTF-8";

/// Returns the folder in `target` that `scripts/servers` has filled.
pub(super) fn in_target(folder: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../target").join(folder)
}

/// The implementation of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flavour {
    Redis,
    Valkey,
}

impl Flavour {
    pub(crate) const ALL: [Self; 2] = [Self::Redis, Self::Valkey];

    fn command(self) -> &'static str {
        match self {
            Self::Redis => "redis-server",
            Self::Valkey => "valkey-server",
        }
    }

    fn variable(self) -> &'static str {
        match self {
            Self::Redis => "REDIS_SERVER",
            Self::Valkey => "VALKEY_SERVER",
        }
    }

    /// Returns the server's program. A test without it fails, because a skipped test would look
    /// like a success.
    pub(super) fn program(self) -> PathBuf {
        let named = env::var_os(self.variable());
        self.find(named, env::var_os("PATH")).unwrap_or_else(|why| panic!("{why}"))
    }

    /// Returns `true` if the command `DEBUG` is off by default. Redis 6 has no setting for it.
    pub(super) fn restricts_debug(self) -> bool {
        static KNOWN: [OnceLock<bool>; 2] = [OnceLock::new(), OnceLock::new()];
        *KNOWN[self as usize].get_or_init(|| {
            let output = Command::new(self.program()).arg("--version").output();
            let text = output.expect("the server runs").stdout;
            !String::from_utf8_lossy(&text).contains("v=6.")
        })
    }

    /// Finds the file that is `named`, or else one on the search `path`, or else the one that
    /// `scripts/servers` has put into `target`.
    pub(crate) fn find(
        self,
        named: Option<OsString>,
        path: Option<OsString>,
    ) -> Result<PathBuf, String> {
        let (command, variable) = (self.command(), self.variable());
        if let Some(file) = named.map(PathBuf::from) {
            let missing = || format!("{variable} is {}, which is no file", file.display());
            return if file.is_file() { Ok(file) } else { Err(missing()) };
        }
        env::split_paths(&path.unwrap_or_default())
            .chain([in_target("valkey")])
            .map(|folder| folder.join(command))
            .find(|file| file.is_file())
            .ok_or_else(|| {
                format!("{command} is missing: run scripts/servers, or name one in {variable}")
            })
    }
}

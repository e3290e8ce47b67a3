use std::{
    env,
    ffi::OsString,
    path::{Path, PathBuf},
};

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
        let fetched = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/valkey");
        env::split_paths(&path.unwrap_or_default())
            .chain([fetched])
            .map(|folder| folder.join(command))
            .find(|file| file.is_file())
            .ok_or_else(|| {
                format!("{command} is missing: run scripts/servers, or name one in {variable}")
            })
    }
}

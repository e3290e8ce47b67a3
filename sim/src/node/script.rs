//! Scripts: the real Lua 5.1, with the servers' rules for numbers, missing values and errors.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use mlua::{Function, Lua, MultiValue, String as Text, Table, Value};
use sha1::{Digest, Sha1};

use super::{commands, data::Data, reply::Reply, structs};

/// The Lua of a node and the scripts that it has loaded.
pub struct Scripts {
    lua: Lua,
    loaded: HashMap<String, Function>,
    state: Arc<Mutex<State>>,
}

/// The parts of a node that a running script reads and changes.
#[derive(Debug, Default)]
pub struct State {
    pub data: Data,
    /// `true` if commands that need memory fail.
    pub full: bool,
    /// `true` if commands that change keys fail, as on a replica.
    pub read_only: bool,
    /// `true` if the script has written, after which it may need memory.
    written: bool,
    /// The error of the command that ended the script.
    failed: Option<String>,
}

impl State {
    /// Runs a command on keys, outside or inside of a script.
    pub fn run(&mut self, request: &[Vec<u8>]) -> Reply {
        let (name, args) = (&request[0], &request[1..]);
        let Some(effect) = commands::effect(name) else { return commands::unknown(name, args) };
        if self.full && !self.written && effect.needs_memory {
            return Reply::error("OOM command not allowed when used memory > 'maxmemory'.");
        }
        if effect.writes {
            if self.read_only {
                return Reply::error("READONLY You can't write against a read only replica.");
            }
            let keys = if name.eq_ignore_ascii_case(b"del") { args.len() } else { 1 };
            args.iter().take(keys).for_each(|key| self.data.touch(key));
        }
        commands::run(&mut self.data, name, args)
    }

    fn run_in_script(&mut self, request: &[Vec<u8>]) -> Reply {
        match commands::effect(&request[0]) {
            None => Reply::error("ERR Unknown Redis command called from script"),
            Some(effect) => {
                let reply = self.run(request);
                self.written |= effect.writes && !matches!(reply, Reply::Error(_));
                reply
            }
        }
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Scripts {
    /// Creates the environment of scripts on `state`.
    ///
    /// # Errors
    ///
    /// Fails if Lua does.
    pub fn new(state: Arc<Mutex<State>>) -> mlua::Result<Self> {
        let lua = Lua::new();
        let redis = lua.create_table()?;
        for (name, raises) in [("call", true), ("pcall", false)] {
            let state = state.clone();
            let call = move |lua: &Lua, args: MultiValue| call(lua, &state, &args, raises);
            redis.set(name, lua.create_function(call)?)?;
        }
        let library = lua.create_table()?;
        library.set("pack", lua.create_function(structs::pack)?)?;
        library.set("unpack", lua.create_function(structs::unpack)?)?;
        lua.globals().set("redis", redis)?;
        lua.globals().set("struct", library)?;
        Ok(Self { lua, loaded: HashMap::new(), state })
    }

    /// Loads a script and returns its hash.
    pub fn load(&mut self, text: &[u8]) -> Result<String, Reply> {
        let sha = sha(text);
        if !self.loaded.contains_key(&sha) {
            let function = self.lua.load(text).set_name("@user_script").into_function();
            let function = function.map_err(|error| {
                Reply::error(format!(
                    "ERR Error compiling script (new function): {}",
                    first(&error)
                ))
            })?;
            self.loaded.insert(sha.clone(), function);
        }
        Ok(sha)
    }

    pub fn is_loaded(&self, sha: &str) -> bool {
        self.loaded.contains_key(sha)
    }

    pub fn forget(&mut self) {
        self.loaded.clear();
    }

    /// Runs a loaded script.
    pub fn run(&self, sha: &str, keys: &[Vec<u8>], args: &[Vec<u8>]) -> Reply {
        let Some(script) = self.loaded.get(sha) else {
            return Reply::error("NOSCRIPT No matching script. Please use EVAL.");
        };
        let mut state = lock(&self.state);
        (state.written, state.failed) = (false, None);
        drop(state);
        let result = self.bind(keys, args).and_then(|()| script.call::<Value>(()));
        let mut state = lock(&self.state);
        state.written = false;
        match (result, state.failed.take()) {
            (Ok(value), _) => to_reply(&value),
            (Err(_), Some(error)) => Reply::Error(format!("{error} script: {sha}")),
            (Err(error), None) => {
                let error = first(&error);
                Reply::error(format!("ERR user_script: {error} script: {sha}"))
            }
        }
    }

    fn bind(&self, keys: &[Vec<u8>], args: &[Vec<u8>]) -> mlua::Result<()> {
        for (name, values) in [("KEYS", keys), ("ARGV", args)] {
            let values = values.iter().map(|value| self.lua.create_string(value));
            let values = values.collect::<mlua::Result<Vec<_>>>()?;
            self.lua.globals().set(name, self.lua.create_sequence_from(values)?)?;
        }
        Ok(())
    }
}

/// Returns the SHA-1 of a text, in hexadecimal.
pub fn sha(text: &[u8]) -> String {
    Sha1::digest(text).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn first(error: &mlua::Error) -> String {
    error.to_string().lines().next().unwrap_or_default().to_owned()
}

/// `redis.call` and `redis.pcall`, which differ in what follows an error.
fn call(lua: &Lua, state: &Mutex<State>, args: &MultiValue, raises: bool) -> mlua::Result<Value> {
    let request: Option<Vec<_>> = args.iter().map(argument).collect();
    let reply = match request {
        Some(request) if !request.is_empty() => lock(state).run_in_script(&request),
        Some(_) => {
            Reply::error("ERR Please specify at least one argument for this redis.call() call")
        }
        None => Reply::error("ERR Lua redis lib command arguments must be strings or integers"),
    };
    if let Reply::Error(text) = &reply
        && raises
    {
        lock(state).failed = Some(text.clone());
        return Err(mlua::Error::RuntimeError(text.clone()));
    }
    to_lua(lua, reply)
}

/// Returns the text of an argument. Whole numbers have no fraction and no exponent.
fn argument(value: &Value) -> Option<Vec<u8>> {
    match value {
        Value::String(text) => Some(text.as_bytes().to_vec()),
        Value::Integer(number) => Some(number.to_string().into()),
        Value::Number(number) => Some(number.to_string().into()),
        _ => None,
    }
}

fn to_lua(lua: &Lua, reply: Reply) -> mlua::Result<Value> {
    Ok(match reply {
        #[allow(clippy::cast_precision_loss, reason = "Lua's numbers are doubles")]
        Reply::Integer(number) => Value::Number(number as f64),
        Reply::Bulk(bytes) => Value::String(lua.create_string(bytes)?),
        Reply::Nil => Value::Boolean(false),
        Reply::Status(text) => Value::Table(lua.create_table_from([("ok", text)])?),
        Reply::Error(text) => Value::Table(lua.create_table_from([("err", text)])?),
        Reply::Array(items) => {
            let items = items.into_iter().map(|item| to_lua(lua, item));
            Value::Table(lua.create_sequence_from(items.collect::<mlua::Result<Vec<_>>>()?)?)
        }
        Reply::Map(_) => return Err(mlua::Error::RuntimeError("a map in a script".into())),
    })
}

/// Returns the reply of a script. Numbers lose their fraction, and a list ends before `nil`.
fn to_reply(value: &Value) -> Reply {
    match value {
        Value::String(text) => Reply::Bulk(text.as_bytes().to_vec()),
        Value::Integer(number) => Reply::Integer(*number),
        #[allow(clippy::cast_possible_truncation, reason = "as in the servers")]
        Value::Number(number) => Reply::Integer(*number as i64),
        Value::Boolean(true) => Reply::Integer(1),
        Value::Table(table) => of_table(table),
        _ => Reply::Nil,
    }
}

fn of_table(table: &Table) -> Reply {
    let field = |name: &str| table.raw_get::<Option<Text>>(name).ok().flatten();
    if let Some(error) = field("err") {
        return Reply::Error(error.to_string_lossy());
    }
    if let Some(status) = field("ok") {
        return Reply::Status(status.to_string_lossy());
    }
    let items =
        (1..).map_while(|at: i64| table.raw_get::<Value>(at).ok().filter(|it| !it.is_nil()));
    Reply::Array(items.map(|item| to_reply(&item)).collect())
}

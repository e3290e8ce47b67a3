//! Redis's protocol, just enough of it: commands are sent as they were packed, and answers read.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
};

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Nil,
    Int(i64),
    Text(Vec<u8>),
    List(Vec<Reply>),
}

impl Reply {
    pub(crate) fn bytes(&self) -> &[u8] {
        if let Self::Text(bytes) = self { bytes } else { panic!("{self:?} is no string") }
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(self.bytes()).into_owned()
    }

    pub(crate) fn int(&self) -> i64 {
        if let Self::Int(number) = self { *number } else { panic!("{self:?} is no number") }
    }
}

/// A command in the form in which it goes over the wire.
pub(crate) fn pack<A: AsRef<[u8]>>(args: &[A]) -> Vec<u8> {
    let mut packed = format!("*{}\r\n", args.len()).into_bytes();
    for arg in args.iter().map(AsRef::as_ref) {
        packed.extend(format!("${}\r\n", arg.len()).bytes());
        packed.extend(arg);
        packed.extend(b"\r\n");
    }
    packed
}

/// A connection.
pub(crate) struct Wire(BufReader<TcpStream>);

impl Wire {
    pub(crate) fn connect(port: u16) -> std::io::Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        Ok(Self(BufReader::new(stream)))
    }

    /// Sends what is packed; the answers are read later.
    pub(crate) fn send(&mut self, packed: &[u8]) {
        self.0.get_mut().write_all(packed).expect("the server reads");
    }

    /// The next answer; an error ends the bench.
    pub(crate) fn read(&mut self) -> Reply {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("the server answers");
        let (kind, rest) = line.trim_end().split_at(1);
        let number = || rest.parse::<i64>().expect("a number");
        match kind {
            "+" => Reply::Text(rest.into()),
            ":" => Reply::Int(number()),
            "$" => self.read_text(number()),
            "*" => Reply::List((0..number()).map(|_| self.read()).collect()),
            _ => panic!("the server answers {line:?}"),
        }
    }

    fn read_text(&mut self, length: i64) -> Reply {
        let Ok(length) = usize::try_from(length) else { return Reply::Nil };
        let mut bytes = vec![0; length + 2];
        self.0.read_exact(&mut bytes).expect("the server answers");
        bytes.truncate(length);
        Reply::Text(bytes)
    }

    pub(crate) fn call<A: AsRef<[u8]>>(&mut self, args: &[A]) -> Reply {
        self.send(&pack(args));
        self.read()
    }
}

//! Frames of a rejection: one HEADERS frame that ends the stream.
//!
//! Some clients lose the status if an empty DATA frame follows (RFC 9113, §6.2 and §8.1).

use std::{
    future::Future,
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    time::{Duration, Instant},
};

use axum::Router;
use tonic::transport::Server;

use crate::support::{
    echo::{Echo, incoming},
    owing, quota,
};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
/// Flag of HEADERS and DATA. In SETTINGS and PING this bit is ACK.
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

#[derive(Debug, PartialEq)]
struct Frame {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: Vec<u8>,
}

/// One HTTP/2 connection with prior knowledge.
struct Connection(TcpStream);

impl Connection {
    fn open(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("connects");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
        let mut this = Self(stream);
        this.0.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").expect("sends");
        this.send(SETTINGS, 0, 0, &[]);
        this
    }

    fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
        let head = [&length[1..], &[kind, flags], &stream.to_be_bytes()].concat();
        self.0.write_all(&[&head, payload].concat()).expect("sends");
    }

    /// Opens stream 1 with a call. Header fields are literals without indexing (RFC 7541, §6.2.2).
    fn call(&mut self, flags: u8) {
        let fields = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", "/test.Echo/Gather"),
            (":authority", "test"),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
        ];
        let text =
            |text: &str| [&[u8::try_from(text.len()).expect("short")], text.as_bytes()].concat();
        let literal = |(name, value): &(&str, &str)| [vec![0], text(name), text(value)].concat();
        let block: Vec<u8> = fields.iter().flat_map(literal).collect();
        self.send(HEADERS, flags | END_HEADERS, 1, &block);
    }

    fn receive(&mut self) -> Frame {
        let mut head = [0; 9];
        self.0.read_exact(&mut head).expect("a frame");
        let [a, b, c, kind, flags, stream @ ..] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        self.0.read_exact(&mut payload).expect("a payload");
        Frame { kind, flags, stream: u32::from_be_bytes(stream), payload }
    }

    /// Returns the frames of stream 1 that arrive until the server answers a PING sent now.
    fn frames(&mut self) -> Vec<Frame> {
        self.send(PING, 0, 0, b"are you?");
        let mut frames = Vec::new();
        loop {
            match self.receive() {
                Frame { kind: PING, flags: END_STREAM, .. } => return frames,
                frame if frame.stream == 1 => frames.push(frame),
                _ => {}
            }
        }
    }

    /// Returns the frames of the rejection on stream 1, up to the first of the kind `last`, and those
    /// that follow it shortly after.
    fn rejection(&mut self, last: u8) -> Vec<Frame> {
        let (mut frames, start) = (Vec::<Frame>::new(), Instant::now());
        while frames.iter().all(|it| it.kind != last) {
            assert!(start.elapsed() < Duration::from_secs(20), "{frames:?}");
            frames.extend(self.frames());
        }
        frames.extend(self.frames());
        frames
    }
}

/// Returns the servers with their runtimes. Every call to them is denied.
fn servers() -> [(&'static str, SocketAddr, tokio::runtime::Runtime); 2] {
    let layer = || owing(&[quota("1/h")], 1);
    let start = |name, serve: &dyn Fn() -> (SocketAddr, Serving)| {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let (address, serving) = {
            let _inside = runtime.enter();
            serve()
        };
        runtime.spawn(serving);
        (name, address, runtime)
    };
    let tonic = || {
        let (incoming, address) = incoming();
        let server = Server::builder().layer(layer()).serve_with_incoming(Echo, incoming);
        (address, Box::pin(async { drop(server.await) }) as Serving)
    };
    let axum = || {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.set_nonblocking(true).expect("does not block");
        let address = listener.local_addr().expect("an address");
        let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
        let app = Router::new().layer(layer());
        (address, Box::pin(async { drop(axum::serve(listener, app).await) }) as Serving)
    };
    [start("tonic", &tonic), start("axum", &axum)]
}

type Serving = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

fn shape(frames: &[Frame]) -> Vec<(u8, u8)> {
    frames.iter().map(|frame| (frame.kind, frame.flags)).collect()
}

const REJECTED: (u8, u8) = (HEADERS, END_HEADERS | END_STREAM);

#[test]
fn a_rejection_is_one_headers_frame_that_ends_the_stream() {
    for (name, address, _runtime) in servers() {
        let mut connection = Connection::open(address);
        connection.call(END_STREAM);
        assert_eq!(shape(&connection.rejection(HEADERS)), [REJECTED], "{name}");
    }
}

#[test]
fn a_client_that_is_still_sending_is_stopped_without_an_error() {
    for (name, address, _runtime) in servers() {
        let mut connection = Connection::open(address);
        connection.call(0);
        connection.send(DATA, 0, 1, &[0; 5]);
        let frames = connection.rejection(RST_STREAM);
        assert_eq!(shape(&frames), [REJECTED, (RST_STREAM, 0)], "{name}");
        assert_eq!(frames[1].payload, [0; 4], "{name}: NO_ERROR");
        // frames that were still on the way do no harm
        connection.send(DATA, 0, 1, &[0; 5]);
        assert_eq!(shape(&connection.frames()), [], "{name}");
    }
}

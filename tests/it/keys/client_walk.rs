//! Compares the search for the client's address with an independent implementation.
//!
//! The header sets are random, with quoted strings, escapes and several lines. Other tests use
//! chains of proxies whose client is known.
//!
//! `CLIENT_WALKS` is the number of header sets and defaults to 20 000;
//! `scripts/release-check walks` uses 400 000.

use std::net::SocketAddr;

use http::{HeaderName, HeaderValue, Request, header::FORWARDED, request::Parts};
use tower_sluice::ClientIp;

use crate::{bodies::entries::tokens, support::dice::Dice};

const LIST: HeaderName = HeaderName::from_static("x-forwarded-for");
const NETWORKS: [&str; 2] = ["10.0.0.0/8", "2001:db8:5::/48"];

fn walks() -> u64 {
    let text = std::env::var("CLIENT_WALKS").unwrap_or_else(|_| "20000".to_owned());
    text.parse().expect("CLIENT_WALKS is a number")
}

impl Dice {
    fn one_of<'a>(&mut self, choices: &[&'a str]) -> &'a str {
        choices[self.index(choices.len())]
    }

    /// Returns `true` with probability 1 / `bound`.
    fn one_in(&mut self, bound: usize) -> bool {
        self.index(bound) == 0
    }

    fn join(&mut self, parts: &[String]) -> String {
        let separator = self.one_of(&[",", ", ", " ,\t"]);
        parts.join(separator)
    }

    fn proxy(&mut self) -> String {
        match self.index(4) {
            0 => format!("2001:db8:5::{:x}", self.index(9)),
            1 => format!("::ffff:10.0.0.{}", self.index(9)),
            _ => format!("10.{}.0.{}", self.index(2), self.index(9)),
        }
    }

    fn client(&mut self) -> String {
        match self.index(3) {
            0 => format!("2001:db8:{:x}::{:x}", 6 + self.index(9), self.index(9)),
            _ => format!("203.0.113.{}", self.index(256)),
        }
    }

    /// Returns text for a quoted string, as a client may choose it. The text may contain an
    /// element.
    fn chosen(&mut self) -> String {
        let parts =
            ["a", "example.com", ",", ";", "=", "\"", "\\", " ", "for=6.6.6.6", "x=", "\\\""];
        (0..self.index(8)).map(|_| self.one_of(&parts)).collect()
    }

    /// Quotes a text as a correct proxy does.
    fn quoted(&mut self, text: &str) -> String {
        let escape = |c: char| {
            let must = c == '"' || c == '\\';
            if must || self.one_in(9) { format!("\\{c}") } else { c.to_string() }
        };
        format!("\"{}\"", text.chars().map(escape).collect::<String>())
    }

    /// Writes the node of an address as a correct proxy does.
    fn node(&mut self, address: &str) -> String {
        let port = if self.one_in(3) { ":4711" } else { "" };
        let v6 = address.contains(':');
        let text = if v6 { format!("[{address}]{port}") } else { format!("{address}{port}") };
        if v6 || !port.is_empty() || self.one_in(4) { self.quoted(&text) } else { text }
    }

    /// Writes the element of a caller as a correct proxy does.
    fn element(&mut self, caller: &str) -> String {
        let name = self.one_of(&["for", "For", "FOR"]);
        let mut pairs = vec![format!("{name}={}", self.node(caller))];
        for name in ["host", "by", "proto", "x-secret"] {
            if self.one_in(3) {
                let text = self.chosen();
                let pair = format!("{name}={}", self.quoted(&text));
                let at = self.index(pairs.len() + 1);
                pairs.insert(at, pair);
            }
        }
        pairs.join(";")
    }

    /// Returns any element or entry: valid ones, and known attempts to confuse a parser.
    fn any(&mut self, forwarded: bool) -> String {
        let address = if self.one_in(2) { self.proxy() } else { self.client() };
        let odd =
            ["", "unknown", "for=unknown", "for=\"", "for=\"1.2.3.4\"x", "a=\"", "\"", "\\", ";"];
        match self.index(8) {
            0 => self.one_of(&odd).to_owned(),
            1 => self.chosen(),
            2 => format!("for={address};for={address}"),
            3 if forwarded => format!("for={address}"),
            4 if forwarded => {
                let odd = [
                    ";x=a\\b",
                    ";x",
                    ";x=a b",
                    ";\"x\"=a",
                    ";x=\"a\"b",
                    ";x=",
                    ";x y=a",
                    ";;",
                    "\\",
                ];
                format!("{}{}", self.element(&address), self.one_of(&odd))
            }
            _ if forwarded => self.element(&address),
            4 => format!("[{address}]:80"),
            5 => format!("{address}:80"),
            _ => address,
        }
    }

    /// Joins such entries into a line, sometimes with a few changed bytes, and without a line feed.
    fn line(&mut self, forwarded: bool) -> Vec<u8> {
        let most = if self.one_in(50) { 40 } else { 5 };
        let entries: Vec<_> = (0..self.index(most)).map(|_| self.any(forwarded)).collect();
        let mut line = self.join(&entries).into_bytes();
        if self.one_in(100) {
            let blank = vec![b' '; self.index(5_000)];
            let at = self.index(line.len() + 1);
            drop(line.splice(at..at, blank));
        }
        if self.one_in(3) {
            for _ in 0..=self.index(3) {
                let at = self.index(line.len() + 1);
                match self.index(3) {
                    0 => line.truncate(at),
                    1 if at < line.len() => drop(line.remove(at)),
                    _ => line.insert(at, b"\",;=\\ \t\xffx0:[]%"[self.index(14)]),
                }
            }
        }
        line
    }
}

fn request(peer: &str, name: &HeaderName, lines: &[Vec<u8>]) -> Parts {
    let mut parts = Request::new(()).into_parts().0;
    parts.extensions.insert(SocketAddr::new(peer.parse().expect("an address"), 4711));
    for line in lines {
        parts.headers.append(name, HeaderValue::from_bytes(line).expect("a value"));
    }
    parts
}

/// The client sends anything, and each proxy appends its caller to the last line or adds a line.
#[test]
fn correct_proxies_lead_to_the_client_or_to_an_error_that_it_caused() {
    let networks = || ClientIp::behind(NETWORKS).expect("networks");
    let mut random = Dice(16);
    let (mut found, mut denied) = (0_u64, 0_u64);
    for _ in 0..walks() {
        let forwarded = !random.one_in(4);
        let (of, name) =
            if forwarded { (networks().forwarded(), FORWARDED) } else { (networks(), LIST) };
        let client = random.client();
        let mut lines: Vec<_> = (0..random.index(3)).map(|_| random.line(forwarded)).collect();
        // the header to which the proxies append
        let mut sent = lines.last().cloned().filter(|_| random.index(4) > 0);
        let mut caller = client.clone();
        for _ in 0..=random.index(3) {
            let own = if forwarded { random.element(&caller) } else { caller.clone() };
            match lines.last_mut().filter(|_| sent.is_some()) {
                Some(last) => {
                    last.extend_from_slice(random.one_of(&[",", ", "]).as_bytes());
                    last.extend_from_slice(own.as_bytes());
                }
                None => lines.push(own.into_bytes()),
            }
            if sent.is_none() && !random.one_in(4) {
                // the next proxy appends to this line, which holds nothing from the client
                sent = Some(Vec::new());
            }
            caller = random.proxy();
        }
        let parts = request(&caller, &name, &lines);
        let open = forwarded && sent.is_some_and(|sent| tokens(&sent).is_none());
        let long = forwarded && lines.iter().any(|line| line.len() > 2_000);
        match of.address(&parts) {
            Ok(address) => {
                let known: std::net::IpAddr = client.parse().expect("an address");
                assert_eq!(address, known.to_canonical(), "{lines:?}");
                found += 1;
            }
            Err(error) => {
                assert_eq!(error.status(), 400);
                assert!(open || long, "{error}: {}", lines.concat().escape_ascii());
                denied += 1;
            }
        }
    }
    assert!(found > walks() / 2 && denied > walks() / 100, "{found} {denied}");
}

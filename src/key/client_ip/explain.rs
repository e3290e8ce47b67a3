//! The text that explains the address of a client.

use super::{Client, ClientIp, RequestHead, Trusted, UnknownClient, Unreadable, peer_address};

impl ClientIp {
    /// Explains which address is the client, and why. Use this text to set up a proxy.
    ///
    /// The text is for people and may change. It contains no data of the request except addresses.
    /// Serve it to operators only, because it contains the trusted networks.
    ///
    /// ```
    /// use std::net::SocketAddr;
    /// use http::Request;
    /// use tower_sluice::ClientIp;
    ///
    /// let client = ClientIp::behind(["10.0.0.0/8"])?;
    /// let peer: SocketAddr = "10.0.0.1:4711".parse().unwrap();
    /// let request = Request::get("/").header("x-forwarded-for", "192.0.2.1, 203.0.113.9, 10.0.0.2");
    /// let request = request.extension(peer).body(()).unwrap();
    /// assert_eq!(
    ///     client.explain(&request),
    ///     "client: 203.0.113.9, counted as 203.0.113.9/32\n\
    ///      peer: 10.0.0.1, trusted (10.0.0.0/8)\n\
    ///      x-forwarded-for, from the right:\n  \
    ///        10.0.0.2, trusted (10.0.0.0/8)\n  \
    ///        203.0.113.9, not trusted\n\
    ///      why: the first entry that is not trusted is the client; entries to its left are not read\n"
    /// );
    /// # Ok::<(), tower_sluice::key::NetworkError>(())
    /// ```
    #[must_use]
    pub fn explain<'a>(&self, head: impl Into<RequestHead<'a>>) -> String {
        let head = head.into();
        let (name, peer) = (self.source.name(), peer_address(&head));
        let mut entries = Vec::new();
        let found = self.find(&head, |address| entries.push(address));
        let trust = |address| match &self.trusted {
            Trusted::Networks(networks) => match networks.find(address) {
                Some(network) => format!("{address}, trusted ({network})"),
                None => format!("{address}, not trusted"),
            },
            Trusted::Hops(_) | Trusted::AnyPeer => address.to_string(),
        };
        let why = match (&self.trusted, &found) {
            (_, Err(_)) => "the request has no usable client".to_owned(),
            (Trusted::Networks(networks), _) if peer.is_some_and(|it| !networks.hold(it)) => {
                let there = if head.headers.contains_key(name) { "not read" } else { "missing" };
                format!(
                    "a peer that is not trusted is the client, and {name} is {there}; if the peer \
                     is your proxy, trust it with ClientIp::behind"
                )
            }
            (Trusted::Hops(_), _) => format!("entry {} from the right is the client", entries.len()),
            _ if entries.is_empty() => format!("{name} is missing, so the peer is the client"),
            (Trusted::AnyPeer, _) => "the leftmost entry is the client, from any peer".to_owned(),
            (_, Ok(client)) if client.is_confirmed => {
                "the first entry that is not trusted is the client; entries to its left are not read"
                    .to_owned()
            }
            _ => "all entries are trusted, so the leftmost is the client".to_owned(),
        };
        let client = match found {
            Ok(Client { address, .. }) => {
                format!("{address}, counted as {}", self.prefix.network(address))
            }
            Err(UnknownClient::Unreadable(fault)) if self.unreadable == Unreadable::Share => {
                format!("none, shares one account, because header {name} {fault}")
            }
            Err(unknown) => {
                let error = self.error(unknown);
                format!("none, status {}: {error}", error.status().as_u16())
            }
        };
        let peer = peer.map_or("unknown".to_owned(), trust);
        let mut text = format!("client: {client}\npeer: {peer}\n");
        if !entries.is_empty() {
            text += &format!("{name}, from the right:\n");
            entries.into_iter().for_each(|entry| text += &format!("  {}\n", trust(entry)));
        }
        text + &format!("why: {why}\n")
    }
}

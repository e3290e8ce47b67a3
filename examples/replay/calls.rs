//! Converts lines to calls: the head of the request, as far as a log has it and rules read it.

use crate::{
    entry::{Entry, Fault, Instants, Reason},
    rule::{KeyFlag, RuleFlag},
    simulate::Call,
};
use axum::http::{HeaderName, HeaderValue, Request, header};

const USER: HeaderName = HeaderName::from_static("x-remote-user");
const FORWARDED: HeaderName = HeaderName::from_static("x-forwarded-for");

/// Converts lines to calls.
pub(crate) struct Calls {
    /// The headers that rules read.
    headers: Vec<HeaderName>,
    instants: Instants,
}

impl Calls {
    /// # Errors
    ///
    /// Fails if a rule reads something that no log has; the error names the available fields.
    pub(crate) fn of(rules: &[RuleFlag]) -> Result<Self, String> {
        let mut headers = Vec::new();
        for rule in rules {
            match &rule.key {
                KeyFlag::Peer | KeyFlag::Everyone => {}
                KeyFlag::Client => headers.push(FORWARDED),
                KeyFlag::Header(name)
                    if [USER, header::REFERER, header::USER_AGENT].contains(name) =>
                {
                    headers.push(name.clone());
                }
                KeyFlag::Header(name) => {
                    return Err(format!(
                        "rule {}: key is header:{name}, which a log does not have; give \
                         header:user-agent, header:referer or header:x-remote-user (the user of \
                         the log)",
                        rule.settings.name
                    ));
                }
                KeyFlag::Route => {
                    return Err(format!(
                        "rule {}: key is route, and a log does not have the templates of routes; \
                         give peer, client, header:NAME or everyone",
                        rule.settings.name
                    ));
                }
            }
        }
        headers.sort_unstable_by(|one, other| one.as_str().cmp(other.as_str()));
        headers.dedup();
        Ok(Self { headers, instants: Instants::default() })
    }

    pub(crate) fn read<'a>(&mut self, line: &'a [u8]) -> Result<Call, Fault<'a>> {
        let entry = Entry::read(line, &mut self.instants)?;
        let (mut parts, ()) = Request::new(()).into_parts();
        for name in &self.headers {
            let text = match name {
                name if *name == USER => entry.user,
                name if *name == FORWARDED => entry.forwarded,
                name if *name == header::REFERER => entry.referer,
                _ => entry.agent,
            };
            if let Some(text) = text {
                let value = HeaderValue::from_bytes(text);
                parts.headers.insert(name, value.map_err(|_| (Reason::Header, text))?);
            }
        }
        (parts.method, parts.uri) = (entry.method, entry.target);
        parts.extensions.insert(entry.peer);
        Ok(Call { at: entry.at, parts })
    }
}

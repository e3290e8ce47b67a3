//! Routes of `by_route`: a path as in the router, with or without a method.

use std::fmt;

use http::Method;

use super::RuleName;
use crate::key::RequestHead;

/// The methods of [RFC 9110](https://www.rfc-editor.org/rfc/rfc9110#section-9.1), and `PATCH`.
const METHODS: [Method; 9] = [
    Method::GET,
    Method::HEAD,
    Method::POST,
    Method::PUT,
    Method::DELETE,
    Method::PATCH,
    Method::OPTIONS,
    Method::TRACE,
    Method::CONNECT,
];

/// A path template with an optional method.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Route {
    method: Option<Method>,
    pub(super) path: Box<str>,
    /// `true` for a path of a gRPC service, whose routes apply to all HTTP methods.
    grpc: bool,
}

impl Route {
    pub(super) fn new(method: Option<&str>, path: &str) -> Result<Self, RouteError> {
        let known = method.map(|name| METHODS.into_iter().find(|known| known == name).ok_or(name));
        let method = known.transpose().map_err(|name| {
            let all: Vec<_> = METHODS.iter().map(Method::as_str).collect();
            let all = all.join(", ");
            RouteError(format!(
                "route \"{name} {path}\": method {name:?} is unknown; give one of {all}, or only the \
                 path, for every method (any_method)"
            ))
        })?;
        let route = Self { method, path: path.into(), grpc: is_grpc(path) };
        match path_fault(path) {
            None => Ok(route),
            Some(fault) => Err(RouteError(format!("route \"{route}\": path {path:?} {fault}"))),
        }
    }

    /// Parses `"POST /url"`, or `"/url"` for all methods.
    #[cfg(feature = "serde")]
    pub(super) fn read(text: &str) -> Result<Self, RouteError> {
        match text.split_once(' ') {
            Some((method, path)) => Self::new(Some(method), path.trim()),
            None => Self::new(None, text),
        }
    }

    /// Returns the name of the rule for this route.
    pub(super) fn name(&self) -> RuleName {
        RuleName::derived(&self.to_string())
    }

    /// Returns `true` if the route applies to every method that has no route of its own.
    pub(super) fn takes_all_methods(&self) -> bool {
        self.method.is_none() || self.grpc
    }

    /// Returns the rank of the match, from 0 for the best, or `None` without a match.
    pub(super) fn rank(&self, head: &RequestHead<'_>, matched: Option<&str>) -> Option<u8> {
        let path = match matched {
            // A router may match a whole service, and tonic matches nothing.
            _ if self.grpc && head.uri.path() == &*self.path => 0,
            Some(matched) if matched == &*self.path => 1,
            _ => return None,
        };
        let method = match &self.method {
            Some(method) if *method == head.method => 0,
            // axum answers `HEAD` with the handler of `GET`.
            Some(method) if *method == Method::GET && head.method == Method::HEAD => 1,
            _ if self.takes_all_methods() => 2,
            _ => return None,
        };
        Some(3 * path + method)
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.method {
            Some(method) => write!(f, "{method} {}", self.path),
            None => f.write_str(&self.path),
        }
    }
}

/// Returns `true` for `/package.Service/Method` and `/package.Service/{*rest}`.
///
/// A service without a package may also be a plain path.
fn is_grpc(path: &str) -> bool {
    let name = |name: &str| {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        !name.is_empty() && name.bytes().all(plain) && !name.as_bytes()[0].is_ascii_digit()
    };
    let parts = path.strip_prefix('/').and_then(|path| path.split_once('/'));
    parts.is_some_and(|(service, method)| {
        let whole = method.starts_with('{') && !method.contains('/');
        service.contains('.') && service.split('.').all(name) && (whole || name(method))
    })
}

/// Returns the fault of a path that no request can have, with the fix.
fn path_fault(path: &str) -> Option<String> {
    if !path.starts_with('/') {
        return Some("does not start with a slash; add it".into());
    }
    let foreign = |c: &char| c.is_ascii_control() || matches!(c, ' ' | '?' | '#');
    if let Some(c) = path.chars().find(foreign) {
        return Some(format!("contains {c:?}; drop it, with any query or fragment"));
    }
    let old = path.split('/').find(|segment| segment.starts_with([':', '*']))?;
    Some(format!(
        "contains {old:?}, a parameter in the syntax of axum 0.7; write {{name}} or {{*name}}"
    ))
}

/// Error for a route of [`by_route`](super::by_route).
///
/// No request can match the route, or another route has the same method and path.
///
/// See [troubleshooting](crate::guide::troubleshooting#errors).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteError(String);

impl RouteError {
    pub(super) fn duplicate(route: &Route) -> Self {
        Self(format!("route \"{route}\" is given twice; drop one"))
    }
}

impl fmt::Display for RouteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for RouteError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grpc_paths_have_a_package_a_service_and_a_method() {
        for (path, grpc) in [
            ("/hello.Greeter/SayHello", true),
            ("/grpc.health.v1.Health/{*rest}", true),
            ("/a.b/{method}", true),
            ("/users/list", false),
            ("/v1.0/users", false),
            ("/a..b/c", false),
            ("/a.b", false),
            ("/a.b/c/d", false),
            ("/a.b/", false),
            ("/a.b/{x}/d", false),
        ] {
            assert_eq!(is_grpc(path), grpc, "{path}");
        }
    }
}

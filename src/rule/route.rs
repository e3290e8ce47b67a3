//! Routes of `by_route`: a method and a path template in the syntax of axum.

use std::fmt;

use http::Method;

use super::RuleName;
use crate::key::RequestHead;

/// A path template with an optional method.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RouteTemplate {
    method: Option<Method>,
    template: Box<str>,
    grpc: Option<GrpcPath>,
}

/// The form of a gRPC path. A route with a gRPC path applies to all HTTP methods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GrpcPath {
    /// `/package.Service/Method`.
    Method,
    /// `/package.Service/{*rest}`, for all methods of a service.
    ///
    /// The number is the length of the path before the brace.
    Service(usize),
}

impl RouteTemplate {
    pub(super) fn new(method: Option<Method>, template: &str) -> Result<Self, RouteError> {
        let error = |fix| RouteError(format!("route {template:?}: {fix}"));
        check(template).map_err(error)?;
        if let Some(method) = &method {
            check_method(method).map_err(error)?;
        }
        Ok(Self { method, template: template.into(), grpc: GrpcPath::of(template) })
    }

    /// Parses `"POST /url"`, or `"/url"` for all methods.
    #[cfg(feature = "serde")]
    pub(super) fn read(text: &str) -> Result<Self, RouteError> {
        let Some((method, template)) = text.split_once(' ') else { return Self::new(None, text) };
        let known = Method::from_bytes(method.as_bytes());
        let method =
            known.map_err(|_| RouteError(format!("route {text:?}: {method:?} is not a method")))?;
        Self::new(Some(method), template.trim())
    }

    /// Returns the name of the rule for this route.
    pub(super) fn name(&self) -> RuleName {
        RuleName::derived(&self.to_string())
    }

    /// Returns `true` if the route applies to every method that has no route of its own.
    pub(super) fn takes_all_methods(&self) -> bool {
        self.method.is_none() || self.grpc.is_some()
    }

    /// Returns `true` if both paths are equal except for the names of parameters.
    pub(super) fn has_same_path(&self, other: &Self) -> bool {
        same_template(&self.template, &other.template)
    }

    /// Returns `true` if both routes match the same requests.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.method == other.method && self.has_same_path(other)
    }

    pub(super) fn template(&self) -> &str {
        &self.template
    }

    /// Returns the rank of the match, from 0 for the best, or `None` without a match.
    pub(super) fn rank(&self, head: &RequestHead<'_>, matched: Option<&str>) -> Option<u8> {
        let path = match self.grpc {
            Some(GrpcPath::Method) if head.uri.path() == &*self.template => 0,
            _ if matched.is_some_and(|matched| same_template(&self.template, matched)) => 1,
            Some(GrpcPath::Service(length))
                if head.uri.path().strip_prefix(&self.template[..length]).is_some() =>
            {
                2
            }
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

    /// Returns `true` if a router would match the path.
    pub(super) fn matches_path(&self, path: &str) -> bool {
        let mut left = path.split('/');
        for segment in self.template.split('/') {
            let Some(there) = left.next() else { return false };
            let before = segment.split_once('{').filter(|(_, name)| !name.starts_with('{'));
            let fits = match before {
                None => there == segment,
                Some((before, name)) if name.starts_with('*') => {
                    return there.len() > before.len() && there.starts_with(before)
                        || there == before && left.next().is_some();
                }
                Some((before, _)) => there.len() > before.len() && there.starts_with(before),
            };
            if !fits {
                return false;
            }
        }
        left.next().is_none()
    }
}

impl fmt::Display for RouteTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.method {
            Some(method) => write!(f, "{method} {}", self.template),
            None => f.write_str(&self.template),
        }
    }
}

impl GrpcPath {
    /// Parses a template such as `/package.Service/Method`.
    ///
    /// Returns `None` for a service without a package, because the template may also be a plain
    /// path.
    fn of(template: &str) -> Option<Self> {
        let (service, method) = template.strip_prefix('/')?.split_once('/')?;
        let part = |part: &str| {
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
            part.bytes().all(plain) && !part.starts_with(|c: char| c.is_ascii_digit())
        };
        let name = |name: &str| !name.is_empty() && part(name);
        if !service.contains('.') || !service.split('.').all(name) {
            None
        } else if method.starts_with('{') && !method.contains('/') {
            Some(Self::Service(template.len() - method.len()))
        } else {
            name(method).then_some(Self::Method)
        }
    }
}

/// Returns `true` if the templates are equal except for the names of parameters.
fn same_template(a: &str, b: &str) -> bool {
    let (mut a, mut b) = (a.as_bytes(), b.as_bytes());
    loop {
        (a, b) = match (a, b) {
            ([], []) => return true,
            // An escaped brace.
            ([b'{', b'{', a @ ..], [b'{', b'{', b @ ..]) => (a, b),
            ([b'{', x, after_a @ ..], [b'{', y, after_b @ ..]) => {
                if (*x == b'*') != (*y == b'*') || *x == b'{' || *y == b'{' {
                    return false;
                }
                (after_parameter(after_a), after_parameter(after_b))
            }
            ([x, a @ ..], [y, b @ ..]) if x == y => (a, b),
            _ => return false,
        };
    }
}

/// Returns the text after the closing brace of a parameter.
fn after_parameter(name: &[u8]) -> &[u8] {
    let end = name.iter().position(|byte| *byte == b'}');
    end.map_or(&[], |end| &name[end + 1..])
}

/// Returns an error, with the fix, for a template that no request can match.
fn check(template: &str) -> Result<(), String> {
    if !template.starts_with('/') {
        return Err("it does not start with a slash; give a path, as \"/url/{id}\"".into());
    }
    let foreign = |c: char| c.is_ascii_control() || matches!(c, ' ' | '?' | '#');
    if let Some(c) = template.chars().find(|c| foreign(*c)) {
        return Err(format!("a path cannot contain {c:?}; drop it, with any query or fragment"));
    }
    for segment in template[1..].split('/') {
        for (old, new) in [(':', ""), ('*', "*")] {
            if let Some(name) = segment.strip_prefix(old) {
                return Err(format!("{segment:?} is the syntax of axum 0.7; use {{{new}{name}}}"));
            }
        }
    }
    check_braces(template)
}

fn check_braces(template: &str) -> Result<(), String> {
    let mut rest = template;
    while let Some(at) = rest.find(['{', '}']) {
        let brace = &rest[at..=at];
        rest = &rest[at + 1..];
        if let Some(escaped) = rest.strip_prefix(brace) {
            rest = escaped;
            continue;
        }
        let parameter = if brace == "{" { rest.split_once('}') } else { None };
        let Some((name, after)) = parameter else {
            return Err(format!("{brace:?} is unbalanced; write {{name}}, or {brace}{brace}"));
        };
        let plain = name.strip_prefix('*').unwrap_or(name);
        if plain.is_empty() || plain.contains(['{', '*', '/']) {
            return Err(format!("{{{name}}} is not a parameter; write {{name}} or {{*name}}"));
        }
        if !after.is_empty() && (!after.starts_with('/') || name.starts_with('*')) {
            return Err(format!("{after:?} follows {{{name}}}, which no router accepts; drop it"));
        }
        rest = after;
    }
    Ok(())
}

/// Returns an error for a standard method in lower case, because methods are case-sensitive.
fn check_method(method: &Method) -> Result<(), String> {
    let upper = method.as_str().to_ascii_uppercase();
    let known = ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT"];
    if known.contains(&&*upper) && upper != method.as_str() {
        return Err(format!("method {:?} is never sent; write {upper}", method.as_str()));
    }
    Ok(())
}

/// Error for a route of [`by_route`](super::by_route).
///
/// No request can match the route, or another route has the same method and path.
///
/// See [troubleshooting](crate::guide::troubleshooting#errors).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteError(String);

impl RouteError {
    pub(super) fn duplicate(one: &RouteTemplate, other: &RouteTemplate) -> Self {
        Self(format!("route \"{other}\": it is the same as \"{one}\"; drop one"))
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

    fn route(text: &str) -> RouteTemplate {
        let (method, template) = text.split_once(' ').expect("a method and a template");
        RouteTemplate::new(Method::from_bytes(method.as_bytes()).ok(), template).expect("a route")
    }

    #[test]
    fn templates_that_differ_only_in_parameter_names_are_equal() {
        for (a, b, one) in [
            ("/url", "/url", true),
            ("/url/{id}", "/url/{name}", true),
            ("/a/{x}/b/{*rest}", "/a/{y}/b/{*all}", true),
            ("/v-{x}", "/v-{long}", true),
            ("/{{x}}", "/{{x}}", true),
            ("/{{x}}", "/{x}", false),
            ("/{{x}}", "/{{y}}", false),
            ("/url/{id}", "/url/{*id}", false),
            ("/url/{id}", "/url/{id}/b", false),
            ("/url/{id}", "/url/id", false),
            ("/url", "/url/", false),
            ("/", "", false),
        ] {
            assert_eq!((same_template(a, b), same_template(b, a)), (one, one), "{a} {b}");
        }
    }

    #[test]
    fn grpc_paths_have_a_package_a_service_and_a_method() {
        for (template, grpc) in [
            ("/hello.Greeter/SayHello", Some(GrpcPath::Method)),
            ("/grpc.health.v1.Health/{*rest}", Some(GrpcPath::Service(23))),
            ("/a.b/{method}", Some(GrpcPath::Service(5))),
            ("/users/list", None),
            ("/v1.0/users", None),
            ("/a..b/c", None),
            ("/a.b", None),
            ("/a.b/c/d", None),
            ("/a.b/", None),
            ("/a.b/{x}/d", None),
        ] {
            assert_eq!(GrpcPath::of(template), grpc, "{template}");
        }
    }

    #[test]
    fn paths_match_as_in_a_router() {
        for (template, path, fits) in [
            ("/url", "/url", true),
            ("/url", "/url/", false),
            ("/url/{id}", "/url/7", true),
            ("/url/{id}", "/url/", false),
            ("/url/{id}", "/url/7/8", false),
            ("/v-{x}", "/v-1", true),
            ("/v-{x}", "/v-", false),
            ("/f/{*rest}", "/f/a/b", true),
            ("/f/{*rest}", "/f/", false),
            ("/f/{*rest}", "/f", false),
            ("/{*rest}", "//a", true),
        ] {
            assert_eq!(
                route(&format!("GET {template}")).matches_path(path),
                fits,
                "{template} {path}"
            );
        }
    }
}

//! The bearer token of a request, as a key.

use http::{StatusCode, header::AUTHORIZATION};

use super::{Key, KeyError, KeyExtractor, RequestHead};

/// Extractor for the token of a header `Authorization: Bearer <token>` ([RFC
/// 6750](https://www.rfc-editor.org/rfc/rfc6750#section-2.1)).
///
/// One token is one key, however the header is spelled: the scheme is compared without regard to case,
/// and any number of spaces may follow it ([RFC 9110,
/// §11.4](https://www.rfc-editor.org/rfc/rfc9110#section-11.4)). In contrast, `HeaderKey` of
/// `authorization` would give each spelling an account.
///
/// A request without the header, with another scheme, or without a token, has no identity. A request
/// with two such headers, or with a character that no token has, is rejected with 400.
///
/// ```
/// use http::Request;
/// use tower_sluice::{KeyExtractor, RequestHead, key::BearerKey};
///
/// for spelling in ["Bearer s3cret", "bearer s3cret", "BEARER   s3cret "] {
///     let request = Request::get("/").header("authorization", spelling).body(())?;
///     let key = BearerKey.extract(&RequestHead::from(&request));
///     assert_eq!(key, Ok(Some("s3cret".into())));
/// }
/// # Ok::<(), http::Error>(())
/// ```
///
/// # Limitations
///
/// - A token is an identity only after it was verified: a client that invents tokens is not limited.
///   Limit verified users by an [`ExtensionKey`](super::ExtensionKey), and everybody by address.
/// - One user may have many tokens, and an account for each.
/// - A signed token may be longer than a key: raise [`Rule::max_key_len`](crate::Rule::max_key_len).
/// - A shared store, such as Redis, gets the token in plain form.
#[derive(Clone, Copy, Debug, Default)]
pub struct BearerKey;

impl KeyExtractor for BearerKey {
    fn extract(&self, head: &RequestHead<'_>) -> Result<Option<Key>, KeyError> {
        let mut values = head.headers.get_all(AUTHORIZATION).iter();
        let value = values.next().map_or(&[][..], |value| value.as_bytes());
        if values.next().is_some() {
            return Err(unusable("header authorization is sent more than once"));
        }
        let Some(token) = token(value.trim_ascii()) else {
            return Err(KeyError::missing("bearer token in authorization"));
        };
        if !token.iter().all(is_in_token) {
            return Err(unusable(
                "header authorization has a bearer token with an invalid character",
            ));
        }
        Ok(Some(token.into()))
    }
}

/// Returns the credentials of the scheme `Bearer`, if there are any.
fn token(credentials: &[u8]) -> Option<&[u8]> {
    let (scheme, rest) = credentials.split_at_checked("bearer".len())?;
    let (space, rest) = rest.split_first()?;
    if !scheme.eq_ignore_ascii_case(b"bearer") || !space.is_ascii_whitespace() {
        return None;
    }
    let token = rest.trim_ascii_start();
    (!token.is_empty()).then_some(token)
}

/// Returns `true` for a character of a `b64token`.
fn is_in_token(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~+/=".contains(byte)
}

fn unusable(why: &'static str) -> KeyError {
    KeyError::unusable(StatusCode::BAD_REQUEST, why)
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    /// Returns the key of a request with these headers.
    fn key(values: &[&[u8]]) -> Result<Option<Key>, KeyError> {
        let mut request = Request::new(());
        for value in values {
            let value = http::HeaderValue::from_bytes(value).expect("a value");
            request.headers_mut().append(AUTHORIZATION, value);
        }
        BearerKey.extract(&RequestHead::from(&request))
    }

    #[test]
    fn each_spelling_of_a_token_is_one_key() {
        for spelling in [
            "Bearer aB1-._~+/=",
            "bearer aB1-._~+/=",
            "bEARER      aB1-._~+/=",
            " Bearer \t aB1-._~+/= ",
            "BEARER\taB1-._~+/=",
        ] {
            assert_eq!(
                key(&[spelling.as_bytes()]),
                Ok(Some("aB1-._~+/=".into())),
                "{spelling}"
            );
        }
        assert_ne!(
            key(&[b"Bearer a"]),
            key(&[b"Bearer A"]),
            "the token itself has a case"
        );
    }

    #[test]
    fn other_credentials_are_missing() {
        let others = [
            "",
            " ",
            "Bearer",
            "Bearer ",
            "bearer\t ",
            "Basic YTpi",
            "Bearers a",
            "a",
            "Bearer,a",
        ];
        for other in others {
            let error = key(&[other.as_bytes()]).expect_err(other);
            assert!(error.is_missing(), "{other}: {error}");
        }
        assert!(key(&[]).expect_err("no header").is_missing());
    }

    #[test]
    fn credentials_that_servers_read_differently_are_rejected() {
        for other in [
            &b"Bearer a b"[..],
            b"Bearer a,b",
            b"Bearer \"a\"",
            b"Bearer a\xff",
            b"Bearer a\tb",
        ] {
            let error = key(&[other]).expect_err("an invalid token");
            assert!(!error.is_missing() && error.status() == 400, "{error}");
        }
        let twice = key(&[b"Bearer a", b"Bearer a"]).expect_err("two headers");
        assert!(!twice.is_missing());
    }
}

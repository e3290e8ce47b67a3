//! Names of rules.

use std::{
    collections::HashMap,
    fmt,
    hash::{Hash, Hasher},
    str::FromStr,
    sync::{LazyLock, Mutex, PoisonError},
};

/// Name of a rule: 1 to 64 printable ASCII characters, by convention `[a-z0-9_-]`.
///
/// A rule with a new name starts with new accounts. Names appear in header fields, so a name must
/// not contain secrets or personal data.
///
/// Names stay in memory for the life of the process. Take names from code or configuration, never
/// from a request.
///
/// ```
/// use tower_sluice::rule::RuleName;
///
/// let name: RuleName = "login".parse()?;
/// assert_eq!(name.as_str(), "login");
/// assert_eq!(RuleName::default().as_str(), "default");
/// assert!("caf\u{e9}".parse::<RuleName>().is_err());
/// # Ok::<(), tower_sluice::rule::NameError>(())
/// ```
#[derive(Clone, Copy)]
pub struct RuleName(&'static Interned);

struct Interned {
    name: &'static str,
    hash: u64,
}

static NAMES: LazyLock<Mutex<HashMap<&'static str, RuleName>>> = LazyLock::new(Mutex::default);
static DEFAULT: LazyLock<RuleName> = LazyLock::new(|| RuleName::intern("default"));

impl RuleName {
    /// Interns a name.
    ///
    /// # Errors
    ///
    /// Fails if `name` is empty, is longer than 64 characters, or contains a character that is not
    /// printable ASCII. The error contains that character and its position.
    pub fn new(name: &str) -> Result<Self, NameError> {
        if is_valid(name) {
            Ok(Self::intern(name))
        } else {
            Err(NameError(name.to_owned()))
        }
    }

    /// Derives a name from any text.
    ///
    /// Characters outside printable ASCII are percent-encoded. A name above 64 characters is cut
    /// and ends with a hash of the text.
    #[cfg(feature = "axum")]
    pub(crate) fn derived(text: &str) -> Self {
        use fmt::Write;

        let mut name = String::new();
        for byte in text.bytes() {
            match byte {
                b' '..=b'~' => name.push(byte.into()),
                _ => drop(write!(name, "%{byte:02X}")),
            }
        }
        if name.len() > LONGEST {
            let hash = format!("~{:016x}", fnv(text.as_bytes()));
            name.truncate(LONGEST - hash.len());
            name.push_str(&hash);
        }
        Self::intern(if name.is_empty() { "default" } else { &name })
    }

    /// Returns the name as a string.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        self.0.name
    }

    /// Returns the name of the shares of this pool, as a rule of its own.
    pub(crate) fn share_name(self) -> Result<Self, NameError> {
        Self::new(&format!("{self}{OF_SHARES}"))
    }

    /// Returns the name of the pool whose shares have this name, if it is one of shares.
    pub(crate) fn pool_name(self) -> Option<&'static str> {
        self.0.name.strip_suffix(OF_SHARES)
    }

    /// Returns a hash of the name that is equal in all processes.
    pub(crate) fn hash64(self) -> u64 {
        self.0.hash
    }

    fn intern(name: &str) -> Self {
        let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = names.get(name) {
            return *known;
        }
        let name: &'static str = Box::leak(name.into());
        let made = Self(Box::leak(Box::new(Interned {
            name,
            hash: fnv(name.as_bytes()),
        })));
        names.insert(name, made);
        made
    }
}

/// The end of the name of the shares of a pool.
const OF_SHARES: &str = ".share";
/// The maximum length of a name, in characters.
const LONGEST: usize = 64;

/// Computes the FNV-1a hash. Names come from the operator, so a simple hash is enough.
fn fnv(bytes: &[u8]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in bytes {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    hash
}

pub(crate) const fn is_valid(name: &str) -> bool {
    let bytes = name.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        if bytes[at] < 0x20 || bytes[at] > 0x7e {
            return false;
        }
        at += 1;
    }
    !bytes.is_empty() && bytes.len() <= LONGEST
}

/// Returns the name `default`.
impl Default for RuleName {
    fn default() -> Self {
        *DEFAULT
    }
}

impl PartialEq for RuleName {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.0, other.0)
    }
}

impl Eq for RuleName {}

impl Hash for RuleName {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.0.hash);
    }
}

impl FromStr for RuleName {
    type Err = NameError;

    fn from_str(name: &str) -> Result<Self, NameError> {
        Self::new(name)
    }
}

impl fmt::Display for RuleName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.name)
    }
}

impl fmt::Debug for RuleName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.0.name, f)
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for RuleName {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0.name)
    }
}

/// Validates the name.
#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for RuleName {
    fn deserialize<D: serde::Deserializer<'de>>(name: D) -> Result<Self, D::Error> {
        let name = String::deserialize(name)?;
        Self::new(&name).map_err(serde::de::Error::custom)
    }
}

/// Error for an invalid name.
///
/// See [troubleshooting](crate::guide::troubleshooting#errors).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameError(String);

impl fmt::Display for NameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.0;
        match name.char_indices().find(|(_, c)| !(' '..='~').contains(c)) {
            Some((at, c)) => {
                write!(
                    f,
                    "name {name:?}: {c:?} at byte {at} is not printable ASCII; drop it"
                )
            }
            None if name.is_empty() => {
                f.write_str("name \"\": it is empty; give 1 to 64 characters")
            }
            None => write!(
                f,
                "name {name:?}: {} characters; give at most 64",
                name.len()
            ),
        }
    }
}

impl std::error::Error for NameError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_names_are_one() {
        let built = String::from("lo") + "gin";
        assert_eq!(RuleName::new("login"), RuleName::new(&built));
        assert_ne!(RuleName::new("login"), RuleName::new("logout"));
    }

    #[cfg(feature = "axum")]
    #[test]
    fn a_derived_name_is_the_text_or_begins_like_it_and_differs_with_it() {
        assert_eq!(RuleName::derived("POST /url").as_str(), "POST /url");
        assert_eq!(
            RuleName::derived("GET /caf\u{e9}").as_str(),
            "GET /caf%C3%A9"
        );
        let long = |end: char| format!("GET /{}{end}", "a".repeat(60));
        let (a, b) = (RuleName::derived(&long('a')), RuleName::derived(&long('b')));
        assert_ne!(a, b);
        assert_eq!(a, RuleName::derived(&long('a')));
        assert!(
            a.as_str().starts_with("GET /aaaa") && a.as_str().len() == 64,
            "{a}"
        );
        assert!(is_valid(&a.to_string()));
        assert_eq!(RuleName::derived(&"a".repeat(64)).as_str(), "a".repeat(64));
        assert!(is_valid(RuleName::derived(&"\u{20ac}".repeat(50)).as_str()));
    }

    #[test]
    fn errors_name_the_character_and_its_position() {
        let text = |name: &str| RuleName::new(name).unwrap_err().to_string();
        assert!(text("caf\u{e9}").contains("'\u{e9}' at byte 3"));
        assert!(text("a\nb").contains("'\\n' at byte 1"));
        assert!(text("").contains("empty"));
        assert!(text(&"x".repeat(65)).contains("65 characters"));
        assert!(
            RuleName::new("a \"quoted\\\" name").is_ok(),
            "headers escape quotes and backslashes"
        );
    }
}

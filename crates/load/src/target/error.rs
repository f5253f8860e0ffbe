//! Why a URL cannot be used, with a suggestion.

use std::fmt;
use std::io;

/// Why a URL cannot be used. `Display` has a suggestion.
#[derive(Debug)]
pub enum TargetError {
    /// Nothing was given.
    Empty,
    /// No scheme in front.
    NoScheme {
        /// The URL with a scheme.
        meant: String,
    },
    /// A scheme that is not HTTP.
    OtherScheme {
        /// The text as written.
        scheme: String,
    },
    /// A name or password before the host.
    UserInformation,
    /// Nothing between `http://` and the path.
    NoHost,
    /// A host that is neither a name nor an address.
    BadHost {
        /// The text as written.
        host: String,
    },
    /// An invalid port.
    BadPort {
        /// The text as written.
        port: String,
    },
    /// A character that cannot be in a URL.
    BadCharacter {
        /// The character.
        character: char,
        /// Its position, counted from one.
        column: usize,
    },
    /// A part after a `#`.
    Fragment,
    /// The resolver does not know the name, or could not be reached.
    Unresolved {
        /// The name.
        host: String,
        /// The resolver's error.
        error: io::Error,
    },
    /// The resolver knows the name, without an address.
    NoAddress {
        /// The name.
        host: String,
    },
}

impl fmt::Display for TargetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TargetError::Empty => f.write_str("the URL is empty; write one like http://127.0.0.1:8080/"),
            TargetError::NoScheme { meant } => write!(f, "the URL has no scheme; write {meant}"),
            TargetError::OtherScheme { scheme } => {
                write!(f, "unsupported scheme {:?}; use a URL that begins with http:// or https://", shown(scheme))
            }
            TargetError::UserInformation => f.write_str(
                "the URL has a user name before its host; remove it up to the @, and send an Authorization header",
            ),
            TargetError::NoHost => f.write_str("the URL has no host; write one like http://127.0.0.1:8080/"),
            TargetError::BadHost { host } => write!(
                f,
                "{:?} is not a host; write a name of letters, digits, dots and hyphens (xn--… for others), an IPv4 address, \
                 or an IPv6 address in [ ]",
                shown(host)
            ),
            TargetError::BadPort { port } => {
                write!(f, "{:?} is not a port; write a number of 1 to 65535 after the host", shown(port))
            }
            TargetError::BadCharacter { character, column } => {
                write!(f, "{character:?} in column {column} cannot be in a URL; write {}", percent_encoded(*character))
            }
            TargetError::Fragment => f.write_str("the part after # is never sent to a server; remove it, or write %23"),
            TargetError::Unresolved { host, error } => write!(
                f,
                "the name {host:?} was not resolved ({error}); check its spelling and the name server, or write its address"
            ),
            TargetError::NoAddress { host } => write!(f, "the name {host:?} has no address; write the address instead"),
        }
    }
}

impl std::error::Error for TargetError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            TargetError::Unresolved { error, .. } => Some(error),
            _ => None,
        }
    }
}

/// Quoted for a message, in full up to a length.
pub(super) fn shown(text: &str) -> String {
    const CHARACTERS_MAX: usize = 100;
    match text.char_indices().nth(CHARACTERS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

fn percent_encoded(character: char) -> String {
    let mut bytes = [0; 4];
    character.encode_utf8(&mut bytes).bytes().map(|byte| format!("%{byte:02X}")).collect()
}

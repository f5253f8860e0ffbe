//! The keys of one message of a device, each with the bytes of its value, before they are interpreted.

use super::error::{ProtocolError, excerpt};

/// Every key of v1.
const KEYS: [&str; 7] = ["type", "id", "seq", "body", "encoding", "session", "resume"];

/// The bytes of each key's value, in the message's own format.
#[derive(Debug, Default)]
pub(super) struct Fields<'a> {
    values: [Option<&'a [u8]>; KEYS.len()],
}

impl<'a> Fields<'a> {
    /// Stores a key's value.
    pub(super) fn put(&mut self, key: &str, raw: &'a [u8]) -> Result<(), ProtocolError> {
        let Some(at) = KEYS.iter().position(|known| *known == key) else {
            return Err(ProtocolError::UnknownKey(excerpt(key)));
        };
        match self.values[at].replace(raw) {
            None => Ok(()),
            Some(_) => Err(ProtocolError::RepeatedKey(KEYS[at])),
        }
    }

    pub(super) fn get(&self, key: &'static str) -> Option<&'a [u8]> {
        KEYS.iter().zip(self.values).find_map(|(known, value)| if *known == key { value } else { None })
    }

    pub(super) fn need(&self, of: &'static str, key: &'static str) -> Result<&'a [u8], ProtocolError> {
        self.get(key).ok_or(ProtocolError::Missing { key, of })
    }

    /// Refuses keys that a type of message does not have.
    pub(super) fn only(&self, of: &'static str, allowed: &[&str]) -> Result<(), ProtocolError> {
        match KEYS.iter().zip(self.values).find(|(key, value)| value.is_some() && !allowed.contains(*key)) {
            Some((key, _)) => Err(ProtocolError::Surplus { key, of }),
            None => Ok(()),
        }
    }
}

//! The token that a device keeps to resume its session.

use crate::generation::Generation;
use crate::hex;
use std::fmt;

/// 128 random bits; 32 lowercase hexadecimal digits as text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SessionId(pub u128);

/// A session, and the connection that the token was given to: a copy of an older connection's token is worthless once a
/// newer one has resumed with its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResumeToken {
    /// The session.
    pub session: SessionId,
    /// Generation of the connection.
    pub generation: Generation,
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hex::write(f, self.0)
    }
}

impl fmt::Display for ResumeToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.session, self.generation.0)
    }
}

impl ResumeToken {
    /// Reads the text of a token.
    pub fn parse(text: &str) -> Option<ResumeToken> {
        let (session, generation) = text.split_once('.')?;
        let is_plain = session.len() == 32 && session.bytes().all(|byte| byte.is_ascii_hexdigit());
        let session = is_plain.then(|| u128::from_str_radix(session, 16).ok()).flatten()?;
        let is_plain = generation.bytes().all(|byte| byte.is_ascii_digit());
        let generation = is_plain.then(|| generation.parse().ok()).flatten()?;
        Some(ResumeToken { session: SessionId(session), generation: Generation(generation) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_text_is_read_back() {
        let token = ResumeToken { session: SessionId(0xabc), generation: Generation(7) };
        assert_eq!(token.to_string(), "00000000000000000000000000000abc.7");
        assert_eq!(ResumeToken::parse(&token.to_string()), Some(token));
        for text in ["", ".", "abc.7", "00000000000000000000000000000abc.", "00000000000000000000000000000abc.-7"] {
            assert_eq!(ResumeToken::parse(text), None, "{text}");
        }
    }
}

//! The unique identifier of a message.

use crate::hex;
use std::fmt;

/// 128 random bits; 32 lowercase hexadecimal digits as text. All copies of a message have the same one, so a device
/// recognises duplicates.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MessageId(pub u128);

impl MessageId {
    /// Reads the text of an id.
    pub fn parse(text: &str) -> Option<MessageId> {
        let is_plain = text.len() == 32 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        is_plain.then(|| u128::from_str_radix(text, 16).ok().map(MessageId)).flatten()
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hex::write(f, self.0)
    }
}

impl fmt::Debug for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_text_is_read_back() {
        for id in [0, 1, 0xabc, u128::MAX].map(MessageId) {
            assert_eq!(MessageId::parse(&id.to_string()), Some(id));
        }
        for text in ["", "0", &"f".repeat(33), &"F".repeat(32), "+000000000000000000000000000000f"] {
            assert_eq!(MessageId::parse(text), None, "{text}");
        }
    }
}

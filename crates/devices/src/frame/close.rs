//! Codes of closing (RFC 6455 section 7.4), and the payload of a close frame.

use super::head::CONTROL_PAYLOAD_BYTES_MAX;
use super::reader::FrameError;

/// The longest reason of a close frame, in bytes of UTF-8: its code takes two of a control frame's payload.
pub const CLOSE_REASON_BYTES_MAX: usize = CONTROL_PAYLOAD_BYTES_MAX - 2;

/// A status code that is valid in a close frame: 1000 to 1003, 1007 to 1014, 3000 to 4999 (RFC 6455 section 7.4 and the
/// IANA registry that it establishes).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CloseCode(u16);

impl CloseCode {
    /// 1000: done.
    pub const NORMAL: CloseCode = CloseCode(1000);
    /// 1001: this side is going away; connect again.
    pub const GOING_AWAY: CloseCode = CloseCode(1001);
    /// 1002: bytes that are not frames.
    pub const PROTOCOL_ERROR: CloseCode = CloseCode(1002);
    /// 1003: an unsupported kind of message, for example binary where text is expected.
    pub const UNSUPPORTED: CloseCode = CloseCode(1003);
    /// 1007: text that is not UTF-8.
    pub const INVALID_PAYLOAD: CloseCode = CloseCode(1007);
    /// 1008: a message that was understood but violates the rules.
    pub const POLICY: CloseCode = CloseCode(1008);
    /// 1009: a message that is too long.
    pub const TOO_BIG: CloseCode = CloseCode(1009);
    /// 1011: this side failed.
    pub const INTERNAL_ERROR: CloseCode = CloseCode(1011);
    /// 1012: this side is restarting; connect again.
    pub const SERVICE_RESTART: CloseCode = CloseCode(1012);
    /// 1013: overloaded; connect again later.
    pub const TRY_AGAIN_LATER: CloseCode = CloseCode(1013);

    /// The code with this number, if it may be sent.
    pub fn new(number: u16) -> Option<CloseCode> {
        matches!(number, 1000..=1003 | 1007..=1014 | 3000..=4999).then_some(CloseCode(number))
    }

    /// Its number.
    pub fn number(self) -> u16 {
        self.0
    }
}

/// Reads the payload of a close frame: nothing, or a code and a reason in UTF-8 (RFC 6455 section 5.5.1).
pub(super) fn parse_close(payload: &[u8]) -> Result<Option<(CloseCode, &str)>, FrameError> {
    match payload {
        [] => Ok(None),
        [_] => Err(FrameError::CloseCutShort),
        [high, low, reason @ ..] => {
            let number = u16::from_be_bytes([*high, *low]);
            let code = CloseCode::new(number).ok_or(FrameError::CloseCode(number))?;
            let reason = std::str::from_utf8(reason).map_err(|_| FrameError::InvalidUtf8)?;
            Ok(Some((code, reason)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_that_may_be_sent() {
        let allowed: Vec<u16> = (0..=u16::MAX).filter(|number| CloseCode::new(*number).is_some()).collect();
        let expected: Vec<u16> = (1000..=1003).chain(1007..=1014).chain(3000..=4999).collect();
        assert_eq!(allowed, expected);
    }

    #[test]
    fn named_codes_may_be_sent() {
        for code in [
            CloseCode::NORMAL,
            CloseCode::GOING_AWAY,
            CloseCode::PROTOCOL_ERROR,
            CloseCode::UNSUPPORTED,
            CloseCode::INVALID_PAYLOAD,
            CloseCode::POLICY,
            CloseCode::TOO_BIG,
            CloseCode::INTERNAL_ERROR,
            CloseCode::SERVICE_RESTART,
            CloseCode::TRY_AGAIN_LATER,
        ] {
            assert_eq!(CloseCode::new(code.number()), Some(code));
        }
    }
}

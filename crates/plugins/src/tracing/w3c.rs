//! Parses `traceparent` of W3C Trace Context.

use stillgate_plugin_api::record::trace_id;

/// The trace context of a caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Parent {
    pub(super) trace_id: u128,
    pub(super) span_id: u64,
    pub(super) is_sampled: bool,
}

impl Parent {
    /// Parses the value of `traceparent`; `None` if it is invalid.
    pub(super) fn parse(traceparent: &[u8]) -> Option<Parent> {
        let trace_id = number(trace_id(traceparent)?)?;
        let span_id = u64::try_from(number(traceparent.get(36..52)?)?).ok()?;
        let flags = number(traceparent.get(53..55)?)?;
        Some(Parent { trace_id, span_id, is_sampled: flags & 1 == 1 })
    }
}

/// Parses hexadecimal digits in either case.
pub(super) fn number(digits: &[u8]) -> Option<u128> {
    let is_good = !digits.is_empty() && digits.len() <= 32 && digits.iter().all(u8::is_ascii_hexdigit);
    let text = str::from_utf8(digits).ok().filter(|_| is_good)?;
    u128::from_str_radix(text, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parents_are_read() {
        let parent = Parent::parse(b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
        let expected =
            Parent { trace_id: 0x4bf92f3577b34da6a3ce929d0e0e4736, span_id: 0x00f067aa0ba902b7, is_sampled: true };
        assert_eq!(parent, Some(expected));
        let unsampled = Parent::parse(b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-02");
        assert!(unsampled.is_some_and(|parent| !parent.is_sampled));
        for text in ["", "00", "00-0-0-0", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0g"] {
            assert_eq!(Parent::parse(text.as_bytes()), None, "{text}");
        }
        assert_eq!([&b"0a"[..], b"", b"+1", b"g"].map(number), [Some(10), None, None, None]);
    }
}

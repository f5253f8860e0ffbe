//! Sampling of requests: as the caller did, by its `traceparent` of W3C Trace Context, or a share of all.

use serde_json::json;
use stillgate_plugin_api::record::trace_id;
use stillgate_schema::text::scalar::Meaning;
use stillgate_schema::{Definitions, Json, Kind, Node, Path, Sink, Value, report_expected};

/// A share of all requests.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct SampledShare(pub(super) f64);

/// The type of a share from `min` to 1; others are refused, or clamped if `is_lenient`.
pub(crate) struct ShareKind {
    pub(super) min: f64,
    pub(super) is_lenient: bool,
}

impl Kind for ShareKind {
    type Out = SampledShare;

    fn read(&self, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<SampledShare> {
        let share = match &node.value {
            Value::Scalar(scalar) => match scalar.meaning() {
                Meaning::Int(number) => Some(number as f64),
                Meaning::Float(number) => Some(number),
                _ => None,
            },
            _ => None,
        };
        match share {
            Some(share) if self.is_lenient || (self.min..=1.0).contains(&share) => {
                Some(SampledShare(share.clamp(0.0, 1.0)))
            }
            _ => {
                report_expected(&format!("a number from {} to 1", self.min), node, path, sink);
                None
            }
        }
    }

    fn schema(&self, _: &mut Definitions) -> Json {
        match self.is_lenient {
            true => json!({"type": "number"}),
            false => json!({"type": "number", "minimum": self.min, "maximum": 1}),
        }
    }

    fn show(&self, share: &SampledShare) -> Json {
        json!(share.0)
    }
}

impl SampledShare {
    /// Whether it contains a random number.
    pub(super) fn takes(self, random: u64) -> bool {
        // A share of 1 contains all, although its bound does not fit into 64 bits.
        self.0 >= 1.0 || (random as f64) < self.0 * 2f64.powi(64)
    }
}

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
    fn a_share_takes_what_is_below_it() {
        assert!(SampledShare(1.0).takes(u64::MAX) && !SampledShare(0.0).takes(0));
        let half = 1 << 63;
        assert!(SampledShare(0.5).takes(half - 2048) && !SampledShare(0.5).takes(half));
    }

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

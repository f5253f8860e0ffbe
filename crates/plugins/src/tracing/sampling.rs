//! Sampling of requests.

use serde_json::json;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_takes_what_is_below_it() {
        assert!(SampledShare(1.0).takes(u64::MAX) && !SampledShare(0.0).takes(0));
        let half = 1 << 63;
        assert!(SampledShare(0.5).takes(half - 2048) && !SampledShare(0.5).takes(half));
    }
}

//! Numbers with decimals, as keys have them.

use serde_json::json;
use stillgate_schema::text::scalar::Meaning;
use stillgate_schema::{Definitions, Fault, Json, Kind, Node, Path, Sink, Value, expected};

/// A number from `min` to `max`.
pub(crate) struct Decimal {
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Kind for Decimal {
    type Out = f64;

    fn read(&self, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<f64> {
        let number = match &node.value {
            Value::Scalar(scalar) if matches!(scalar.meaning(), Meaning::Int(_) | Meaning::Float(_)) => {
                scalar.text.parse::<f64>().ok()
            }
            _ => None,
        };
        match number {
            Some(number) if (self.min..=self.max).contains(&number) => Some(number),
            Some(number) => {
                let fault = Fault::new(format!("{number} is not from {} to {}", self.min, self.max));
                sink.error(node.at, path, fault);
                None
            }
            None => {
                expected("a number", node, path, sink);
                None
            }
        }
    }

    fn schema(&self, _: &mut Definitions) -> Json {
        json!({"type": "number", "minimum": self.min, "maximum": self.max})
    }
}

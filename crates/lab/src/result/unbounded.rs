//! Figures in JSON that may be infinite; JSON has no infinity, so `null` represents it.
//!
//! With too few pairs an interval is unbounded, and there is no smallest detectable effect; both must be read back
//! unchanged, or a recomputed analysis would seem to differ.

use serde::{Deserialize as _, Deserializer, Serializer};

/// For `#[serde(with = "unbounded::above")]`: `null` is infinity.
pub(crate) mod above {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        super::serialize(*value, serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
        Ok(Option::<f64>::deserialize(deserializer)?.unwrap_or(f64::INFINITY))
    }
}

/// For `#[serde(with = "unbounded::below")]`: `null` is negative infinity.
pub(crate) mod below {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        super::serialize(*value, serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
        Ok(Option::<f64>::deserialize(deserializer)?.unwrap_or(f64::NEG_INFINITY))
    }
}

fn serialize<S: Serializer>(value: f64, serializer: S) -> Result<S::Ok, S::Error> {
    if value.is_finite() { serializer.serialize_some(&value) } else { serializer.serialize_none() }
}

#[cfg(test)]
mod tests {
    use serde::{Deserialize, Serialize};

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Range {
        #[serde(with = "super::below")]
        low: f64,
        #[serde(with = "super::above")]
        high: f64,
    }

    #[test]
    fn infinity_comes_back() {
        let check = |low: f64, high: f64, text: &str| {
            let range = Range { low, high };
            assert_eq!(serde_json::to_string(&range).unwrap(), text);
            assert_eq!(serde_json::from_str::<Range>(text).unwrap(), range);
        };
        check(-0.1, 2.5e300, r#"{"low":-0.1,"high":2.5e+300}"#);
        check(f64::NEG_INFINITY, f64::INFINITY, r#"{"low":null,"high":null}"#);
    }
}

//! Durations and sizes: numbers with a unit.
//!
//! A bare number is seconds, or bytes. Units are case-sensitive, so that `m` and `M` cannot be confused.

use crate::description::{Definitions, or_environment};
use crate::kind::{Kind, report_expected};
use crate::text::diagnostic::{Path, Sink};
use crate::text::scalar::Meaning;
use crate::text::tree::{Node, Value};
use serde_json::{Value as Json, json};
use std::time::Duration;

/// A time span within bounds.
pub struct DurationRange {
    min: Duration,
    max: Duration,
}

/// From `min` to `max` seconds and milliseconds.
pub const fn span(min: Duration, max: Duration) -> DurationRange {
    DurationRange { min, max }
}

const SPAN_UNITS: [(&str, f64); 4] = [("ms", 0.001), ("s", 1.0), ("m", 60.0), ("h", 3600.0)];

impl Kind for DurationRange {
    type Out = Duration;

    fn read(&self, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<Duration> {
        let seconds = number_with_unit(node, &SPAN_UNITS);
        let duration = seconds.and_then(|s| Duration::try_from_secs_f64(s).ok());
        if let Some(duration) = duration
            && (self.min..=self.max).contains(&duration)
        {
            return Some(duration);
        }
        let bounds = format!("{} to {}", show_span(self.min), show_span(self.max));
        report_expected(
            &format!("a duration from {bounds}, such as 500ms, 5s, 2m, 1h or a number of seconds"),
            node,
            path,
            sink,
        );
        None
    }

    fn schema(&self, _: &mut Definitions) -> Json {
        let title = format!("duration from {} to {}", show_span(self.min), show_span(self.max));
        or_environment(json!({"title": title, "anyOf": [
            {"type": "number", "minimum": self.min.as_secs_f64(), "maximum": self.max.as_secs_f64()},
            {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?(ms|s|m|h)$"},
        ]}))
    }

    fn show(&self, value: &Duration) -> Json {
        json!(show_span(*value))
    }
}

/// A number of bytes within bounds.
pub struct Size {
    min: usize,
    max: usize,
}

/// A number of bytes within these bounds.
pub const fn size(min: usize, max: usize) -> Size {
    Size { min, max }
}

const SIZE_UNITS: [(&str, f64); 6] =
    [("KiB", 1024.0), ("MiB", 1048576.0), ("GiB", 1073741824.0), ("kB", 1e3), ("MB", 1e6), ("B", 1.0)];

impl Kind for Size {
    type Out = usize;

    fn read(&self, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<usize> {
        if let Some(bytes) = number_with_unit(node, &SIZE_UNITS)
            && bytes.fract() == 0.0
            && bytes >= self.min as f64
            && bytes <= self.max as f64
        {
            return Some(bytes as usize);
        }
        let bounds = format!("{} to {}", show_size(self.min), show_size(self.max));
        report_expected(&format!("a size from {bounds}, such as 16KiB or a number of bytes"), node, path, sink);
        None
    }

    fn schema(&self, _: &mut Definitions) -> Json {
        let title = format!("size from {} to {}", show_size(self.min), show_size(self.max));
        or_environment(json!({"title": title, "anyOf": [
            {"type": "integer", "minimum": self.min, "maximum": self.max},
            {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?(B|kB|MB|KiB|MiB|GiB)$"},
        ]}))
    }

    fn show(&self, value: &usize) -> Json {
        json!(show_size(*value))
    }
}

/// A bare number, or digits with one of the units behind them.
fn number_with_unit(node: &Node, units: &[(&str, f64)]) -> Option<f64> {
    let Value::Scalar(scalar) = &node.value else {
        return None;
    };
    let text = match scalar.meaning() {
        Meaning::Int(number) => return Some(number as f64),
        Meaning::Float(number) => return Some(number),
        Meaning::Text(text) => text,
        _ => return None,
    };
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let (number, unit) = text.split_at(end);
    let (_, factor) = units.iter().find(|(name, _)| *name == unit)?;
    let strict = number.starts_with(|c: char| c.is_ascii_digit()) && !number.ends_with('.');
    // Milliseconds are divided, since 0.001 has no exact binary form: `500ms` must be 0.5 s.
    match (strict, *factor < 1.0) {
        (false, _) => None,
        (true, false) => number.parse::<f64>().ok().map(|n| n * factor),
        (true, true) => number.parse::<f64>().ok().map(|n| n / (1.0 / factor).round()),
    }
}

fn show_span(span: Duration) -> String {
    let ms = span.as_millis();
    match ms {
        0 => "0s".to_owned(),
        _ if ms.is_multiple_of(3_600_000) => format!("{}h", ms / 3_600_000),
        _ if ms.is_multiple_of(1000) => format!("{}s", ms / 1000),
        _ => format!("{ms}ms"),
    }
}

fn show_size(bytes: usize) -> String {
    match bytes {
        0 => "0".to_owned(),
        _ if bytes.is_multiple_of(1 << 30) => format!("{}GiB", bytes >> 30),
        _ if bytes.is_multiple_of(1 << 20) => format!("{}MiB", bytes >> 20),
        _ if bytes.is_multiple_of(1 << 10) => format!("{}KiB", bytes >> 10),
        _ => bytes.to_string(),
    }
}

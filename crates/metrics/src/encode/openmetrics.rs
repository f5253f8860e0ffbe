//! OpenMetrics 1.0.0 in its text form
//! (<https://github.com/prometheus/OpenMetrics/blob/v1.0.0/specification/OpenMetrics.md>).
//!
//! Sample names are always the same as in the older text format. Where OpenMetrics would require another suffix for a
//! type, the family gets a type without that rule (`unknown`, `gauge`). OpenMetrics does not have native buckets.

use super::lines::{HistogramLines, SampleName, SeriesLines};
use super::{EncodeOptions, ValueSpan, newest, number};
use crate::family::{Family, FamilyType};
use crate::labels::RawPairs;
use crate::value::{Exemplar, Value};

/// Characters of all names and values of an exemplar's labels, the limit of the OpenMetrics specification.
const EXEMPLAR_CHARS_MAX: usize = 128;

#[derive(Debug, Clone)]
pub(super) struct OpenMetricsEncoder {
    pub(super) header: Box<[u8]>,
    lines: SeriesLines,
    /// Names of the `_created` lines, if they are printed.
    created: Option<SampleName>,
    /// Whether samples may carry exemplars.
    exemplars: bool,
}

impl OpenMetricsEncoder {
    pub(super) fn new(family: &Family, options: EncodeOptions) -> Self {
        let name = family.name.as_str();
        let (base, kind) = match &family.kind {
            FamilyType::Counter | FamilyType::FloatCounter => match name.strip_suffix("_total") {
                Some(base) => (base, "counter"),
                None => (name, "unknown"),
            },
            FamilyType::Gauge(_) => (name, "gauge"),
            FamilyType::Info => match name.strip_suffix("_info") {
                Some(base) => (base, "info"),
                None => (name, "gauge"),
            },
            FamilyType::Histogram(_) => (name, "histogram"),
        };
        let lines = match &family.kind {
            FamilyType::Histogram(buckets) => {
                SeriesLines::Histogram(HistogramLines::new(name, &buckets.classic, number::bound_with_point))
            }
            _ => SeriesLines::Sample(SampleName::new(name, "")),
        };
        let counts = matches!(kind, "counter" | "histogram");
        OpenMetricsEncoder {
            header: header(family, base, kind).into_bytes().into(),
            lines,
            created: (options.created && counts).then(|| SampleName::new(base, "_created")),
            exemplars: family.exemplars && counts,
        }
    }

    #[inline]
    pub(super) fn series(
        &self,
        labels: &[u8],
        created_ms: u64,
        value: Value<'_>,
        exemplars: &[Exemplar],
        out: &mut Vec<u8>,
    ) -> Option<ValueSpan> {
        let exemplars = if self.exemplars { exemplars } else { &[] };
        let span = match (&self.lines, value) {
            (SeriesLines::Sample(name), value) => {
                let span = name.push_sample(labels, value, out);
                push_exemplar(newest(exemplars, None), out);
                out.push(b'\n');
                (!self.exemplars).then_some(span)
            }
            (SeriesLines::Histogram(lines), Value::Histogram(value)) => {
                let bucket = |index| (!lines.only_infinity()).then_some(index);
                lines.push(labels, value, out, |index, out| push_exemplar(newest(exemplars, bucket(index)), out));
                None
            }
            (SeriesLines::Histogram(_), Value::Unsigned(_) | Value::Float(_)) => {
                unreachable!("a histogram's series has a histogram's value")
            }
        };
        if let Some(created) = self.created.as_ref().filter(|_| created_ms > 0) {
            out.reserve(created.line_bytes_max(labels));
            created.push(labels, out);
            number::push_seconds(out, created_ms);
            out.push(b'\n');
        }
        span
    }
}

fn header(family: &Family, base: &str, kind: &str) -> String {
    let mut header = String::new();
    if !family.help.is_empty() {
        let help = family.help.replace('\\', "\\\\").replace('\n', "\\n").replace('"', "\\\"");
        header.push_str(&format!("# HELP {base} {help}\n"));
    }
    header.push_str(&format!("# TYPE {base} {kind}\n"));
    if !family.unit.is_empty() {
        header.push_str(&format!("# UNIT {base} {}\n", family.unit));
    }
    header
}

/// Appends ` # {labels} value time`, or nothing if the labels are longer than allowed.
fn push_exemplar(exemplar: Option<&Exemplar>, out: &mut Vec<u8>) {
    let Some(exemplar) = exemplar.filter(|exemplar| label_chars(&exemplar.labels) <= EXEMPLAR_CHARS_MAX) else {
        return;
    };
    out.extend_from_slice(b" # {");
    out.extend_from_slice(&exemplar.labels);
    out.extend_from_slice(b"} ");
    number::push_f64(out, exemplar.value);
    if exemplar.unix_ms > 0 {
        out.push(b' ');
        number::push_seconds(out, exemplar.unix_ms);
    }
}

/// Number of characters of the names and the unescaped values.
fn label_chars(labels: &[u8]) -> usize {
    // Every byte but a continuation byte begins a character; an escape sequence is one character of two bytes.
    let chars = |text: &[u8]| text.iter().filter(|byte| **byte & 0xc0 != 0x80).count();
    let escapes = |text: &[u8]| {
        let mut bytes = text.iter();
        std::iter::from_fn(|| bytes.find(|byte| **byte == b'\\').map(|_| bytes.next())).count()
    };
    RawPairs { rest: labels }.map(|(name, value)| name.len() + chars(value) - escapes(value)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_of_labels() {
        let check = |labels: &str, expected: usize| assert_eq!(label_chars(labels.as_bytes()), expected, "{labels}");
        check("", 0);
        check("a=\"\"", 1);
        check("ab=\"xy\",c=\"🧀\"", 6);
        check("a=\"\\\\\\\"\\n\"", 4);
        check("a=\"\\\\n\"", 3);
    }
}

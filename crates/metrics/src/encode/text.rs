//! Prometheus' text format, version 0.0.4
//! (<https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format>).
//!
//! The format has no exemplars, created times or native buckets; an info is exposed as a gauge.

use super::lines::{HistogramLines, SampleName, SeriesLines};
use super::{ValueSpan, number};
use crate::family::{Family, FamilyType};
use crate::value::Value;

#[derive(Debug, Clone)]
pub(super) struct TextEncoder {
    pub(super) header: Box<[u8]>,
    lines: SeriesLines,
}

impl TextEncoder {
    pub(super) fn new(family: &Family) -> Self {
        let name = &family.name;
        let (kind, lines) = match &family.kind {
            FamilyType::Counter | FamilyType::FloatCounter => {
                ("counter", SeriesLines::Sample(SampleName::new(name, "")))
            }
            FamilyType::Gauge(_) | FamilyType::Info => ("gauge", SeriesLines::Sample(SampleName::new(name, ""))),
            FamilyType::Histogram(buckets) => {
                ("histogram", SeriesLines::Histogram(HistogramLines::new(name, &buckets.classic, number::bound)))
            }
        };
        let mut header = String::new();
        if !family.help.is_empty() {
            header.push_str(&format!("# HELP {name} {}\n", family.help.replace('\\', "\\\\").replace('\n', "\\n")));
        }
        header.push_str(&format!("# TYPE {name} {kind}\n"));
        TextEncoder { header: header.into_bytes().into(), lines }
    }

    #[inline]
    pub(super) fn series(&self, labels: &[u8], value: Value<'_>, out: &mut Vec<u8>) -> Option<ValueSpan> {
        match (&self.lines, value) {
            (SeriesLines::Sample(name), value) => {
                let span = name.push_sample(labels, value, out);
                out.push(b'\n');
                Some(span)
            }
            (SeriesLines::Histogram(lines), Value::Histogram(value)) => {
                lines.push(labels, value, out, |_, _| {});
                None
            }
            (SeriesLines::Histogram(_), Value::Unsigned(_) | Value::Float(_)) => {
                unreachable!("a histogram's series has a histogram's value")
            }
        }
    }
}

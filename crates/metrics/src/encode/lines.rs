//! Sample lines, which both text formats share: `name{labels} value`.
//!
//! Metadata, and what only one of the formats has, is in the format's own file.

use super::{ValueSpan, number};
use crate::value::{Distribution, Value};

/// Longest number: a float's sign, 17 digits, point and exponent.
const NUMBER_BYTES_MAX: usize = 25;

/// What the series of a family are printed as.
#[derive(Debug, Clone)]
pub(super) enum SeriesLines {
    Sample(SampleName),
    Histogram(HistogramLines),
}

/// A sample's name with the opening brace.
#[derive(Debug, Clone)]
pub(super) struct SampleName {
    text: Box<[u8]>,
}

impl SampleName {
    pub(super) fn new(base: &str, suffix: &str) -> Self {
        SampleName { text: format!("{base}{suffix}{{").into_bytes().into() }
    }

    /// Upper bound of the bytes of a line with these labels, without anything that may follow the value.
    pub(super) fn line_bytes_max(&self, labels: &[u8]) -> usize {
        self.text.len() + labels.len() + 3 + NUMBER_BYTES_MAX
    }

    /// Appends everything that comes before the value.
    #[inline]
    pub(super) fn push(&self, labels: &[u8], out: &mut Vec<u8>) {
        if labels.is_empty() {
            out.extend_from_slice(&self.text[..self.text.len() - 1]);
            out.push(b' ');
        } else {
            out.extend_from_slice(&self.text);
            out.extend_from_slice(labels);
            out.extend_from_slice(b"} ");
        }
    }

    /// Appends a line up to the end of the value; the caller ends the line.
    #[inline]
    pub(super) fn push_sample(&self, labels: &[u8], value: Value<'_>, out: &mut Vec<u8>) -> ValueSpan {
        out.reserve(self.line_bytes_max(labels));
        self.push(labels, out);
        let start = out.len();
        number::push_value(out, value);
        ValueSpan { start, end: out.len() }
    }
}

/// The lines of a histogram.
#[derive(Debug, Clone)]
pub(super) struct HistogramLines {
    bucket: SampleName,
    sum: SampleName,
    count: SampleName,
    /// `,le="0.5"} ` for each bucket, `+Inf` last.
    bounds: Box<[Box<[u8]>]>,
}

impl HistogramLines {
    pub(super) fn new(name: &str, bounds: &[f64], print: fn(f64) -> String) -> Self {
        let all = bounds.iter().copied().chain([f64::INFINITY]);
        HistogramLines {
            bucket: SampleName::new(name, "_bucket"),
            sum: SampleName::new(name, "_sum"),
            count: SampleName::new(name, "_count"),
            bounds: all.map(|bound| format!(",le=\"{}\"}} ", print(bound)).into_bytes().into()).collect(),
        }
    }

    /// Whether `+Inf` is the only bucket: the others are native, which no text format can show.
    pub(super) fn only_infinity(&self) -> bool {
        self.bounds.len() == 1
    }

    /// Appends buckets, sum and count. `annotate` may append to each bucket's line, given its index.
    #[inline]
    pub(super) fn push(
        &self,
        labels: &[u8],
        value: &Distribution,
        out: &mut Vec<u8>,
        annotate: impl Fn(usize, &mut Vec<u8>),
    ) {
        let bounds_bytes = self.bounds.iter().map(|bound| bound.len()).sum::<usize>();
        out.reserve((self.bounds.len() + 2) * self.bucket.line_bytes_max(labels) + bounds_bytes);
        let count = value.count();
        let mut below = 0;
        for (index, bound) in self.bounds.iter().enumerate() {
            below += value.classic.get(index).copied().unwrap_or(0);
            out.extend_from_slice(&self.bucket.text);
            out.extend_from_slice(labels);
            out.extend_from_slice(if labels.is_empty() { &bound[1..] } else { bound });
            number::push_u64(out, if index + 1 == self.bounds.len() { count } else { below });
            annotate(index, out);
            out.push(b'\n');
        }
        self.sum.push(labels, out);
        number::push_f64(out, value.sum);
        out.push(b'\n');
        self.count.push(labels, out);
        number::push_u64(out, count);
        out.push(b'\n');
    }
}

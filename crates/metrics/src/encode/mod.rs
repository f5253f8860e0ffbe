//! Encodes series in each of the three exposition formats that Prometheus scrapes.
//!
//! The parts shared by all series of a family are made once, in [`FamilyEncoder::new`]; a series then costs a few
//! copies and its digits. A single value can be patched in place. The readers decide what is encoded when and in which
//! order, and what is cached.

mod number;
mod protobuf;

use self::protobuf::ProtobufEncoder;
use crate::family::{Family, FamilyType};
use crate::labels::RawPairs;
use crate::value::{Distribution, Exemplar, Value};
use std::ops::Range;

/// An exposition format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// Prometheus' text format, version 0.0.4.
    Text,
    /// OpenMetrics 1.0.0, text.
    OpenMetrics,
    /// Delimited `io.prometheus.client.MetricFamily` messages; the only one with native histograms.
    Protobuf,
}

impl Format {
    /// The `Content-Type` of a response.
    pub fn content_type(self) -> &'static str {
        match self {
            Format::Text => "text/plain; version=0.0.4; charset=utf-8",
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Format::Protobuf => {
                "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"
            }
        }
    }

    /// Bytes that follow the last family.
    pub fn footer(self) -> &'static [u8] {
        match self {
            Format::OpenMetrics => b"# EOF\n",
            Format::Text | Format::Protobuf => b"",
        }
    }
}

/// Parts of an exposition that are optional.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EncodeOptions {
    /// Print `_created` lines in OpenMetrics, one for each counter or histogram. Protobuf has the time in any case.
    pub created: bool,
}

/// Position of a series' value in the output, for [`FamilyEncoder::patch`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ValueSpan {
    /// Its first byte.
    pub start: usize,
    /// The end of the value, exclusive.
    pub end: usize,
}

/// Encodes one family in one format.
#[derive(Debug, Clone)]
pub struct FamilyEncoder {
    encoder: Encoder,
}

#[derive(Debug, Clone)]
enum Encoder {
    Text(TextEncoder),
    OpenMetrics(OpenMetricsEncoder),
    Protobuf(ProtobufEncoder),
}

impl FamilyEncoder {
    /// Prepares the encoder; the family has been checked.
    pub fn new(family: &Family, format: Format, options: EncodeOptions) -> Self {
        let encoder = match format {
            Format::Text => Encoder::Text(TextEncoder::new(family)),
            Format::OpenMetrics => Encoder::OpenMetrics(OpenMetricsEncoder::new(family, options)),
            Format::Protobuf => Encoder::Protobuf(ProtobufEncoder::new(family)),
        };
        FamilyEncoder { encoder }
    }

    /// Appends the lines before the first series; nothing in protobuf.
    pub fn header(&self, out: &mut Vec<u8>) {
        match &self.encoder {
            Encoder::Text(text) => out.extend_from_slice(&text.header),
            Encoder::OpenMetrics(openmetrics) => out.extend_from_slice(&openmetrics.header),
            Encoder::Protobuf(_) => {}
        }
    }

    /// Appends the message's length and all fields but the series, which take `metrics_bytes` together and must follow;
    /// appends nothing in the text formats.
    pub fn family_head(&self, metrics_bytes: usize, out: &mut Vec<u8>) {
        if let Encoder::Protobuf(protobuf) = &self.encoder {
            protobuf.family_head(metrics_bytes, out);
        }
    }

    /// Appends a whole series, given its encoded label part; a `created_ms` of 0 means unknown. Returns the position of
    /// the value if nothing else of the series can change.
    #[inline]
    pub fn series(
        &self,
        labels: &[u8],
        created_ms: u64,
        value: Value<'_>,
        exemplars: &[Exemplar],
        out: &mut Vec<u8>,
    ) -> Option<ValueSpan> {
        match &self.encoder {
            Encoder::Text(text) => text.series(labels, value, out),
            Encoder::OpenMetrics(openmetrics) => openmetrics.series(labels, created_ms, value, exemplars, out),
            Encoder::Protobuf(protobuf) => protobuf.series(labels, created_ms, value, exemplars, out),
        }
    }

    /// Writes a value into the bytes of a [`ValueSpan`] that [`FamilyEncoder::series`] returned, if it has exactly that
    /// width; otherwise leaves them unchanged and returns false.
    #[inline]
    pub fn patch(&self, value: Value<'_>, bytes: &mut [u8]) -> bool {
        match &self.encoder {
            Encoder::Text(_) | Encoder::OpenMetrics(_) => number::patch_value(bytes, value),
            Encoder::Protobuf(_) => protobuf::patch_value(bytes, value),
        }
    }

    /// Like [`FamilyEncoder::patch`], but with a range of all the bytes, which is faster.
    #[inline]
    pub(crate) fn patch_at(&self, value: Value<'_>, bytes: &mut [u8], at: Range<usize>) -> bool {
        let quick = match (&self.encoder, value) {
            (Encoder::Text(_) | Encoder::OpenMetrics(_), Value::Unsigned(value)) => {
                number::patch_digits(bytes, &at, value)
            }
            _ => None,
        };
        quick.unwrap_or_else(|| self.patch(value, &mut bytes[at]))
    }

    /// Appends what [`FamilyEncoder::patch`] would write into a span of the right width.
    #[inline]
    pub(crate) fn push_value(&self, value: Value<'_>, out: &mut Vec<u8>) {
        match &self.encoder {
            Encoder::Text(_) | Encoder::OpenMetrics(_) => number::push_value(out, value),
            Encoder::Protobuf(_) => {
                let start = out.len();
                out.extend_from_slice(&[0; 8]);
                protobuf::patch_value(&mut out[start..], value);
            }
        }
    }
}

/// The newest exemplar of a bucket; the only bucket takes any.
fn newest(exemplars: &[Exemplar], bucket: Option<usize>) -> Option<&Exemplar> {
    let stands_for = |exemplar: &&Exemplar| bucket.is_none_or(|bucket| exemplar.bucket as usize == bucket);
    exemplars.iter().filter(stands_for).max_by_key(|exemplar| exemplar.unix_ms)
}

// Prometheus' text format, version 0.0.4
// (<https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format>).
//
// The format has no exemplars, created times or native buckets; an info is exposed as a gauge.

#[derive(Debug, Clone)]
struct TextEncoder {
    header: Box<[u8]>,
    lines: SeriesLines,
}

impl TextEncoder {
    fn new(family: &Family) -> Self {
        let name = &family.name;
        let (kind, lines) = match &family.kind {
            FamilyType::Counter | FamilyType::FloatCounter => {
                ("counter", SeriesLines::Sample(SampleName::new(name, "")))
            }
            FamilyType::Gauge(_) | FamilyType::Info => ("gauge", SeriesLines::Sample(SampleName::new(name, ""))),
            FamilyType::Histogram(buckets) => {
                ("histogram", SeriesLines::Histogram(HistogramLines::new(name, &buckets.classic, number::bound_text)))
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
    fn series(&self, labels: &[u8], value: Value<'_>, out: &mut Vec<u8>) -> Option<ValueSpan> {
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

// OpenMetrics 1.0.0 in its text form
// (<https://github.com/prometheus/OpenMetrics/blob/v1.0.0/specification/OpenMetrics.md>).
//
// Sample names are always the same as in the older text format. Where OpenMetrics would require another suffix for a
// type, the family gets a type without that rule (`unknown`, `gauge`). OpenMetrics does not have native buckets.

/// Characters of all names and values of an exemplar's labels, the limit of the OpenMetrics specification.
const EXEMPLAR_CHARS_MAX: usize = 128;

#[derive(Debug, Clone)]
struct OpenMetricsEncoder {
    header: Box<[u8]>,
    lines: SeriesLines,
    /// Names of the `_created` lines, if they are printed.
    created: Option<SampleName>,
    /// Whether samples may carry exemplars.
    exemplars: bool,
}

impl OpenMetricsEncoder {
    fn new(family: &Family, options: EncodeOptions) -> Self {
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
    fn series(
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

// Sample lines, which both text formats share: `name{labels} value`.
//
// Metadata, and what only one of the formats has, is in the format's own file.

/// Longest number: a float's sign, 17 digits, point and exponent.
const NUMBER_BYTES_MAX: usize = 25;

/// What the series of a family are printed as.
#[derive(Debug, Clone)]
enum SeriesLines {
    Sample(SampleName),
    Histogram(HistogramLines),
}

/// A sample's name with the opening brace.
#[derive(Debug, Clone)]
struct SampleName {
    text: Box<[u8]>,
}

impl SampleName {
    fn new(base: &str, suffix: &str) -> Self {
        SampleName { text: format!("{base}{suffix}{{").into_bytes().into() }
    }

    /// Upper bound of the bytes of a line with these labels, without anything that may follow the value.
    fn line_bytes_max(&self, labels: &[u8]) -> usize {
        self.text.len() + labels.len() + 3 + NUMBER_BYTES_MAX
    }

    /// Appends everything that comes before the value.
    #[inline]
    fn push(&self, labels: &[u8], out: &mut Vec<u8>) {
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
    fn push_sample(&self, labels: &[u8], value: Value<'_>, out: &mut Vec<u8>) -> ValueSpan {
        out.reserve(self.line_bytes_max(labels));
        self.push(labels, out);
        let start = out.len();
        number::push_value(out, value);
        ValueSpan { start, end: out.len() }
    }
}

/// The lines of a histogram.
#[derive(Debug, Clone)]
struct HistogramLines {
    bucket: SampleName,
    sum: SampleName,
    count: SampleName,
    /// `,le="0.5"} ` for each bucket, `+Inf` last.
    bounds: Box<[Box<[u8]>]>,
}

impl HistogramLines {
    fn new(name: &str, bounds: &[f64], print: fn(f64) -> String) -> Self {
        let all = bounds.iter().copied().chain([f64::INFINITY]);
        HistogramLines {
            bucket: SampleName::new(name, "_bucket"),
            sum: SampleName::new(name, "_sum"),
            count: SampleName::new(name, "_count"),
            bounds: all.map(|bound| format!(",le=\"{}\"}} ", print(bound)).into_bytes().into()).collect(),
        }
    }

    /// Whether `+Inf` is the only bucket: the others are native, which no text format can show.
    fn only_infinity(&self) -> bool {
        self.bounds.len() == 1
    }

    /// Appends buckets, sum and count. `annotate` may append to each bucket's line, given its index.
    #[inline]
    fn push(&self, labels: &[u8], value: &Distribution, out: &mut Vec<u8>, annotate: impl Fn(usize, &mut Vec<u8>)) {
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

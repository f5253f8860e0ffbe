//! Encodes series in each of the three exposition formats that Prometheus scrapes.
//!
//! The parts shared by all series of a family are made once, in [`FamilyEncoder::new`]; a series then costs a few
//! copies and its digits. A single value can be patched in place. The readers decide what is encoded when and in which
//! order, and what is cached.

mod digits;
mod lines;
mod number;
mod openmetrics;
mod protobuf;
mod text;

use self::openmetrics::OpenMetricsEncoder;
use self::protobuf::ProtobufEncoder;
use self::text::TextEncoder;
use crate::family::Family;
use crate::value::{Exemplar, Value};
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
            (Encoder::Text(_) | Encoder::OpenMetrics(_), Value::Unsigned(value)) => digits::patch(bytes, &at, value),
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

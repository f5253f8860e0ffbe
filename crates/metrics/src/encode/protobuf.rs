//! Delimited protobuf messages, by Prometheus' `io/prometheus/client/metrics.proto`
//! (<https://github.com/prometheus/client_model>).
//!
//! Written by hand, as there are few messages and a series must not be built as objects first. Fields come in the order
//! 1, 2, 3, 5, 4 within a family, so that the series can be appended to a head made once; protobuf permits any order.
//! Float histograms and gauge histograms are not written.

use super::{ValueSpan, newest};
use crate::family::{Family, FamilyType};
use crate::labels::{self, RawPairs};
use crate::value::{Distribution, Exemplar, Exponential, Value};

/// Most empty buckets between two others that are cheaper to write than a new span; the value of `client_golang`.
const GAP_MAX: i32 = 2;
/// Bytes of a double or fixed64.
const DOUBLE_BYTES: usize = 8;

#[derive(Debug, Clone)]
pub(super) struct ProtobufEncoder {
    /// All fields of the family except its series.
    head: Box<[u8]>,
    shape: Shape,
    /// Whether counters or histograms may carry exemplars.
    exemplars: bool,
}

#[derive(Debug, Clone)]
enum Shape {
    Counter,
    Gauge,
    /// A histogram with the upper bounds of the classic buckets, `+Inf` last; empty if all buckets are native.
    Histogram(Box<[f64]>),
}

impl ProtobufEncoder {
    pub(super) fn new(family: &Family) -> Self {
        let (kind, shape) = match &family.kind {
            FamilyType::Counter | FamilyType::FloatCounter => (0, Shape::Counter),
            FamilyType::Gauge(_) | FamilyType::Info => (1, Shape::Gauge),
            FamilyType::Histogram(buckets) if buckets.classic.is_empty() => (4, Shape::Histogram([].into())),
            FamilyType::Histogram(buckets) => {
                (4, Shape::Histogram(buckets.classic.iter().copied().chain([f64::INFINITY]).collect()))
            }
        };
        let mut head = Vec::new();
        push_bytes(&mut head, 1, family.name.as_bytes());
        if !family.help.is_empty() {
            push_bytes(&mut head, 2, family.help.as_bytes());
        }
        push_uint(&mut head, 3, kind);
        if !family.unit.is_empty() {
            push_bytes(&mut head, 5, family.unit.as_bytes());
        }
        ProtobufEncoder { head: head.into(), shape, exemplars: family.exemplars }
    }

    pub(super) fn family_head(&self, metrics_bytes: usize, out: &mut Vec<u8>) {
        push_varint(out, (self.head.len() + metrics_bytes) as u64);
        out.extend_from_slice(&self.head);
    }

    pub(super) fn series(
        &self,
        labels: &[u8],
        created_ms: u64,
        value: Value<'_>,
        exemplars: &[Exemplar],
        out: &mut Vec<u8>,
    ) -> Option<ValueSpan> {
        out.reserve(labels.len() + 64);
        let exemplars = if self.exemplars { exemplars } else { &[] };
        // The exemplar or time that follows the value. Counted from the end, as the start of a message moves if its
        // length needs a second byte.
        let mut tail = None;
        push_message(out, 4, |out| {
            push_labels(out, labels);
            match (&self.shape, value) {
                (Shape::Gauge, value) => push_message(out, 2, |out| {
                    push_double(out, 1, as_double(value));
                    tail = Some(0);
                }),
                (Shape::Counter, value) => push_message(out, 3, |out| {
                    push_double(out, 1, as_double(value));
                    let end = out.len();
                    if let Some(exemplar) = newest(exemplars, None) {
                        push_message(out, 2, |out| push_exemplar(out, exemplar));
                    }
                    push_time(out, 3, created_ms);
                    tail = (!self.exemplars).then_some(out.len() - end);
                }),
                (Shape::Histogram(bounds), Value::Histogram(value)) => {
                    push_message(out, 7, |out| push_histogram(out, bounds, created_ms, value, exemplars));
                }
                (Shape::Histogram(_), Value::Unsigned(_) | Value::Float(_)) => {
                    unreachable!("a histogram's series has a histogram's value")
                }
            }
        });
        let end = out.len() - tail?;
        Some(ValueSpan { start: end - DOUBLE_BYTES, end })
    }
}

/// Writes the value into the bytes of a span that [`ProtobufEncoder::series`] returned.
pub(super) fn patch_value(bytes: &mut [u8], value: Value<'_>) -> bool {
    let fits = bytes.len() == DOUBLE_BYTES;
    if fits {
        bytes.copy_from_slice(&as_double(value).to_le_bytes());
    }
    fits
}

fn as_double(value: Value<'_>) -> f64 {
    match value {
        Value::Unsigned(value) => value as f64,
        Value::Float(value) => value,
        Value::Histogram(_) => unreachable!("only a histogram's series has a histogram's value"),
    }
}

fn push_labels(out: &mut Vec<u8>, labels: &[u8]) {
    for (name, value) in (RawPairs { rest: labels }) {
        push_message(out, 1, |out| {
            push_bytes(out, 1, name);
            push_message(out, 2, |out| labels::push_unescaped(out, value));
        });
    }
}

fn push_histogram(out: &mut Vec<u8>, bounds: &[f64], created_ms: u64, value: &Distribution, exemplars: &[Exemplar]) {
    let count = value.count();
    push_uint(out, 1, count);
    push_double(out, 2, value.sum);
    let mut below = 0;
    for (index, bound) in bounds.iter().enumerate() {
        below += value.classic.get(index).copied().unwrap_or(0);
        push_message(out, 3, |out| {
            push_uint(out, 1, if index + 1 == bounds.len() { count } else { below });
            push_double(out, 2, *bound);
            if let Some(exemplar) = newest(exemplars, Some(index)) {
                push_message(out, 3, |out| push_exemplar(out, exemplar));
            }
        });
    }
    if let Some(native) = &value.native {
        push_native(out, native);
    }
    push_time(out, 15, created_ms);
    if bounds.is_empty() {
        // Exemplars of native buckets must have a time.
        for exemplar in exemplars.iter().filter(|exemplar| exemplar.unix_ms > 0) {
            push_message(out, 16, |out| push_exemplar(out, exemplar));
        }
    }
}

fn push_native(out: &mut Vec<u8>, native: &Exponential) {
    push_uint(out, 5, zigzag(native.schema.into()));
    push_double(out, 6, native.zero_threshold);
    push_uint(out, 7, native.zero_count);
    push_spans(out, 9, &native.negative);
    push_deltas(out, 10, &native.negative);
    push_spans(out, 12, &native.positive);
    push_deltas(out, 13, &native.positive);
    // Without an empty span, this would look like a classic histogram.
    let nothing = native.positive.is_empty() && native.negative.is_empty();
    if nothing && native.zero_threshold == 0.0 && native.zero_count == 0 {
        push_span(out, 12, 0, 0);
    }
}

/// Appends runs of buckets; each run's offset is counted from the end of the one before, the first one's from index 0.
fn push_spans(out: &mut Vec<u8>, field: u32, buckets: &[(i32, u64)]) {
    let mut run: Option<(i32, i32)> = None;
    let mut next = 0;
    for &(index, _) in buckets {
        let gap = index - next;
        next = index + 1;
        match &mut run {
            Some((_, len)) if gap <= GAP_MAX => *len += gap + 1,
            _ => {
                if let Some((offset, len)) = run.replace((gap, 1)) {
                    push_span(out, field, offset, len);
                }
            }
        }
    }
    if let Some((offset, len)) = run {
        push_span(out, field, offset, len);
    }
}

fn push_span(out: &mut Vec<u8>, field: u32, offset: i32, len: i32) {
    push_message(out, field, |out| {
        push_uint(out, 1, zigzag(offset.into()));
        push_uint(out, 2, len as u64);
    });
}

/// Appends the buckets' counts, each as the difference from the one before; those in gaps within a run are 0.
fn push_deltas(out: &mut Vec<u8>, field: u32, buckets: &[(i32, u64)]) {
    let Some(&(mut next, _)) = buckets.first() else { return };
    push_message(out, field, |out| {
        let mut previous = 0;
        let mut push = |count: u64| {
            push_varint(out, zigzag(count.wrapping_sub(previous) as i64));
            previous = count;
        };
        for &(index, count) in buckets {
            if index - next <= GAP_MAX {
                (next..index).for_each(|_| push(0));
            }
            push(count);
            next = index + 1;
        }
    });
}

fn push_exemplar(out: &mut Vec<u8>, exemplar: &Exemplar) {
    push_labels(out, &exemplar.labels);
    push_double(out, 2, exemplar.value);
    push_time(out, 3, exemplar.unix_ms);
}

/// Appends a `google.protobuf.Timestamp`; nothing if the time is not known.
fn push_time(out: &mut Vec<u8>, field: u32, unix_ms: u64) {
    if unix_ms > 0 {
        push_message(out, field, |out| {
            push_uint(out, 1, unix_ms / 1000);
            push_uint(out, 2, unix_ms % 1000 * 1_000_000);
        });
    }
}

// The wire format: <https://protobuf.dev/programming-guides/encoding/>.

fn push_uint(out: &mut Vec<u8>, field: u32, value: u64) {
    push_varint(out, u64::from(field << 3));
    push_varint(out, value);
}

fn push_double(out: &mut Vec<u8>, field: u32, value: f64) {
    push_varint(out, u64::from(field << 3 | 1));
    out.extend_from_slice(&value.to_le_bytes());
}

fn push_bytes(out: &mut Vec<u8>, field: u32, bytes: &[u8]) {
    push_varint(out, u64::from(field << 3 | 2));
    push_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Appends what `body` appends, as a field with its length in front. Most bodies are shorter than 128 bytes, so one
/// byte is reserved for the length; a longer body is moved.
#[inline]
fn push_message(out: &mut Vec<u8>, field: u32, body: impl FnOnce(&mut Vec<u8>)) {
    push_varint(out, u64::from(field << 3 | 2));
    let mut at = out.len();
    out.push(0);
    body(out);
    let mut len = out.len() - at - 1;
    while len >= 0x80 {
        out.insert(at, len as u8 | 0x80);
        at += 1;
        len >>= 7;
    }
    out[at] = len as u8;
}

#[inline]
fn push_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

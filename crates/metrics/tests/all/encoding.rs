//! Properties of any series: patching equals encoding again, and another implementation reads the same numbers.

use crate::client_model;
use proptest::prelude::*;
use prost::Message;
use stillgate_metrics::encode::{EncodeOptions, FamilyEncoder, Format};
use stillgate_metrics::{
    Buckets, Distribution, Exemplar, Exponential, Family, FamilyType, Merge, Native, Value, labels,
};

const FORMATS: [Format; 3] = [Format::Text, Format::OpenMetrics, Format::Protobuf];

fn family(kind: FamilyType) -> Family {
    let labels = vec!["a".into(), "b".into()];
    Family { name: "x_total".into(), help: "h".into(), unit: String::new(), kind, labels, exemplars: false }
}

fn encoded_labels(values: &[String]) -> Vec<u8> {
    let names = ["a".to_owned(), "b".to_owned()];
    let values: Vec<&[u8]> = values.iter().map(String::as_bytes).collect();
    let mut out = Vec::new();
    labels::encode(&mut out, &names, &values);
    out
}

fn decoded(encoder: &FamilyEncoder, body: &[u8]) -> client_model::MetricFamily {
    let mut message = Vec::new();
    encoder.family_head(body.len(), &mut message);
    message.extend_from_slice(body);
    client_model::MetricFamily::decode_length_delimited(message.as_slice()).unwrap()
}

/// Bucket indices and counts as Prometheus would make them out of spans and deltas.
fn buckets(spans: &[client_model::BucketSpan], deltas: &[i64]) -> Vec<(i32, u64)> {
    let mut deltas = deltas.iter();
    let (mut index, mut count) = (0, 0_i64);
    let mut buckets = Vec::new();
    for span in spans {
        index += span.offset;
        for _ in 0..span.length {
            count = count.wrapping_add(*deltas.next().unwrap());
            if count != 0 {
                buckets.push((index, count as u64));
            }
            index += 1;
        }
    }
    assert!(deltas.next().is_none());
    buckets
}

fn some_buckets() -> impl Strategy<Value = Vec<(i32, u64)>> {
    // Gaps of every kind, and counts of every width.
    let counts = prop::collection::vec((1_i32..6, any::<u32>(), 0_u32..32), 0..40);
    (-1000_i32..1000, counts).prop_map(|(start, counts)| {
        let mut index = start;
        let next = |(gap, count, shift): (i32, u32, u32)| {
            index += gap;
            (index, u64::from(count >> shift) + 1)
        };
        counts.into_iter().map(next).collect()
    })
}

proptest! {
    #[test]
    fn patching_equals_encoding(
        values in prop::collection::vec(".{0,40}", 2),
        old in any::<u64>(), new in any::<u64>(), shift in 0_u32..64, whole in any::<bool>(), before in 0_usize..3,
    ) {
        let labels = encoded_labels(&values);
        let float = |bits: u64| if whole { (bits >> shift) as f64 / 8.0 } else { f64::from_bits(bits) };
        let cases = [
            (FamilyType::Counter, Value::Unsigned(old >> shift), Value::Unsigned(new >> shift)),
            (FamilyType::FloatCounter, Value::Float(float(old)), Value::Float(float(new))),
            (FamilyType::Gauge(Merge::Sum), Value::Float(float(old)), Value::Float(float(new))),
        ];
        for ((kind, old, new), format) in cases.into_iter().flat_map(|case| FORMATS.map(|format| (case.clone(), format))) {
            let encoder = FamilyEncoder::new(&family(kind), format, EncodeOptions { created: true });
            let (mut patched, mut fresh) = (vec![b'#'; before], vec![b'#'; before]);
            let span = encoder.series(&labels, 1_700_000_000_000, old, &[], &mut patched).unwrap();
            encoder.series(&labels, 1_700_000_000_000, new, &[], &mut fresh).unwrap();
            let unpatched = patched.clone();
            if encoder.patch(new, &mut patched[span.start..span.end]) {
                prop_assert_eq!(patched, fresh);
            } else {
                prop_assert_eq!(&patched, &unpatched);
                prop_assert_ne!(patched.len(), fresh.len());
            }
        }
    }

    #[test]
    fn protobuf_labels_and_values_are_read_back(values in prop::collection::vec("(?s).{0,120}", 2), bits in any::<u64>()) {
        let encoder = FamilyEncoder::new(&family(FamilyType::Gauge(Merge::Max)), Format::Protobuf, EncodeOptions::default());
        let mut body = Vec::new();
        for value in [Value::Float(f64::from_bits(bits)), Value::Float(1.0)] {
            encoder.series(&encoded_labels(&values), 0, value, &[], &mut body).unwrap();
        }
        let read = decoded(&encoder, &body);
        prop_assert_eq!(read.metric.len(), 2);
        for (metric, bits) in read.metric.iter().zip([bits, 1.0_f64.to_bits()]) {
            let read: Vec<&str> = metric.label.iter().map(|label| label.value.as_str()).collect();
            prop_assert_eq!(read, values.iter().map(String::as_str).collect::<Vec<_>>());
            prop_assert_eq!(metric.gauge.as_ref().unwrap().value.to_bits(), bits);
        }
    }

    #[test]
    fn histograms_are_read_back(
        positive in some_buckets(), negative in some_buckets(), classic in prop::collection::vec(0_u64..1000, 4),
        schema in -4_i8..=8, zero_count in 0_u64..3, nan_count in 0_u64..3, with_classic in any::<bool>(),
    ) {
        let bounds = if with_classic { vec![0.5, 1.0, 10.0] } else { vec![] };
        let classic = if with_classic { classic } else { vec![] };
        let kind = FamilyType::Histogram(Buckets { classic: bounds, native: Some(Native::default()) });
        let native = Exponential { schema, zero_threshold: 0.0, zero_count, positive, negative, nan_count };
        let value = Distribution { sum: 1.25, classic: classic.clone(), native: Some(native.clone()) };
        let encoder = FamilyEncoder::new(&family(kind), Format::Protobuf, EncodeOptions::default());
        let mut body = Vec::new();
        prop_assert_eq!(encoder.series(b"", 5, Value::Histogram(&value), &[], &mut body), None);
        let read = decoded(&encoder, &body).metric[0].histogram.clone().unwrap();
        prop_assert_eq!((read.sample_count, read.sample_sum), (value.count(), 1.25));
        prop_assert_eq!((read.schema, read.zero_count), (Some(schema.into()), Some(zero_count)));
        prop_assert_eq!(buckets(&read.positive_span, &read.positive_delta), native.positive);
        prop_assert_eq!(buckets(&read.negative_span, &read.negative_delta), native.negative);
        // Prometheus recognises native histograms by these.
        prop_assert!(zero_count > 0 || !read.positive_span.is_empty() || !read.negative_span.is_empty());
        let mut below = 0;
        let sums: Vec<u64> = classic.iter().map(|count| { below += count; below }).collect();
        prop_assert_eq!(read.bucket.iter().map(|bucket| bucket.cumulative_count).collect::<Vec<_>>(), sums);
    }
}

#[test]
fn a_counter_with_exemplars_cannot_be_patched() {
    let mut traced = family(FamilyType::Counter);
    traced.exemplars = true;
    let exemplar = Exemplar { bucket: 0, labels: b"t=\"1\"".to_vec(), value: 1.0, unix_ms: 1 };
    for (format, patchable) in FORMATS.into_iter().zip([true, false, false]) {
        let encoder = FamilyEncoder::new(&traced, format, EncodeOptions::default());
        for exemplars in [&[][..], std::slice::from_ref(&exemplar)] {
            let span = encoder.series(b"", 0, Value::Unsigned(1), exemplars, &mut Vec::new());
            assert_eq!(span.is_some(), patchable, "{format:?}");
        }
    }
}

//! Latency histograms as text in result files, and the figures computed from them.
//!
//! The text is HdrHistogram's V2 deflated form in base64, which the public HdrHistogram tools read, and which takes a
//! few kilobytes for any number of requests. Histograms count nanoseconds; figures are given in microseconds, which
//! people compare. Every figure here follows from the decoded text alone, so that a file analysed years later gives the
//! same result. Their meaning, and whether two of them differ, is decided elsewhere.

use crate::error::{Error, Result};
use crate::result::run::Percentiles;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Deserializer, Serializer as _, V2DeflateSerializer};
use stillgate_load::outcome;

/// Nanoseconds in the unit of all figures.
const NS_PER_US: f64 = 1e3;

/// Most slots of a histogram in a file; ours have some 35,000. A damaged head must not use all memory.
const SLOTS_MAX: usize = 1 << 20;

/// The text of a histogram.
pub(crate) fn encode(histogram: &Histogram<u64>) -> Result<String> {
    let mut bytes = Vec::new();
    V2DeflateSerializer::new()
        .serialize(histogram, &mut bytes)
        .map_err(|error| Error::new(format!("a histogram cannot be written: {error}")))?;
    Ok(STANDARD.encode(bytes))
}

/// The histogram of a text.
pub(crate) fn decode(text: &str) -> Result<Histogram<u64>> {
    let damaged = |why: String| Error::new(format!("a histogram cannot be read: {why}; the file is damaged"));
    let bytes = STANDARD.decode(text).map_err(|error| damaged(format!("not base64: {error}")))?;
    let histogram: Histogram<u64> =
        Deserializer::new().deserialize(&mut bytes.as_slice()).map_err(|error| damaged(error.to_string()))?;
    if histogram.distinct_values() > SLOTS_MAX {
        return Err(damaged(format!("it has {} slots, at most {SLOTS_MAX} are expected", histogram.distinct_values())));
    }
    Ok(histogram)
}

/// All requests of several histograms as if they were from one run.
pub(crate) fn merge<'a>(histograms: impl IntoIterator<Item = &'a Histogram<u64>>) -> Result<Histogram<u64>> {
    let mut all = outcome::histogram();
    for histogram in histograms {
        all.add(histogram).map_err(|error| {
            Error::new(format!("histograms cannot be merged: {error}; one contains a latency of more than an hour"))
        })?;
    }
    Ok(all)
}

/// The percentiles of a histogram; zeros if it is empty.
pub(crate) fn percentiles(histogram: &Histogram<u64>) -> Percentiles {
    Percentiles {
        p50: quantile_us(histogram, 0.5),
        p90: quantile_us(histogram, 0.9),
        p99: quantile_us(histogram, 0.99),
        p99_9: quantile_us(histogram, 0.999),
        p99_99: quantile_us(histogram, 0.9999),
        max: max_us(histogram),
    }
}

/// The smallest value that at least this share of the requests (0 to 1) did not exceed, in microseconds.
pub(crate) fn quantile_us(histogram: &Histogram<u64>, share: f64) -> f64 {
    histogram.value_at_quantile(share) as f64 / NS_PER_US
}

/// As [`quantile_us`] for ascending shares, in one pass.
pub(crate) fn quantiles_us(histogram: &Histogram<u64>, shares: impl IntoIterator<Item = f64>) -> Vec<f64> {
    histogram.value_at_quantiles(shares).map(|ns| ns as f64 / NS_PER_US).collect()
}

/// The slowest request, in microseconds.
pub(crate) fn max_us(histogram: &Histogram<u64>) -> f64 {
    histogram.max() as f64 / NS_PER_US
}

/// The latency of the request with this rank, 1 being the fastest, in microseconds; `None` beyond the last.
pub(crate) fn rank_us(histogram: &Histogram<u64>, rank: u64) -> Option<f64> {
    let mut below = 0;
    histogram.iter_recorded().find_map(|slot| {
        below += slot.count_since_last_iteration();
        (below >= rank).then(|| slot.value_iterated_to() as f64 / NS_PER_US)
    })
}

/// The confidence interval of a quantile by order statistics, in microseconds; `None` if there are too few requests. It
/// assumes independent requests, which those of one stall are not: it shows the resolution of a histogram, not the
/// difference to expect between two runs.
pub(crate) fn quantile_interval_us(histogram: &Histogram<u64>, share: f64, confidence: f64) -> Option<(f64, f64)> {
    let (low, high) = stillgate_stats::quantile_ranks(histogram.len(), share, confidence)?;
    Some((rank_us(histogram, low)?, rank_us(histogram, high)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(values_ns: &[u64]) -> Histogram<u64> {
        let mut histogram = outcome::histogram();
        values_ns.iter().for_each(|&value| histogram.saturating_record(value));
        histogram
    }

    #[test]
    fn figures_are_in_microseconds() {
        let histogram = of(&(1..=1000).map(|ms| ms * 1_000_000).collect::<Vec<_>>());
        let figures = percentiles(&histogram);
        let near = |value: f64, us: f64| assert!((value / us - 1.0).abs() < 0.002, "{value} is not near {us}");
        near(figures.p50, 500_000.0);
        near(figures.p90, 900_000.0);
        near(figures.p99, 990_000.0);
        near(figures.p99_9, 999_000.0);
        near(figures.max, 1_000_000.0);
        near(rank_us(&histogram, 1).unwrap(), 1_000.0);
        near(rank_us(&histogram, 1000).unwrap(), 1_000_000.0);
        assert_eq!(rank_us(&histogram, 1001), None);
    }

    #[test]
    fn one_pass_gives_the_same_as_many() {
        let histogram = of(&(1..=1000).map(|us| us * us * 1_000).collect::<Vec<_>>());
        let shares: Vec<f64> = (0..=1000).map(|step| f64::from(step) / 1000.0).collect();
        let each: Vec<f64> = shares.iter().map(|share| quantile_us(&histogram, *share)).collect();
        assert_eq!(quantiles_us(&histogram, shares), each);
        assert_eq!(quantiles_us(&of(&[]), [0.5, 1.0]), [0.0, 0.0]);
    }

    #[test]
    fn an_interval_holds_its_quantile_and_needs_requests() {
        let histogram = of(&(1..=100_000).map(|us| us * 1_000).collect::<Vec<_>>());
        let (low, high) = quantile_interval_us(&histogram, 0.5, 0.95).unwrap();
        let middle = quantile_us(&histogram, 0.5);
        assert!(low < middle && middle < high && high - low < 1_000.0, "{low} {middle} {high}");
        assert_eq!(quantile_interval_us(&of(&[1, 2, 3]), 0.999, 0.95), None);
    }

    #[test]
    fn nothing_recorded_gives_zeros() {
        assert_eq!(percentiles(&of(&[])), Percentiles::default());
        assert_eq!(rank_us(&of(&[]), 1), None);
    }

    #[test]
    fn damaged_texts_are_refused_in_words() {
        let check = |text: &str, message: &str| {
            let error = decode(text).unwrap_err().to_string();
            assert!(error.contains(message), "{text:?}: {error}");
        };
        let whole = encode(&of(&[1, 20, 300])).unwrap();
        check("", "cannot be read");
        check("not base64!", "not base64");
        check(&STANDARD.encode("something else"), "cookie");
        check(&whole[..whole.len() / 8 * 4], "damaged");
    }

    proptest! {
        #[test]
        fn a_text_gives_its_histogram_back(values in proptest::collection::vec(1u64..10_000_000_000, 0..200)) {
            let histogram = of(&values);
            prop_assert_eq!(decode(&encode(&histogram).unwrap()).unwrap(), histogram);
        }

        #[test]
        fn merged_is_as_if_recorded_together(
            a in proptest::collection::vec(1u64..10_000_000_000, 0..100),
            b in proptest::collection::vec(1u64..10_000_000_000, 0..100),
        ) {
            let together: Vec<u64> = a.iter().chain(&b).copied().collect();
            prop_assert_eq!(merge([&of(&a), &of(&b)]).unwrap(), of(&together));
        }
    }
}

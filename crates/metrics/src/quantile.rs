//! The change of a histogram between two readings, and its quantiles.
//!
//! Observations are assumed to be spread evenly within a bucket: linearly in classic buckets, exponentially in native
//! ones, like Prometheus' `histogram_quantile`. Observations below zero are not expected, since nothing measured here
//! is negative.

use crate::family::Buckets;
use crate::value::{Distribution, Exponential, coarser};
use std::collections::BTreeMap;

impl Distribution {
    /// The observations since an earlier state of the same histogram. If the histogram was reset, buckets that have
    /// fewer observations than before count as empty.
    pub fn since(&self, earlier: &Distribution) -> Distribution {
        let before = |index: usize| earlier.classic.get(index).copied().unwrap_or(0);
        let classic = self.classic.iter().enumerate().map(|(index, now)| now.saturating_sub(before(index)));
        let native = self.native.as_ref().map(|native| match &earlier.native {
            Some(earlier) => native.since(earlier),
            None => native.clone(),
        });
        Distribution { sum: (self.sum - earlier.sum).max(0.0), classic: classic.collect(), native }
    }

    /// The smallest value that a share `q`, from 0 to 1, of the observations do not exceed; `None`: there are no
    /// observations.
    pub fn quantile(&self, q: f64, buckets: &Buckets) -> Option<f64> {
        match &self.native {
            Some(native) if native.count() > 0 => native.quantile(q),
            _ => classic_quantile(&self.classic, &buckets.classic, q),
        }
    }
}

impl Exponential {
    fn since(&self, earlier: &Exponential) -> Exponential {
        let schema = self.schema.min(earlier.schema);
        let coarse = |state: &Exponential| {
            let mut buckets: BTreeMap<i32, u64> = BTreeMap::new();
            for (index, count) in &state.positive {
                *buckets.entry(coarser(*index, state.schema - schema)).or_default() += count;
            }
            buckets
        };
        let before = coarse(earlier);
        let rest = |(index, now): (i32, u64)| {
            let more = now.saturating_sub(before.get(&index).copied().unwrap_or(0));
            (more > 0).then_some((index, more))
        };
        Exponential {
            schema,
            zero_count: self.zero_count.saturating_sub(earlier.zero_count),
            positive: coarse(self).into_iter().filter_map(rest).collect(),
            nan_count: self.nan_count.saturating_sub(earlier.nan_count),
            zero_threshold: self.zero_threshold,
            negative: Vec::new(),
        }
    }

    fn quantile(&self, q: f64) -> Option<f64> {
        let all: u64 = self.zero_count + self.positive.iter().map(|(_, count)| count).sum::<u64>();
        let rank = q * all as f64;
        let mut below = self.zero_count;
        if all == 0 || rank <= below as f64 {
            return (all > 0).then_some(0.0);
        }
        let width = (-f64::from(self.schema)).exp2();
        for (index, count) in &self.positive {
            below += count;
            if rank <= below as f64 {
                let share = 1.0 - (below as f64 - rank) / *count as f64;
                return Some(((f64::from(*index) - 1.0 + share) * width).exp2());
            }
        }
        None
    }
}

/// In the bucket beyond the last bound the result is that bound: no more is known.
fn classic_quantile(counts: &[u64], bounds: &[f64], q: f64) -> Option<f64> {
    let all: u64 = counts.iter().sum();
    if all == 0 {
        return None;
    }
    let rank = q * all as f64;
    let mut below = 0;
    for (index, count) in counts.iter().enumerate() {
        below += count;
        if *count > 0 && rank <= below as f64 {
            let Some(upper) = bounds.get(index) else { break };
            let lower = if index == 0 { 0.0 } else { bounds[index - 1] };
            let share = 1.0 - (below as f64 - rank) / *count as f64;
            return Some(lower + (upper - lower) * share);
        }
    }
    bounds.last().copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::family::Native;

    fn near(found: Option<f64>, expected: f64) {
        let found = found.unwrap();
        assert!((found - expected).abs() <= 1e-9 * expected.abs().max(1.0), "{found}, not {expected}");
    }

    #[test]
    fn classic_buckets_are_linear() {
        let buckets = Buckets { classic: vec![1.0, 2.0, 4.0], native: None };
        let state = |classic: [u64; 4]| Distribution { sum: 0.0, classic: classic.to_vec(), native: None };
        near(state([0, 10, 0, 0]).quantile(0.5, &buckets), 1.5);
        near(state([5, 0, 5, 0]).quantile(0.5, &buckets), 1.0);
        near(state([5, 0, 5, 0]).quantile(0.9, &buckets), 3.6);
        near(state([0, 0, 0, 3]).quantile(0.5, &buckets), 4.0);
        assert_eq!(state([0; 4]).quantile(0.5, &buckets), None);
    }

    #[test]
    fn native_buckets_are_exponential() {
        let buckets = Buckets { classic: Vec::new(), native: Some(Native::default()) };
        let state = |positive: &[(i32, u64)], zero_count| {
            let native = Exponential { schema: 0, positive: positive.to_vec(), zero_count, ..Exponential::default() };
            Distribution { native: Some(native), ..Distribution::default() }
        };
        // At schema 0, bucket 1 ranges from 1 to 2, bucket 2 from 2 to 4.
        near(state(&[(1, 4), (2, 4)], 0).quantile(0.5, &buckets), 2.0);
        near(state(&[(1, 4), (2, 4)], 0).quantile(1.0, &buckets), 4.0);
        near(state(&[(1, 4)], 0).quantile(0.5, &buckets), 2f64.sqrt());
        near(state(&[(1, 1)], 9).quantile(0.5, &buckets), 0.0);
        assert_eq!(state(&[], 0).quantile(0.5, &buckets), None);
    }

    #[test]
    fn what_has_happened_since_is_the_difference() {
        let fine = Exponential { schema: 1, positive: vec![(1, 2), (2, 3), (5, 1)], ..Exponential::default() };
        let coarse = Exponential { schema: 0, positive: vec![(1, 9), (3, 1)], zero_count: 4, ..Exponential::default() };
        let since = coarse.since(&fine);
        assert_eq!((since.schema, since.positive, since.zero_count), (0, vec![(1, 4)], 4));
        // The histogram was reset.
        let small = Distribution { sum: 1.0, classic: vec![1, 5], native: None };
        let large = Distribution { sum: 9.0, classic: vec![7, 2], native: None };
        assert_eq!(small.since(&large), Distribution { sum: 0.0, classic: vec![0, 3], native: None });
    }
}

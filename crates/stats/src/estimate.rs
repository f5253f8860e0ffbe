//! A number with the range of its plausible values.

/// A closed range of plausible values, in the unit of the estimate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Interval {
    /// The lower end, itself plausible.
    pub low: f64,
    /// The upper end, at least `low`.
    pub high: f64,
}

/// A point estimate with its confidence interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    /// The best single value.
    pub value: f64,
    /// The interval at the requested confidence.
    pub interval: Interval,
}

/// The standard deviation over n - 1. `None` below 2 values, where one is not finite or their squares overflow.
pub fn standard_deviation(values: &[f64]) -> Option<f64> {
    if values.len() < 2 || !is_sample(values) {
        return None;
    }
    Some(mean_and_deviation(values).1).filter(|deviation| deviation.is_finite())
}

/// Mean and standard deviation over n - 1, in two passes, the second correcting the mean by the rest of the first.
pub(crate) fn mean_and_deviation(values: &[f64]) -> (f64, f64) {
    let n = values.len() as f64;
    let rough = values.iter().sum::<f64>() / n;
    let left = values.iter().map(|value| value - rough).sum::<f64>() / n;
    let mean = rough + left;
    let squares: f64 = values.iter().map(|value| (value - mean) * (value - mean)).sum();
    (mean, (squares / (n - 1.0)).sqrt())
}

/// Whether a confidence, significance or power is valid: strictly between 0 and 1.
pub(crate) fn is_level(level: f64) -> bool {
    level > 0.0 && level < 1.0
}

/// Whether there are values and every one is finite.
pub(crate) fn is_sample(values: &[f64]) -> bool {
    !values.is_empty() && values.iter().all(|value| value.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deviation_needs_two_values() {
        let check =
            |values: &[f64], expected: Option<f64>| assert_eq!(standard_deviation(values), expected, "{values:?}");
        check(&[], None);
        check(&[3.0], None);
        check(&[3.0, f64::NAN], None);
        check(&[f64::MAX, -f64::MAX], None);
        check(&[3.0, 3.0, 3.0], Some(0.0));
        check(&[1.0, 3.0], Some(2f64.sqrt()));
    }
}

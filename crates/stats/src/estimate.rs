//! A number with the range that the data leave open for it.

/// A closed range of plausible values, in the unit of what was estimated.
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
    /// The interval at the confidence that was asked for.
    pub interval: Interval,
}

/// Whether a confidence, significance or power is one: strictly between 0 and 1.
pub(crate) fn is_level(level: f64) -> bool {
    level > 0.0 && level < 1.0
}

/// Whether there are values and every one is finite.
pub(crate) fn is_sample(values: &[f64]) -> bool {
    !values.is_empty() && values.iter().all(|value| value.is_finite())
}

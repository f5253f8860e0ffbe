//! The laboratory's statistics for the tables: an undetermined value is not a number.

/// The middle value, or the mean of the two middle ones.
pub(super) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let values: Vec<f64> = values.into_iter().collect();
    stillgate_stats::median(&values).unwrap_or(f64::NAN)
}

/// The lower and upper quartile.
pub(super) fn quartiles(values: &[f64]) -> (f64, f64) {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let quantile = |part| stillgate_stats::quantile(&values, part).unwrap_or(f64::NAN);
    (quantile(0.25), quantile(0.75))
}

//! The few statistics the tables need.

/// The middle value, or the mean of the two middle ones. Not a number if there is none.
pub(super) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => values[middle],
        _ => f64::midpoint(values[middle - 1], values[middle]),
    }
}

/// The medians of the lower and the upper half; the middle value belongs to both.
pub(super) fn quartiles(values: &[f64]) -> (f64, f64) {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let half = values.len().div_ceil(2);
    (median(values[..half].iter().copied()), median(values[values.len() - half..].iter().copied()))
}

/// The smallest value that at least `part` (0 to 1) of the sorted values do not exceed; 0 if there is none.
pub(super) fn percentile(sorted: &[u32], part: f64) -> u32 {
    let rank = (part * sorted.len() as f64).ceil() as usize;
    let index = rank.saturating_sub(1).min(sorted.len().saturating_sub(1));
    sorted.get(index).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_odd_even_and_none() {
        assert_eq!(median([3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median([4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median([]).is_nan());
    }

    #[test]
    fn quartiles_of_odd_even_and_none() {
        assert_eq!(quartiles(&[5.0, 1.0, 2.0, 3.0, 4.0]), (2.0, 4.0));
        assert_eq!(quartiles(&[4.0, 1.0, 2.0, 3.0]), (1.5, 3.5));
        assert!(quartiles(&[]).0.is_nan());
    }

    #[test]
    fn percentile_is_a_value_of_the_list() {
        let values: Vec<u32> = (1..=1000).collect();
        assert_eq!(percentile(&values, 0.5), 500);
        assert_eq!(percentile(&values, 0.99), 990);
        assert_eq!(percentile(&values, 1.0), 1000);
        assert_eq!(percentile(&[], 0.5), 0);
    }
}

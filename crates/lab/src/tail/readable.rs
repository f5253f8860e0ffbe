//! Figures as people read them: three digits, and the unit that keeps them short.

/// The note on effects and the figures of both sides: without it they look like bad arithmetic.
pub(crate) const PAIRED_NOTE: &str = "Each effect is the median of the differences within pairs of blocks (Hodges-Lehmann). It \
    is not the difference of the figures beside it, which summarise the blocks with and without scrapes separately.";

/// Units of times given in microseconds, largest first.
const UNITS: [(&str, f64); 3] = [("s", 1e6), ("ms", 1e3), ("µs", 1.0)];

/// `93.4 ms`
pub(crate) fn time(us: f64) -> String {
    let (unit, scale) = unit_of(us);
    format!("{} {unit}", digits(us / scale))
}

/// `+93.4 ms`
pub(crate) fn change(us: f64) -> String {
    format!("{}{}", if us < 0.0 { "" } else { "+" }, time(us))
}

/// `80.1 to 101 ms`; `any value` if an end is infinite.
pub(crate) fn range(low_us: f64, high_us: f64) -> String {
    if !low_us.is_finite() || !high_us.is_finite() {
        return "any value".to_owned();
    }
    let (unit, scale) = unit_of(low_us.abs().max(high_us.abs()));
    format!("{} to {} {unit}", digits(low_us / scale), digits(high_us / scale))
}

/// `5 s`, `250 ms`
pub(crate) fn seconds(seconds: f64) -> String {
    let (unit, scale) = unit_of(seconds * 1e6);
    format!("{} {unit}", (seconds * 1e9 / scale).round() / 1e3)
}

/// `100,000`
pub(crate) fn count(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> = digits
        .as_bytes()
        .rchunks(3)
        .rev()
        .map(|group| std::str::from_utf8(group).expect("decimal digits are ASCII"))
        .collect();
    groups.join(",")
}

fn unit_of(us: f64) -> (&'static str, f64) {
    UNITS.into_iter().find(|(_, scale)| us.abs() >= *scale).unwrap_or(("µs", 1.0))
}

/// Three digits, unless the number has more.
fn digits(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        below if below < 9.995 => format!("{value:.2}"),
        below if below < 99.95 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits_and_a_unit() {
        let check = |us: f64, text: &str| assert_eq!(time(us), text);
        check(0.0, "0 µs");
        check(0.25, "0.25 µs");
        check(9.999, "10.0 µs");
        check(85.25, "85.2 µs");
        check(850.4, "850 µs");
        check(1_234.0, "1.23 ms");
        check(-93_400.0, "-93.4 ms");
        check(1_500_000.0, "1.50 s");
        assert_eq!(change(92_000.0), "+92.0 ms");
        assert_eq!(change(-1.0), "-1.00 µs");
    }

    #[test]
    fn a_range_has_one_unit() {
        assert_eq!(range(-50.0, 1_200.0), "-0.05 to 1.20 ms");
        assert_eq!(range(f64::NEG_INFINITY, 3.0), "any value");
    }

    #[test]
    fn intervals_and_counts() {
        assert_eq!([5.0, 0.25, 1.5, 90.0].map(seconds), ["5 s", "250 ms", "1.5 s", "90 s"]);
        assert_eq!([0, 999, 1_000, 1_234_567].map(count), ["0", "999", "1,000", "1,234,567"]);
    }
}

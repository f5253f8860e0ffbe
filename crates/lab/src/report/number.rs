//! Figures as people read them: three significant digits, a suitable unit, separated thousands.
//!
//! It does not decide which figures are shown, and never rounds values used for computation.

/// Shown in place of a missing figure.
pub(crate) const NONE: &str = "–";

/// A duration in microseconds: `850 ns`, `12.3 µs`, `4.56 ms`, `1.20 s`.
pub(crate) fn time(us: f64) -> String {
    let size = us.abs();
    match size {
        _ if !us.is_finite() => NONE.to_owned(),
        0.0 => "0 µs".to_owned(),
        _ if size < 0.9995 => format!("{} ns", three_digits(us * 1e3)),
        _ if size < 999.5 => format!("{} µs", three_digits(us)),
        _ if size < 999_500.0 => format!("{} ms", three_digits(us / 1e3)),
        _ => format!("{} s", three_digits(us / 1e6)),
    }
}

/// A round duration in microseconds, for ticks: `5 ms`.
pub(crate) fn round_time(us: f64) -> String {
    let text = time(us);
    match text.split_once(' ') {
        Some((figure, unit)) if figure.contains('.') => {
            format!("{} {unit}", figure.trim_end_matches('0').trim_end_matches('.'))
        }
        _ => text,
    }
}

/// A round difference with its sign.
pub(crate) fn round_time_difference(us: f64) -> String {
    signed(us, &round_time(us))
}

/// A difference of durations in microseconds, with its sign.
pub(crate) fn time_difference(us: f64) -> String {
    signed(us, &time(us))
}

/// A figure of a result file, formatted by its unit.
pub(crate) fn quantity(value: f64, unit: &str) -> String {
    match unit {
        "us" => time(value),
        "us/request" => format!("{} per request", time(value)),
        "KiB" => bytes(value * 1024.0),
        "requests/s" => format!("{}/s", plain(value)),
        "instructions/request" => format!("{} per request", plain(value)),
        other => format!("{} {other}", plain(value)),
    }
}

/// A share as a signed percentage: `+4.8%`.
pub(crate) fn percent_difference(share: f64) -> String {
    signed(share, &percent(share))
}

/// A share as a percentage.
pub(crate) fn percent(share: f64) -> String {
    if !share.is_finite() {
        return NONE.to_owned();
    }
    let percent = share * 100.0;
    let digits = match percent.abs() {
        size if size < 0.995 => 2,
        size if size < 99.95 => 1,
        _ => 0,
    };
    format!("{}%", grouped(percent, digits))
}

/// A share that was chosen, and therefore is round: `95%`.
pub(crate) fn round_percent(share: f64) -> String {
    let text = percent(share);
    match text.split_once('.') {
        Some((whole, part)) if part.trim_end_matches('%').bytes().all(|digit| digit == b'0') => format!("{whole}%"),
        _ => text,
    }
}

/// An estimate with its interval, the unit once where both ends have the same: `+1.2 ms (+0.9 to +1.5 ms)`. An end may
/// be infinite.
pub(crate) fn interval(value: f64, (low, high): (f64, f64), shown: impl Fn(f64) -> String) -> String {
    let end = |value: f64| match value {
        _ if value.is_finite() => shown(value),
        f64::INFINITY => "\u{221e}".to_owned(),
        f64::NEG_INFINITY => "\u{2212}\u{221e}".to_owned(),
        _ => NONE.to_owned(),
    };
    let (low, high) = (end(low), end(high));
    let low = match (low.split_once(' '), high.split_once(' ')) {
        (Some((figure, unit)), Some((_, same))) if unit == same => figure,
        _ => &low,
    };
    format!("{} ({low} to {high})", end(value))
}

/// A probability of no difference.
pub(crate) fn p_value(p: f64) -> String {
    match p {
        _ if !p.is_finite() => NONE.to_owned(),
        _ if p < 0.001 => "< 0.001".to_owned(),
        _ => format!("{p:.3}"),
    }
}

/// A count in full: `1,234,567`.
pub(crate) fn count(value: u64) -> String {
    let digits = value.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A count for an axis or a name: `1k`, `2.5M`.
pub(crate) fn short_count(value: f64) -> String {
    let (scaled, suffix) = match value.abs() {
        size if size < 999.5 => (value, ""),
        size if size < 999_500.0 => (value / 1e3, "k"),
        size if size < 999_500_000.0 => (value / 1e6, "M"),
        _ => (value / 1e9, "G"),
    };
    let text = three_digits(scaled);
    let short = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{short}{suffix}")
}

/// Bytes: `1.20 MiB`.
pub(crate) fn bytes(value: f64) -> String {
    let (scaled, unit) = match value.abs() {
        size if size < 1024.0 => (value, "B"),
        size if size < 1024.0 * 1024.0 => (value / 1024.0, "KiB"),
        size if size < 1024.0 * 1024.0 * 1024.0 => (value / 1024.0 / 1024.0, "MiB"),
        _ => (value / 1024.0 / 1024.0 / 1024.0, "GiB"),
    };
    if unit == "B" { format!("{} B", grouped(scaled, 0)) } else { format!("{} {unit}", three_digits(scaled)) }
}

/// Seconds as an experiment's design has them: `5 s`, `0.8 s`, `2 min`.
pub(crate) fn seconds(value: f64) -> String {
    match value.abs() {
        0.0 => "0 s".to_owned(),
        size if size >= 120.0 && (size % 60.0) == 0.0 => format!("{} min", grouped(value / 60.0, 0)),
        size if size >= 1.0 => format!("{} s", short_count(value)),
        _ => round_time(value * 1e6),
    }
}

/// Any figure: in full from a thousand on, with three digits below.
pub(crate) fn plain(value: f64) -> String {
    if value.abs() < 999.5 { three_digits(value) } else { grouped(value, 0) }
}

fn signed(value: f64, text: &str) -> String {
    if value > 0.0 { format!("+{text}") } else { text.to_owned() }
}

fn three_digits(value: f64) -> String {
    let digits = match value.abs() {
        0.0 => 0,
        size if size < 9.995 => 2,
        size if size < 99.95 => 1,
        _ => 0,
    };
    grouped(value, digits)
}

/// With `digits` digits after the point, separated thousands, and a minus that is as wide as a plus.
fn grouped(value: f64, digits: usize) -> String {
    if !value.is_finite() {
        return NONE.to_owned();
    }
    let text = format!("{:.digits$}", value.abs());
    let (whole, fraction) = text.split_once('.').map_or((text.as_str(), None), |(whole, part)| (whole, Some(part)));
    // No measurement exceeds u64; digits without commas will do.
    let whole = whole.parse().map_or_else(|_| whole.to_owned(), count);
    let zero = text.bytes().all(|byte| matches!(byte, b'0' | b'.'));
    let sign = if value < 0.0 && !zero { "\u{2212}" } else { "" };
    match fraction {
        Some(fraction) => format!("{sign}{whole}.{fraction}"),
        None => format!("{sign}{whole}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_take_the_unit_that_fits() {
        let check = |us: f64, shown: &str| assert_eq!(time(us), shown);
        check(0.0, "0 µs");
        check(0.85, "850 ns");
        check(12.34, "12.3 µs");
        check(999.6, "1.00 ms");
        check(934_910.0, "935 ms");
        check(1_234_567.0, "1.23 s");
        check(-4_560.0, "\u{2212}4.56 ms");
        check(f64::INFINITY, NONE);
    }

    #[test]
    fn differences_have_signs() {
        assert_eq!(time_difference(1_500.0), "+1.50 ms");
        assert_eq!(percent_difference(0.0482), "+4.8%");
        assert_eq!(percent_difference(-0.004), "\u{2212}0.40%");
        assert_eq!(percent_difference(12.5), "+1,250%");
        assert_eq!(percent_difference(0.0), "0.00%");
    }

    #[test]
    fn intervals_say_their_unit_once() {
        let check = |low, high, text: &str| assert_eq!(interval(1_200.0, (low, high), time_difference), text);
        check(900.0, 1_500.0, "+1.20 ms (+900 µs to +1.50 ms)");
        check(1_100.0, 1_500.0, "+1.20 ms (+1.10 to +1.50 ms)");
        check(f64::NEG_INFINITY, f64::INFINITY, "+1.20 ms (\u{2212}∞ to ∞)");
        assert_eq!((round_percent(0.95), round_percent(0.975)), ("95%".to_owned(), "97.5%".to_owned()));
    }

    #[test]
    fn counts_are_grouped_or_short() {
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(count(999), "999");
        let check = |value: f64, shown: &str| assert_eq!(short_count(value), shown);
        check(1e3, "1k");
        check(2.5e6, "2.5M");
        check(999_999.0, "1M");
        check(120.0, "120");
    }

    #[test]
    fn quantities_follow_their_unit() {
        let check = |value: f64, unit: &str, shown: &str| assert_eq!(quantity(value, unit), shown);
        check(12.5, "us/request", "12.5 µs per request");
        check(2048.0, "KiB", "2.00 MiB");
        check(81_234.4, "requests/s", "81,234/s");
        check(7.0, "furlongs", "7.00 furlongs");
    }
}

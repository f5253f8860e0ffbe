//! Numbers with the unit that fits them, as wrk prints them.

/// A time in nanoseconds: `12.34us`, `1.50ms`, `2.00s`, `3.50m`, `1.25h`.
pub fn latency(ns: u64) -> String {
    scaled(ns as f64 / 1e3, &[("us", 1e3), ("ms", 1e3), ("s", 60.0), ("m", 60.0), ("h", f64::INFINITY)])
}

/// A number of bytes: `512.00B`, `1.50KB`, `19.81MB`; the prefixes are powers of 1024.
pub fn bytes(bytes: u64) -> String {
    scaled(bytes as f64, &[("B", 1024.0), ("KB", 1024.0), ("MB", 1024.0), ("GB", 1024.0), ("TB", f64::INFINITY)])
}

/// Two decimals in the first unit in which the value is below the next unit.
fn scaled(mut value: f64, units: &[(&str, f64)]) -> String {
    for (unit, next) in units {
        // A value that rounding would lift to the next unit is shown in that.
        if value < next - 0.005 {
            return format!("{value:.2}{unit}");
        }
        value /= next;
    }
    format!("{value:.2}")
}

/// Cuts a text that is longer than a few lines.
pub fn shortened(text: &str) -> std::borrow::Cow<'_, str> {
    const CHARACTERS_MAX: usize = 200;
    match text.char_indices().nth(CHARACTERS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]).into(),
        None => text.into(),
    }
}

/// `1 thread`, `2 threads`
pub(super) fn counted(number: impl Into<u64>, noun: &str) -> String {
    match number.into() {
        1 => format!("1 {noun}"),
        number => format!("{number} {noun}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        for (ns, want) in [
            (0, "0.00us"),
            (1, "0.00us"),
            (12_340, "12.34us"),
            (999_994, "999.99us"),
            (999_999, "1.00ms"),
            (1_500_000, "1.50ms"),
            (59_000_000_000, "59.00s"),
            (59_999_000_000, "1.00m"),
            (3_600_000_000_000, "1.00h"),
            (1_000_000_000_000_000_000, "277777.78h"),
        ] {
            assert_eq!(latency(ns), want, "{ns}");
        }
    }

    #[test]
    fn long_texts_are_cut() {
        assert_eq!(shortened("http://a/"), "http://a/");
        assert_eq!(shortened(&"ü".repeat(60_000)), format!("{}…", "ü".repeat(200)));
    }

    #[test]
    fn sizes() {
        for (size, want) in [
            (0, "0.00B"),
            (1023, "1023.00B"),
            (1024, "1.00KB"),
            (20_772_000, "19.81MB"),
            (1_048_575, "1.00MB"),
            (5_000_000_000_000_000, "4547.47TB"),
        ] {
            assert_eq!(bytes(size), want, "{size}");
        }
    }
}

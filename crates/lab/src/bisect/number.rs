//! The number a measuring command prints: the last one on its standard output.
//!
//! Units may stand behind it (`12.5ms`), words around it. A number within a word (`p99`) is none. What could be read in two
//! ways is refused: a measurement that is off by a thousand looks like a regression.

/// The measurement in a command's output; else what is wrong with it.
pub(super) fn last(output: &str) -> Result<f64, String> {
    let Some(word) = output.split_whitespace().rev().find(|word| is_numeric(word)) else {
        return Err("it printed no number".to_owned());
    };
    let bare = word.trim_matches(|c: char| !c.is_alphanumeric() && !"+-.".contains(c));
    let text = &bare[start(bare)..];
    let end = (1..=text.len())
        .rev()
        .find(|&end| text.is_char_boundary(end) && text[..end].parse::<f64>().is_ok())
        .ok_or_else(|| format!("it printed {word:?}, which is not a number"))?;
    if text[end..].starts_with(',') {
        return Err(format!("it printed {word:?}; write numbers without commas"));
    }
    match text[..end].parse::<f64>() {
        Ok(value) if value.is_finite() && value > 0.0 => Ok(value),
        _ => Err(format!("it printed {word:?}; a measurement is a number above 0")),
    }
}

/// Words that say a number, or that there is none.
fn is_numeric(word: &str) -> bool {
    let bare = word.trim_matches(|c: char| !c.is_alphanumeric() && !"+-.".contains(c));
    let number = &bare[start(bare)..];
    number.starts_with(|c: char| c.is_ascii_digit())
        || number.starts_with(['+', '-', '.']) && number[1..].starts_with(|c: char| c.is_ascii_digit() || c == '.')
        || ["nan", "inf", "infinity"].contains(&number.trim_start_matches(['+', '-']).to_ascii_lowercase().as_str())
}

/// Behind `name=` or `name:`.
fn start(word: &str) -> usize {
    word.rfind(['=', ':']).map_or(0, |at| at + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_number_counts() {
        let check = |output: &str, value: f64| assert_eq!(last(output), Ok(value), "{output:?}");
        check("12.5\n", 12.5);
        check("warming up 3\n1e-3\n", 1e-3);
        check("1\n2\n", 2.0);
        check("time: 12.5ms\n", 12.5);
        check("time=12.5ms (p99)\n", 12.5);
        check("latency p99 7 us\n", 7.0);
        check("took (3.5s)", 3.5);
        check("5%.", 5.0);
    }

    #[test]
    fn what_is_no_measurement_is_refused() {
        let check = |output: &str, why: &str| {
            let error = last(output).unwrap_err();
            assert!(error.contains(why), "{output:?}: {error}");
        };
        check("", "no number");
        check("done p99", "no number");
        check("3\nNaN\n", "above 0");
        check("-inf", "above 0");
        check("0", "above 0");
        check("-4", "above 0");
        check("1e999", "above 0");
        check("1,234", "without commas");
    }
}

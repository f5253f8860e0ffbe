//! Checks a store against the rules of `nightly`: both looks are as large as they should be, a second one was taken
//! where the first requires it, and raw data are there, complete, and give the measured values. Verdicts are not
//! stored: they are computed from the measurements each time.

use super::{EXIT_DIFFERENT, is_same};
use crate::compare::alone::RawReading;
use crate::error::Result;
use crate::nightly::analysis::contradictions;
use crate::store::{self, StoreLine, raw};
use std::fmt::Write as _;
use std::path::Path;

/// The report about a store, with the exit code.
pub(super) fn verify(path: &Path) -> Result<(String, u8)> {
    let contents = store::read(path)?;
    let left = raw::unreferred(path, &contents)?.len();
    let of_rules = contents.lines.iter().flat_map(contradictions);
    let of_raw = contents.lines.iter().flat_map(|line| raw_contradictions(path, line));
    let found: Vec<String> = of_rules.chain(of_raw).chain(contents.left_out.iter().cloned()).collect();
    let shown = path.display();
    let mut out = match found.len() {
        0 => {
            let raw: usize = contents.lines.iter().map(|line| raw::referred(line).count()).sum();
            let raw = if raw > 0 { format!(", {raw} measurements their raw data") } else { String::new() };
            format!("{shown}: verified: {} lines follow the rules{raw}\n", contents.lines.len())
        }
        count => format!("{shown}: {count} lines do not follow the rules:\n"),
    };
    for line in &found {
        // Writing to a `String` does not fail.
        let _ = writeln!(out, "  {line}");
    }
    if left > 0 {
        let _ = writeln!(out, "note: {left} files of raw data belong to no line; the next night removes them");
    }
    Ok((out, if found.is_empty() { 0 } else { EXIT_DIFFERENT }))
}

fn raw_contradictions(store: &Path, line: &StoreLine) -> Vec<String> {
    let wrong = |(name, value): (&str, f64)| {
        let bytes = match raw::read(store, &line.machine, name) {
            Ok(bytes) => bytes,
            Err(why) => return Some(why),
        };
        let again = RawReading::parse(&bytes)?.figure();
        match again {
            Ok(figure) if is_same(Some(figure), Some(value)) => None,
            Ok(figure) => Some(format!("its raw data {name} give {figure}, not {value}")),
            Err(error) => Some(format!("its raw data {name} give no figure: {error}")),
        }
    };
    let of_line = |why: String| format!("{} of {}: {why}", line.series, line.at);
    raw::referred(line).filter_map(wrong).map(of_line).collect()
}

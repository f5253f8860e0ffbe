//! A store, held against the rules of `nightly`: both looks are as large as they should be, and a second one was taken where
//! the first asks for it. Verdicts are in no store: they are made from the measurements each time.

use super::EXIT_DIFFERENT;
use crate::error::Result;
use crate::nightly::analysis::contradictions;
use crate::store;
use std::fmt::Write as _;
use std::path::Path;

/// What is said of a store, with the exit code.
pub(super) fn verify(path: &Path) -> Result<(String, u8)> {
    let contents = store::read(path)?;
    let found: Vec<String> = contents.lines.iter().flat_map(contradictions).chain(contents.left_out).collect();
    let shown = path.display();
    if found.is_empty() {
        return Ok((format!("{shown}: verified: {} lines follow the rules\n", contents.lines.len()), 0));
    }
    let mut out = format!("{shown}: {} lines do not follow the rules:\n", found.len());
    for line in &found {
        // Writing to a `String` does not fail.
        let _ = writeln!(out, "  {line}");
    }
    Ok((out, EXIT_DIFFERENT))
}

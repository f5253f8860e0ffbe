//! The table of functions of an explanation of why one build costs more than another. Flame graphs need a script, and
//! so a separate page.

use super::compare::{ReportInput, Section, Tone};
use super::provenance;
use super::tables::{self, Cell, figures, words};
use crate::compare::words::in_short;
use crate::error::Result;
use crate::explain::words::{HEADS, LUA_HEADS, cells};
use crate::result::explain::{ExplainResult, FunctionChange};

/// Functions in the table.
const LISTED_MAX: usize = 60;

pub(crate) fn section(prefix: &str, source: &ReportInput, result: &ExplainResult) -> Result<Section> {
    let (design, analysis) = (&result.design, &result.analysis);
    let (tone, word) = match (analysis.cpu.is_certain, analysis.cpu.value > 0.0) {
        (false, _) => (Tone::Undecided, "no certain change"),
        (true, true) => (Tone::Worse, "costs more"),
        (true, false) => (Tone::Better, "costs less"),
    };
    let mut section = Section {
        tone,
        word,
        sentence: analysis.sentence.clone(),
        details: analysis.missing.join("; "),
        title: format!("{} and {}", design.a, design.b),
        entries: Vec::new(),
        body: String::new(),
    };
    let caption = format!(
        "Changes for each {}, in per cent of the cost of A; * marks certain changes. Ratio: share of time over share of instructions",
        design.work
    );
    let table = functions(&format!("{prefix}-t"), &caption, &HEADS, &analysis.functions);
    section.part(&format!("{prefix}-functions"), "Functions", &table);
    if !analysis.lua.is_empty() {
        let caption =
            "In per cent of A's CPU time in Lua; bytecode is time in the interpreter. Ratio: CPU over bytecode";
        let table = functions(&format!("{prefix}-l"), caption, &LUA_HEADS, &analysis.lua);
        section.part(&format!("{prefix}-lua"), "Functions in Lua", &table);
    }
    let profiles = match analysis.interrupted_after {
        Some(slices) => format!("{slices} of {}, interrupted", design.slices),
        None => design.slices.to_string(),
    };
    let rows: provenance::Rows = vec![
        ("A", Some(design.a.clone())),
        ("B", Some(design.b.clone())),
        ("command", design.command.as_ref().map(|words| words.join(" "))),
        ("profiles of each", Some(profiles)),
        ("samples per second", Some(design.hz.to_string())),
        ("instructions", result.instructions_missing.as_deref().map(in_short)),
    ];
    provenance::parts(&mut section, prefix, source, &rows);
    Ok(section)
}

fn functions(id: &str, caption: &str, heads: &[&'static str; 9], all: &[FunctionChange]) -> String {
    let rows = all.iter().take(LISTED_MAX).map(|of| {
        let figures = cells(of).into_iter().skip(1).map(Cell::Figure);
        std::iter::once(Cell::Words(of.function.clone())).chain(figures).collect()
    });
    let heads: Vec<_> = std::iter::once(words("function")).chain(heads[1..].iter().copied().map(figures)).collect();
    tables::draw(id, caption, &heads, &rows.collect::<Vec<_>>())
}

//! The result of an experiment whose outcome is a table of figures.

use super::compare::{ReportInput, Section, Tone};
use super::provenance;
use super::tables::{self, Cell, figures, words};
use crate::error::Result;
use crate::figures::words as texts;
use crate::result::FiguresResult;

pub(crate) fn section(prefix: &str, source: &ReportInput, result: &FiguresResult) -> Result<Section> {
    let (tone, word) = match (result.faults.is_empty(), result.rounds.is_empty()) {
        (false, _) => (Tone::Worse, "faults"),
        (true, true) => (Tone::Void, "nothing"),
        (true, false) => (Tone::Plain, "measured"),
    };
    let sentence = match result.faults.first() {
        Some(fault) => format!("{fault}."),
        None => format!("{} rounds of {}.", result.rounds.len(), result.columns.join(", ")),
    };
    let mut section = Section {
        tone,
        word,
        sentence,
        details: String::new(),
        title: result.title.clone(),
        entries: Vec::new(),
        body: String::new(),
    };
    let mut rows = Vec::new();
    let measured = result.lines.iter().zip(&result.analysis).filter(|(_, analysis)| texts::is_measured(analysis));
    for (line, analysis) in measured {
        for (column, cell) in result.columns.iter().zip(&analysis.cells) {
            rows.push(vec![
                Cell::Words(format!("{}, {}", line.name, line.unit)),
                Cell::Words(column.clone()),
                Cell::Figure(texts::value(cell.median)),
                Cell::Interval(texts::ratio(cell)),
            ]);
        }
    }
    let heads = [words("figure"), words("of"), figures("median"), figures("ratio to the first")];
    section.part(
        &format!("{prefix}-figures"),
        "Figures",
        &tables::draw(&format!("{prefix}-f"), "Over all rounds", &heads, &rows),
    );
    let notes: Vec<Vec<Cell>> = texts::notes(result).into_iter().map(|line| vec![Cell::Words(line)]).collect();
    if !notes.is_empty() {
        let table = tables::draw(&format!("{prefix}-n"), "As the command prints it", &[words("what was seen")], &notes);
        section.part(&format!("{prefix}-notes"), "Notes", &table);
    }
    let settings: Vec<Vec<Cell>> = result
        .settings
        .iter()
        .map(|setting| vec![Cell::Words(setting.name.clone()), Cell::Words(setting.value.clone())])
        .collect();
    let heads = [words("setting"), words("value")];
    let table = tables::draw(&format!("{prefix}-s"), "Decided before the first measurement", &heads, &settings);
    section.part(&format!("{prefix}-design"), "Design", &table);
    for (number, subject) in result.subjects.iter().enumerate() {
        let facts = provenance::subject(&format!("{prefix}-t{number}"), subject);
        section.part(&format!("{prefix}-target{number}"), &format!("Target: {}", subject.name), &facts);
    }
    provenance::parts(&mut section, prefix, source, &Vec::new());
    Ok(section)
}

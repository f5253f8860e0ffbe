//! Results without a section of plots: the text of their commands, laid out as tables.
//!
//! They are a run of mock devices, or rounds of two gateways; the functions of an explanation of why one build costs more
//! than another, whose flame graphs need a script, and so a separate page; and any experiment whose outcome is a table of
//! figures.

use super::compare::{ReportInput, Section, Tone};
use super::provenance;
use super::tables::{self, Cell, figures, words};
use crate::compare::words::in_short;
use crate::devices::analysis;
use crate::error::Result;
use crate::explain::words::{HEADS, LUA_HEADS, cells};
use crate::figures as texts;
use crate::result::FiguresResult;
use crate::result::devices::{DevicesDecision, DevicesResult, DevicesRun};
use crate::result::explain::{ExplainResult, FunctionChange};

pub(crate) fn devices_section(prefix: &str, source: &ReportInput, result: &DevicesResult) -> Result<Section> {
    let (tone, word, sentence) = verdict(result);
    let mut section = Section {
        tone,
        word,
        sentence,
        details: String::new(),
        title: format!("Devices of {}", result.design.url),
        entries: Vec::new(),
        body: String::new(),
    };
    if let Some(run) = &result.run {
        section.part(&format!("{prefix}-connects"), "Connects", &connects(prefix, run));
    }
    if let Some(analysis) = &result.analysis {
        let rows: Vec<Vec<Cell>> = analysis
            .measures
            .iter()
            .map(|of| {
                let percent = |share: f64| format!("{:+.1}%", share * 100.0);
                let interval = format!("{} to {}", percent(of.low), percent(of.high));
                vec![
                    Cell::Words(of.measure.clone()),
                    Cell::Figure(format!("{:.1} {}", of.a, of.unit)),
                    Cell::Figure(format!("{:.1} {}", of.b, of.unit)),
                    Cell::Figure(percent(of.effect)),
                    Cell::Figure(interval),
                ]
            })
            .collect();
        let heads = [words("measure"), figures("A"), figures("B"), figures("change"), figures("interval")];
        let table = tables::draw(&format!("{prefix}-m"), "Medians over the rounds", &heads, &rows);
        section.part(&format!("{prefix}-measures"), "CPU time", &table);
    }
    let lines: Vec<Vec<Cell>> =
        analysis::result_text(result).lines().map(|line| vec![Cell::Words(line.trim_start().to_owned())]).collect();
    let table = tables::draw(&format!("{prefix}-l"), "As the command prints it", &[words("what was seen")], &lines);
    section.part(&format!("{prefix}-lines"), "All of it", &table);
    let design = &result.design;
    let rows: provenance::Rows = vec![
        ("devices", Some(design.devices.to_string())),
        ("connects per second", Some(design.connect_rate.to_string())),
        ("messages per second", design.message_rate.map(|rate| rate.to_string())),
        ("acknowledgement", Some(design.ack.clone())),
        ("seed", Some(design.seed.to_string())),
    ];
    provenance::parts(&mut section, prefix, source, &rows);
    Ok(section)
}

fn verdict(result: &DevicesResult) -> (Tone, &'static str, String) {
    match (&result.run, &result.analysis) {
        (_, Some(analysis)) => {
            let (tone, word) = match analysis.decision {
                DevicesDecision::NotWorse => (Tone::Same, "not worse"),
                DevicesDecision::Worse => (Tone::Worse, "worse"),
                DevicesDecision::Undecided => (Tone::Undecided, "undecided"),
                DevicesDecision::Void => (Tone::Void, "void"),
            };
            (tone, word, analysis.sentence.clone())
        }
        (Some(run), None) if run.broken_promises() > 0 => {
            let sentence = format!("The gateway broke its guarantees for {} messages.", run.broken_promises());
            (Tone::Worse, "broken promises", sentence)
        }
        (Some(run), None) if !run.void.is_empty() => (Tone::Void, "void", run.void.join("; ")),
        (Some(run), None) => {
            let sent = run.messages.as_ref().map_or(0, |messages| messages.sent);
            let sentence =
                format!("{} devices connected; {sent} messages, no guarantee broken.", result.design.devices);
            (Tone::Plain, "valid", sentence)
        }
        (None, None) => (Tone::Void, "void", "Nothing was measured.".to_owned()),
    }
}

fn connects(prefix: &str, run: &DevicesRun) -> String {
    let rows: Vec<Vec<Cell>> = run
        .connects
        .iter()
        .map(|step| {
            let known = |figure: Option<String>| Cell::Figure(figure.unwrap_or_else(|| "–".to_owned()));
            vec![
                Cell::Figure(step.devices.to_string()),
                Cell::Figure(step.connects.to_string()),
                known(step.cpu_us_per_connect.map(|us| format!("{us:.1}"))),
                known(step.rss_kib.map(|kib| format!("{:.1}", kib as f64 / 1024.0))),
                Cell::Figure(format!("{:.2}", step.handshake.p99 / 1e3)),
            ]
        })
        .collect();
    let heads = [
        figures("devices"),
        figures("connects"),
        figures("CPU each, us"),
        figures("memory, MiB"),
        figures("handshake p99, ms"),
    ];
    tables::draw(&format!("{prefix}-c"), "Connects by step", &heads, &rows)
}

/// Functions in the table.
const LISTED_MAX: usize = 60;

pub(crate) fn explain_section(prefix: &str, source: &ReportInput, result: &ExplainResult) -> Result<Section> {
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

pub(crate) fn figures_section(prefix: &str, source: &ReportInput, result: &FiguresResult) -> Result<Section> {
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
                Cell::Figure(texts::median_text(cell.median)),
                Cell::Interval(texts::ratio_text(cell)),
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

//! The commit that changed a measurement: the posterior as bars, and every measurement by commit.

use super::compare::{ReportInput, Section, Tone};
use super::number;
use super::provenance;
use super::tables::{self, Cell, figures, words};
use crate::bisect::words::report;
use crate::error::Result;
use crate::git::short;
use crate::result::bisect::{BisectResult, BisectVerdict, MergeOrder, TryOutcome};

/// Commits less likely than this are not listed unless they were measured.
const LISTED_MIN: f64 = 0.005;

pub(crate) fn section(prefix: &str, source: &ReportInput, result: &BisectResult) -> Result<Section> {
    let answer = &result.answer;
    let (tone, word) = match answer.verdict {
        BisectVerdict::Found if result.is_worse() => (Tone::Worse, "found"),
        BisectVerdict::Found => (Tone::Better, "found"),
        BisectVerdict::None => (Tone::Same, "none"),
        BisectVerdict::Undecided => (Tone::Undecided, "undecided"),
        BisectVerdict::Void => (Tone::Void, "void"),
    };
    let mut section = Section {
        tone,
        word,
        sentence: answer.sentence.clone(),
        details: String::new(),
        title: format!("Bisection from {} to {}", result.design.good, result.design.bad),
        entries: Vec::new(),
        body: String::new(),
    };
    section.part(&format!("{prefix}-commits"), "Commits", &table(prefix, result));
    let rows: provenance::Rows = vec![
        ("measured by", Some(result.design.measure.clone())),
        ("built by", result.design.build.clone()),
        ("patched by", result.design.apply.as_ref().map(|applied| applied.path.clone())),
        ("versions", result.design.versions.clone()),
        (
            "merges",
            result.design.versions.is_none().then(|| match result.design.line {
                MergeOrder::FirstParent => "one step each, on the line of first parents".to_owned(),
                MergeOrder::Linear => "their commits are in the row".to_owned(),
            }),
        ),
        ("confidence", Some(number::percent(result.design.confidence))),
        ("least change that counts", Some(number::percent(result.design.min_effect))),
        ("in short", Some(report(result).trim_end().replace('\n', " "))),
    ];
    provenance::parts(&mut section, prefix, source, &rows);
    Ok(section)
}

fn table(prefix: &str, result: &BisectResult) -> String {
    let answer = &result.answer;
    let rows: Vec<Vec<Cell>> = result
        .commits
        .iter()
        .enumerate()
        .filter_map(|(place, record)| {
            let p = answer.posterior.get(&record.commit).copied().unwrap_or(0.0);
            let values: Vec<f64> = result
                .tries
                .iter()
                .filter(|tried| tried.place == place)
                .filter_map(|tried| match tried.outcome {
                    TryOutcome::Measured { value, .. } => Some(value),
                    _ => None,
                })
                .collect();
            if values.is_empty() && p < LISTED_MIN && !answer.unbuildable.contains(&record.commit) {
                return None;
            }
            let mean = values.iter().map(|value| value.ln()).sum::<f64>() / values.len() as f64;
            let measured = if values.is_empty() { "none".to_owned() } else { number::plain(mean.exp()) };
            Some(vec![
                Cell::Words(short(&record.commit).to_owned()),
                Cell::Words(record.subject.clone()),
                Cell::Figure(number::percent(p)),
                Cell::Figure(number::count(values.len() as u64)),
                Cell::Figure(measured),
            ])
        })
        .collect();
    let heads = [words("commit"), words("subject"), figures("probability"), figures("measured"), figures("mean")];
    tables::draw(&format!("{prefix}-t"), "Probability that each commit changed it; means are geometric", &heads, &rows)
}

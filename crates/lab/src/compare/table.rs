//! A comparison for the terminal: the verdict, the builds, a table of the measures for each comparison, the verdicts,
//! the decision.

use super::words;
use crate::result::compare::{BuildPair, CompareAnalysis, CompareResult, MeasureAnalysis, MeasureVerdict};
use std::fmt::Write as _;

/// The whole text, ending in a line feed.
pub(crate) fn of(result: &CompareResult) -> String {
    let mut out = String::new();
    // Writing to a `String` cannot fail.
    let _ = write_all(result, &mut out);
    out
}

fn write_all(result: &CompareResult, out: &mut String) -> std::fmt::Result {
    writeln!(out, "{}\n", printable(words::headline(&result.analysis.sentence).0))?;
    for (_, subject) in result.subjects() {
        writeln!(out, "{}", subject.name)?;
    }
    writeln!(out, "{}\n", words::design(&result.design, result.pairs.len()))?;
    let judged = result.judged();
    for (between, analysis) in &judged {
        write_comparison(*between, (analysis, result.design.margin), out)?;
        if judged.len() > 1 {
            writeln!(out, "{}\n", printable(&analysis.sentence))?;
        }
    }
    match (&result.instructions, &result.instructions_missing) {
        (Some(counted), _) => writeln!(out, "instructions were counted by {}", counted.counted_by)?,
        (None, Some(reason)) => {
            writeln!(out, "instructions were not counted: {}", printable(&words::in_short(reason)))?
        }
        (None, None) => {}
    }
    if let Some(crash) = &result.crash {
        writeln!(out, "{}", printable(&crash.words))?;
    }
    writeln!(out, "\n{}", printable(&result.analysis.sentence))
}

fn write_comparison(
    between: BuildPair,
    (analysis, margin): (&CompareAnalysis, f64),
    out: &mut String,
) -> std::fmt::Result {
    let [a, b] = [between.one, between.other].map(|side| format!("{side:?}"));
    writeln!(
        out,
        "{:<13} {a:>10} {b:>10}  {:>8}  {:^19}  {:>8}  {:>10}",
        "measure", "change", "interval", "p", "detectable"
    )?;
    for measure in &analysis.measures {
        let interval = words::interval(measure.low, measure.high);
        writeln!(
            out,
            "{:<13} {:>10} {:>10}  {:>8}  {interval:^19}  {:>8}  {:>10}{}",
            measure.measure,
            words::figure(measure.a),
            words::figure(measure.b),
            words::change(measure.effect),
            words::p(measure.p_adjusted),
            words::detectable(measure.minimum_detectable),
            mark(measure, margin),
        )?;
    }
    if !analysis.measures.is_empty() {
        writeln!(out, "Note: {}", words::paired_note(between))?;
    }
    writeln!(out)?;
    for measure in &analysis.measures {
        writeln!(out, "{}", measure.sentence)?;
    }
    for sentence in analysis.failures.sentence.iter().chain(&analysis.not_judged) {
        writeln!(out, "{}", printable(sentence))?;
    }
    Ok(())
}

/// A text that may contain output of a program, without terminal control characters.
fn printable(text: &str) -> String {
    text.trim_end().replace(|character: char| character.is_control() && character != '\n', "\u{fffd}")
}

fn mark(measure: &MeasureAnalysis, margin: f64) -> &'static str {
    match measure.verdict {
        MeasureVerdict::Slower => "  worse",
        MeasureVerdict::Faster => "  better",
        MeasureVerdict::NoDifference if measure.is_within(margin) => "",
        MeasureVerdict::NoDifference => "  cannot say",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_has_no_say_over_the_terminal() {
        assert_eq!(printable("ended\n\u{1b}[2Jall is well\r\n"), "ended\n\u{fffd}[2Jall is well");
    }
}

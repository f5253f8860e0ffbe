//! A comparison for the terminal: who was compared, a table of the measures, the verdicts, the decision.

use super::words;
use crate::result::compare::{CompareResult, MeasureAnalysis, MeasureVerdict};
use std::fmt::Write as _;

/// All of it, ending in a line feed.
pub(crate) fn of(result: &CompareResult) -> String {
    let mut out = String::new();
    // A `String` takes every write.
    let _ = write_all(result, &mut out);
    out
}

fn write_all(result: &CompareResult, out: &mut String) -> std::fmt::Result {
    writeln!(out, "{}\n{}", result.a.name, result.b.name)?;
    writeln!(out, "{}\n", words::design(&result.design, result.pairs.len()))?;
    writeln!(
        out,
        "{:<13} {:>10} {:>10}  {:>8}  {:^19}  {:>8}  {:>10}",
        "measure", "A", "B", "change", "interval", "p", "detectable"
    )?;
    for measure in &result.analysis.measures {
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
            mark(measure),
        )?;
    }
    writeln!(out)?;
    for measure in &result.analysis.measures {
        writeln!(out, "{}", measure.sentence)?;
    }
    match (&result.instructions, &result.instructions_missing) {
        (Some(counted), _) => writeln!(out, "instructions were counted by {}", counted.counted_by)?,
        (None, Some(reason)) => writeln!(out, "instructions were not counted: {reason}")?,
        (None, None) => {}
    }
    writeln!(out, "\n{}", result.analysis.sentence)
}

fn mark(measure: &MeasureAnalysis) -> &'static str {
    match measure.verdict {
        MeasureVerdict::Slower => "  worse",
        MeasureVerdict::Faster => "  better",
        MeasureVerdict::NoDifference => "",
    }
}

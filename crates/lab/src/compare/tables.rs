//! A comparison as tables: for the terminal, and in GitHub-flavoured Markdown, for the summary of a CI run or a
//! comment.
//!
//! On the terminal there are the verdict, the builds, a table of the measures for each comparison, the verdicts, and
//! the decision. In Markdown the decision comes first, in a sentence; a reader who stops there has the result.

use super::words;
use crate::result::compare::{BuildPair, CompareAnalysis, CompareResult, Decision, MeasureAnalysis, MeasureVerdict};
use crate::result::run::{Environment, Subject};
use std::fmt::Write as _;

/// The whole text, ending in a line feed.
pub(crate) fn text_of(result: &CompareResult) -> String {
    let mut out = String::new();
    // Writing to a `String` cannot fail.
    let _ = write_text_all(result, &mut out);
    out
}

fn write_text_all(result: &CompareResult, out: &mut String) -> std::fmt::Result {
    writeln!(out, "{}\n", printable(words::headline(&result.analysis.sentence).0))?;
    for (_, subject) in result.subjects() {
        writeln!(out, "{}", subject.name)?;
    }
    writeln!(out, "{}\n", words::design(&result.design, result.pairs.len()))?;
    let judged = result.judged();
    for (between, analysis) in &judged {
        write_text_comparison(*between, (analysis, result.design.margin), out)?;
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

fn write_text_comparison(
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

/// The whole text, ending in a line feed.
pub(crate) fn markdown_of(result: &CompareResult, environment: &Environment) -> String {
    let mut out = String::new();
    // Writing to a `String` cannot fail.
    let _ = write_markdown_all(result, environment, &mut out);
    out
}

fn write_markdown_all(result: &CompareResult, environment: &Environment, out: &mut String) -> std::fmt::Result {
    let heading = match result.analysis.decision {
        Decision::NotWorse => "not worse",
        Decision::Worse => "worse",
        Decision::Undecided => "undecided",
        Decision::Void => "void",
    };
    let (headline, more) = words::headline(&result.analysis.sentence);
    writeln!(out, "### Performance: {heading}\n\n**{}**\n", escaped(headline))?;
    if !more.is_empty() {
        writeln!(out, "{}\n", escaped(more))?;
    }
    let judged = result.judged();
    for (between, analysis) in &judged {
        if judged.len() > 1 {
            let BuildPair { one, other } = between;
            writeln!(out, "#### {other:?} against {one:?}\n\n{}\n", escaped(&analysis.sentence))?;
        }
        write_markdown_comparison(*between, (analysis, result.design.margin), out)?;
    }
    if let Some(crash) = &result.crash {
        // Its output is quoted by indentation, which its content cannot end.
        writeln!(out, "How {:?} ended:\n", crash.side)?;
        crash.words.lines().try_for_each(|line| writeln!(out, "    {line}"))?;
        writeln!(out)?;
    }
    writeln!(out, "<details><summary>How it was measured</summary>\n")?;
    for (side, subject) in result.subjects() {
        writeln!(out, "- {side:?}: {}", of_subject(subject))?;
    }
    writeln!(out, "- {}", escaped(&words::design(&result.design, result.pairs.len())))?;
    for (BuildPair { one, other }, analysis) in judged.iter().filter(|(_, analysis)| analysis.void_pairs > 0) {
        writeln!(out, "- left out as void: {} pairs of {one:?} and {other:?}", analysis.void_pairs)?;
    }
    match (&result.instructions, &result.instructions_missing) {
        (Some(counted), _) => writeln!(out, "- instructions counted by {}", counted.counted_by)?,
        (None, Some(reason)) => writeln!(out, "- instructions not counted: {}", escaped(&words::in_short(reason)))?,
        (None, None) => {}
    }
    writeln!(out, "- {}", escaped(&machine(environment)))?;
    writeln!(out, "\n</details>")
}

fn write_markdown_comparison(
    between: BuildPair,
    (analysis, margin): (&CompareAnalysis, f64),
    out: &mut String,
) -> std::fmt::Result {
    let BuildPair { one, other } = between;
    writeln!(out, "| measure | {one:?} | {other:?} | change | interval | p | verdict |")?;
    writeln!(out, "|:--|--:|--:|--:|:-:|--:|:--|")?;
    for measure in &analysis.measures {
        let verdict = match measure.verdict {
            MeasureVerdict::Slower => "**worse**".to_owned(),
            MeasureVerdict::Faster => "better".to_owned(),
            MeasureVerdict::NoDifference if measure.minimum_detectable.is_infinite() => "too few pairs".to_owned(),
            MeasureVerdict::NoDifference => {
                let word = if measure.is_within(margin) { "no difference" } else { "cannot say" };
                format!("{word}; {} would have been detected", words::size(measure.minimum_detectable))
            }
        };
        writeln!(
            out,
            "| {} ({}) | {} | {} | {} | {} | {} | {verdict} |",
            measure.measure,
            measure.unit,
            words::figure(measure.a),
            words::figure(measure.b),
            words::change(measure.effect),
            words::interval(measure.low, measure.high),
            words::p(measure.p_adjusted),
        )?;
    }
    if !analysis.measures.is_empty() {
        writeln!(out, "\n{}", words::paired_note(between))?;
    }
    let said: Vec<&String> = analysis.failures.sentence.iter().chain(&analysis.not_judged).collect();
    if !said.is_empty() {
        writeln!(out)?;
    }
    for sentence in said {
        writeln!(out, "- {}", escaped(sentence))?;
    }
    writeln!(out)
}

fn of_subject(subject: &Subject) -> String {
    let mut text = escaped(&subject.name);
    for (label, value) in
        [("version", &subject.version), ("revision", &subject.revision), ("SHA-256", &subject.binary_sha256)]
    {
        if let Some(value) = value {
            // Writing to a `String` cannot fail.
            let _ = write!(text, ", {label} {}", escaped(value));
        }
    }
    text
}

fn machine(environment: &Environment) -> String {
    let model = environment.cpu_model.as_deref().unwrap_or("unknown CPU");
    let mut text = format!("{model}, {} CPUs, {}", environment.cpus, environment.kernel);
    if let Some(hypervisor) = &environment.hypervisor {
        text.push_str(&format!(", under {hypervisor}"));
    }
    if let Some(governor) = &environment.governor {
        text.push_str(&format!(", governor {governor}"));
    }
    if let Some(stolen_s) = environment.stolen_s {
        text.push_str(&format!(", {stolen_s:.1} s of CPU taken by the host meanwhile"));
    }
    text
}

/// Names and reasons come from outside: they must not become markup, or end a line of a list or table.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\n' | '\r' => out.push(' '),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '|' | '*' | '_' | '`' | '[' | ']' | '\\' | '~' | '#' | '@' => {
                out.push('\\');
                out.push(character);
            }
            _ => out.push(character),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_has_no_say_over_the_terminal() {
        assert_eq!(printable("ended\n\u{1b}[2Jall is well\r\n"), "ended\n\u{fffd}[2Jall is well");
    }

    #[test]
    fn names_do_not_become_markup() {
        assert_eq!(escaped("a|b\n<b>*x*"), "a\\|b &lt;b&gt;\\*x\\*");
    }
}

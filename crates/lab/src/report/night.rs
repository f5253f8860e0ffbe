//! The page of a night: every comparison with its interval, what could not be measured, and the machine.

use super::axis::Axis;
use super::effect_plot::{Forest, Group, Row};
use super::escape::Text;
use super::number;
use super::page;
use super::plot::write;
use super::section::{Section, Tone};
use crate::git::short;
use crate::nightly::analysis::{ERROR, Judged, MARGIN, Verdict};
use crate::nightly::words;
use crate::result::environment::Environment;

/// The whole page.
pub(crate) fn night(commit: &str, judged: &[Judged], failed: &[String], machine: &Environment) -> String {
    let has = |verdict| judged.iter().any(|one| one.verdict == verdict);
    let (tone, word) = match judged.is_empty() {
        true => (Tone::Void, "nothing compared"),
        false if has(Verdict::Worse) => (Tone::Worse, "worse"),
        false if has(Verdict::Undecided) || !failed.is_empty() => (Tone::Undecided, "undecided"),
        false if has(Verdict::Better) => (Tone::Better, "better"),
        false => (Tone::Same, "unchanged"),
    };
    let mut body = forest(judged);
    if !failed.is_empty() {
        body.push_str("<h3>Not measured</h3><ul>");
        failed.iter().for_each(|line| write(&mut body, format_args!("<li>{}</li>", Text(line))));
        body.push_str("</ul>\n");
    }
    write(&mut body, format_args!("<p class=\"note\">{}</p>\n", Text(&words::machine(machine))));
    let section = Section {
        tone,
        word,
        sentence: words::headline(judged),
        details: String::new(),
        title: format!("Night of {}", short(commit)),
        entries: Vec::new(),
        body,
    };
    page::without_files(&format!("Night of {}", short(commit)), &[section])
}

/// What changed first.
fn forest(judged: &[Judged]) -> String {
    if judged.is_empty() {
        return "<p class=\"absent\">There was no other commit to compare with.</p>\n".to_owned();
    }
    let mut sorted: Vec<&Judged> = judged.iter().collect();
    sorted.sort_by_key(|one| one.verdict);
    let missed = |one: &Judged| one.detectable.map_or((0.0, 0.0), |least| (1.0 / (1.0 + least) - 1.0, least));
    let reach = judged.iter().flat_map(|one| {
        let (low, high) = missed(one);
        one.effect.into_iter().chain([low, high, MARGIN])
    });
    let row = |one: &&Judged| Row {
        name: one.series.clone(),
        before: vec![format!("{} {}", one.role, short(&one.beside)), words::word(one.verdict).to_owned()],
        value: one.effect[0],
        low: one.effect[1],
        high: one.effect[2],
        missed: missed(one),
        style: 0,
        after: vec![
            number::percent_difference(one.effect[0]),
            one.detectable.map_or("none".to_owned(), number::percent),
            number::p_value(one.p_value),
            one.pairs.to_string(),
        ],
    };
    let rows = sorted.iter().map(row).collect();
    Forest {
        id: "f1-e",
        caption: "Tonight's commit beside the others".to_owned(),
        before: &["beside", "verdict"],
        strip: "difference, with its interval",
        after: &["difference", "detectable", "p", "pairs"],
        groups: vec![Group { axis: Axis::ratio(reach), lines: vec![-MARGIN, MARGIN], rows }],
        note: format!(
            "Intervals hold with 95% each. p is corrected for all series of the night; up to {} is called a change. Grey: what \
             would have been missed. Dotted: {}, more than which must not be missed for \"unchanged\".",
            number::round_percent(ERROR),
            number::round_percent(MARGIN)
        ),
    }
    .draw()
}

//! The page of a night: every comparison with its interval, failed measurements, and the machine.

use super::axis::Axis;
use super::compare::{Section, Tone, chip};
use super::effect_plot::{Forest, Group, Row};
use super::escape::Text;
use super::number;
use super::page;
use super::plot::write;
use super::tables::{self, Cell};
use crate::git::short;
use crate::history::analysis::{Series, SeriesChange};
use crate::nightly::analysis::{ERROR, MARGIN, NightComparison, Verdict};
use crate::nightly::words::{self, Counts, Report};

/// The whole page.
pub(crate) fn night(report: &Report) -> String {
    let mut changes = report.counts.iter().flat_map(Counts::changes);
    let is_better = report.judged.iter().any(|one| one.verdict == Verdict::Better) || changes.next().is_some();
    let (tone, word) = match report.exit_code() {
        3 => (Tone::Void, "nothing compared"),
        1 => (Tone::Worse, "worse"),
        2 => (Tone::Undecided, "undecided"),
        _ if is_better => (Tone::Better, "better"),
        _ => (Tone::Same, "unchanged"),
    };
    let mut body =
        if report.judged.is_empty() && report.counts.is_some() { String::new() } else { forest(&report.judged) };
    not_done(&mut body, "Not measured", &report.failed);
    if let Some(counts) = &report.counts {
        counted(&mut body, counts);
    }
    write(&mut body, format_args!("<p class=\"note\">{}</p>\n", Text(&words::machine(&report.machine))));
    let commit = &report.commit;
    let section = Section {
        tone,
        word,
        sentence: words::headline(report),
        details: String::new(),
        title: format!("Night of {}", short(commit)),
        entries: Vec::new(),
        body,
    };
    page::without_files("A commit compared with others", &[section])
}

fn not_done(body: &mut String, title: &str, lines: &[String]) {
    if lines.is_empty() {
        return;
    }
    write(body, format_args!("<h3>{title}</h3><ul>"));
    lines.iter().for_each(|line| write(body, format_args!("<li>{}</li>", Text(line))));
    body.push_str("</ul>\n");
}

/// Each change of a count with its commit.
fn counted(body: &mut String, counts: &Counts) {
    write(body, format_args!("<h3>Counted on {} commits</h3>\n", counts.commits()));
    let row = |(series, change): &(&Series, &SeriesChange)| {
        let is_worse = series.is_worse(change);
        vec![
            Cell::Words(series.name.clone()),
            Cell::Figure(number::percent_difference(change.effect)),
            Cell::Markup(if is_worse { chip(Tone::Worse, "worse") } else { chip(Tone::Better, "better") }),
            Cell::Words(words::by(series, change)),
        ]
    };
    let rows: Vec<Vec<Cell>> = counts.changes().iter().map(row).collect();
    if rows.is_empty() {
        body.push_str("<p class=\"absent\">No count changed.</p>\n");
    } else {
        let heads = [tables::words("count"), tables::figures("change"), tables::words("verdict"), tables::words("by")];
        body.push_str(&tables::draw("f1-c", "What changed a count", &heads, &rows));
    }
    not_done(body, "Not counted", &counts.failed);
}

/// Changes, the most important first.
fn forest(judged: &[NightComparison]) -> String {
    if judged.is_empty() {
        return "<p class=\"absent\">No other commit was there to compare with.</p>\n".to_owned();
    }
    let mut sorted: Vec<&NightComparison> = judged.iter().collect();
    sorted.sort_by(|a, b| a.margin.total_cmp(&b.margin).then(a.verdict.cmp(&b.verdict)));
    let missed = |one: &NightComparison| one.detectable.map_or((0.0, 0.0), |least| (1.0 / (1.0 + least) - 1.0, least));
    let row = |one: &&NightComparison| Row {
        // A narrow screen shows no columns before the strip.
        name: format!(
            "{}, compared with {}",
            one.series,
            if one.role == "release" { "the release" } else { &one.role }
        ),
        before: vec![words::word(one.verdict).to_owned()],
        value: one.effect[0],
        low: one.effect[1],
        high: one.effect[2],
        missed: missed(one),
        style: 0,
        after: vec![
            number::percent_difference(one.effect[0]),
            one.detectable.map_or("none".to_owned(), number::percent),
            one.kept.as_ref().map_or("none".to_owned(), |kept| number::percent_difference(kept.effect)),
        ],
    };
    let mut named: Vec<String> = judged.iter().map(|one| format!("{}: {}", one.role, short(&one.beside))).collect();
    named.sort();
    named.dedup();
    // A series that scatters more has a larger margin, and needs a wider axis.
    let groups = sorted.chunk_by(|a, b| a.margin.total_cmp(&b.margin).is_eq()).map(|alike| {
        let margin = alike[0].margin;
        let reach = alike.iter().flat_map(|one| one.effect.into_iter().chain(<[f64; 2]>::from(missed(one))));
        let axis = Axis::ratio(reach.chain([margin]));
        Group { axis, lines: vec![-margin, margin], rows: alike.iter().map(row).collect() }
    });
    Forest {
        id: "f1-e",
        caption: "Tonight's commit compared with the others".to_owned(),
        before: &["verdict"],
        strip: "difference, with its interval",
        after: &["difference", "detectable", "kept"],
        groups: groups.collect(),
        note: format!(
            "{}. Intervals hold with 95% each; the verdict's error of {} for all series of the night together. Grey: effects that would have been missed. Dotted: the margin; \"unchanged\" requires that no larger effect could have been missed; {} unless the suite sets another. Kept: compared with all measurements of the release from other nights, which decides nothing.",
            named.join(", "),
            number::round_percent(ERROR),
            number::round_percent(MARGIN)
        ),
    }
    .draw()
}

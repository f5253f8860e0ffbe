//! Pages about nights. That of a store has one plot per series, its changes, and how to investigate each; that of a
//! night has every comparison with its interval, failed measurements, and the machine.

use super::axis::Axis;
use super::compare::{Section, Tone, chip, folded_section};
use super::markup::{self, Plot, Probe, Text, write};
use super::plots::{EffectGroup, EffectRow, Forest};
use super::tables::{self, Cell};
use super::{number, page};
use crate::error::Result;
use crate::git::short;
use crate::history::{self, Point, Series, SeriesChange};
use crate::nightly::analysis::{self, CommitCounts, ERROR, MARGIN, NightComparison, NightReport, Verdict};
use std::path::Path;

/// Nights with a read-out each.
const PROBES_MAX: usize = 366;

/// Style of a night's marker, by stretch.
const STYLES: usize = 2;

/// The whole page.
pub(crate) fn history(all: &[Series], repo: Option<&Path>) -> Result<String> {
    let sections: Result<Vec<Section>> =
        all.iter().enumerate().map(|(number, series)| section(&page::prefix(number), series, repo)).collect();
    Ok(page::without_files("What changed when", &sections?))
}

fn section(prefix: &str, series: &Series, repo: Option<&Path>) -> Result<Section> {
    let newest = series.changes.last();
    let (tone, word) = match newest {
        None => (Tone::Same, "no change"),
        Some(change) if series.is_worse(change) => (Tone::Worse, "worse"),
        Some(_) => (Tone::Better, "better"),
    };
    let mut body = draw(&format!("{prefix}-p"), series);
    for change in &series.changes {
        write(&mut body, format_args!("<h3>{}</h3>\n", Text(&history::change_line(series, change))));
        let commits = history::commits(series, change, repo)?;
        if !commits.is_empty() {
            body.push_str("<ul>");
            for commit in commits {
                write(&mut body, format_args!("<li>{}</li>", Text(&commit)));
            }
            body.push_str("</ul>\n");
        }
        if let Some(command) = history::next_step(series, change) {
            let command = format!("<pre tabindex=\"0\">{}</pre>\n", Text(&command));
            body.push_str(&folded_section("Look for the commit", &command));
        }
    }
    Ok(Section {
        tone,
        word,
        sentence: newest.map_or_else(|| history::summary(series), |change| history::since(series, change)),
        details: String::new(),
        title: format!("{} on {}", series.name, series.machine),
        entries: Vec::new(),
        body,
    })
}

/// Each night's ratio to the mean of the first stretch, with the levels between changes.
fn draw(id: &str, series: &Series) -> String {
    let points = &series.points;
    let mean = points.iter().map(|point| point.value).sum::<f64>() / points.len() as f64;
    let ratio = |value: f64| (value - mean).exp_m1();
    let x = Axis::ordinal(points.len());
    let y = Axis::ratio(points.iter().map(|point| ratio(point.value)));
    let at = |index: usize| x.place((index + 1) as f64);
    let mut curves = markup::line("zero", &[(0.0, y.place(0.0)), (1.0, y.place(0.0))]);
    let mut marks = String::new();
    for (from, to) in levels(series) {
        let level = points[from..to].iter().map(|point| point.value).sum::<f64>() / (to - from) as f64;
        let height = y.place(ratio(level));
        curves.push_str(&markup::line("estimate", &[(at(from), height), (at(to - 1), height)]));
    }
    for change in &series.changes {
        let between = x.place(change.at as f64 + 0.5);
        marks.push_str(&markup::straight_line("step", (between, 0.0), (between, 1.0)));
    }
    for (index, point) in points.iter().enumerate() {
        marks.push_str(&markup::marker(point.stretch % STYLES, at(index), y.place(ratio(point.value))));
    }
    let half = 0.5 / points.len() as f64;
    let probes = points.iter().enumerate().rev().take(PROBES_MAX).map(|(index, point)| Probe {
        at: at(index),
        from: at(index) - half,
        to: at(index) + half,
        head: day(point).to_owned(),
        lines: vec![
            (Some(point.stretch % STYLES), number::percent_difference(ratio(point.value))),
            (None, short(&point.commit).to_owned()),
        ],
        dots: vec![(point.stretch % STYLES, y.place(ratio(point.value)))],
    });
    Plot {
        id,
        kind: "ratios",
        title: series.name.clone(),
        description: description(series),
        x: &x,
        x_name: if series.is_counted { "commit that was counted" } else { "night" },
        y: &y,
        y_name: "difference from the mean",
        legend: Vec::new(),
        curves,
        marks,
        probes: probes.collect(),
    }
    .draw()
}

/// From each change or new stretch to the next.
fn levels(series: &Series) -> Vec<(usize, usize)> {
    let count = series.points.len();
    let divided = (1..count).filter(|index| series.points[*index].stretch != series.points[index - 1].stretch);
    let mut borders: Vec<usize> = series.changes.iter().map(|change| change.at).chain(divided).collect();
    borders.extend([0, count]);
    borders.sort_unstable();
    borders.dedup();
    borders.windows(2).map(|pair| (pair[0], pair[1])).collect()
}

fn description(series: &Series) -> String {
    let first = day(&series.points[0]);
    let last = day(&series.points[series.points.len() - 1]);
    let said: Vec<String> =
        series.changes.iter().map(|change: &SeriesChange| history::change_line(series, change)).collect();
    let unit = if series.is_counted { "commits" } else { "nights" };
    format!("{} {unit} from {first} to {last}. {}", series.points.len(), said.join("; "))
}

fn day(point: &Point) -> &str {
    point.at.get(..10).unwrap_or(&point.at)
}

/// The whole page.
pub(crate) fn night(report: &NightReport) -> String {
    let mut changes = report.counts.iter().flat_map(CommitCounts::changes);
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
    write(&mut body, format_args!("<p class=\"note\">{}</p>\n", Text(&analysis::machine_in_words(&report.machine))));
    let commit = &report.commit;
    let section = Section {
        tone,
        word,
        sentence: analysis::headline(report),
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
fn counted(body: &mut String, counts: &CommitCounts) {
    write(body, format_args!("<h3>Counted on {} commits</h3>\n", counts.commits()));
    let row = |(series, change): &(&Series, &SeriesChange)| {
        let is_worse = series.is_worse(change);
        vec![
            Cell::Words(series.name.clone()),
            Cell::Figure(number::percent_difference(change.effect)),
            Cell::Markup(if is_worse { chip(Tone::Worse, "worse") } else { chip(Tone::Better, "better") }),
            Cell::Words(analysis::change_in_words(series, change)),
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
    let row = |one: &&NightComparison| EffectRow {
        // A narrow screen shows no columns before the strip.
        name: format!(
            "{}, compared with {}",
            one.series,
            if one.role == "release" { "the release" } else { &one.role }
        ),
        before: vec![analysis::verdict_word(one.verdict).to_owned()],
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
        let axis = Axis::ratio_around_zero(reach.chain([margin]));
        EffectGroup { axis, lines: vec![-margin, margin], rows: alike.iter().map(row).collect() }
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

//! The page of a store: one plot per series, its changes, and how to investigate each.

use super::axis::Axis;
use super::compare::{Section, Tone, folded};
use super::escape::Text;
use super::number;
use super::page;
use super::plot::{self, Plot, Probe, write};
use crate::error::Result;
use crate::git::short;
use crate::history::analysis::{Point, Series, SeriesChange};
use crate::history::words;
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
        write(&mut body, format_args!("<h3>{}</h3>\n", Text(&words::change_line(series, change))));
        let commits = words::commits(series, change, repo)?;
        if !commits.is_empty() {
            body.push_str("<ul>");
            for commit in commits {
                write(&mut body, format_args!("<li>{}</li>", Text(&commit)));
            }
            body.push_str("</ul>\n");
        }
        if let Some(command) = words::next_step(series, change) {
            let command = format!("<pre tabindex=\"0\">{}</pre>\n", Text(&command));
            body.push_str(&folded("Look for the commit", &command));
        }
    }
    Ok(Section {
        tone,
        word,
        sentence: newest.map_or_else(|| words::summary(series), |change| words::since(series, change)),
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
    let mut curves = plot::line("zero", &[(0.0, y.place(0.0)), (1.0, y.place(0.0))]);
    let mut marks = String::new();
    for (from, to) in levels(series) {
        let level = points[from..to].iter().map(|point| point.value).sum::<f64>() / (to - from) as f64;
        let height = y.place(ratio(level));
        curves.push_str(&plot::line("estimate", &[(at(from), height), (at(to - 1), height)]));
    }
    for change in &series.changes {
        let between = x.place(change.at as f64 + 0.5);
        marks.push_str(&plot::straight("few", (between, 0.0), (between, 1.0)));
    }
    for (index, point) in points.iter().enumerate() {
        marks.push_str(&plot::marker(point.stretch % STYLES, at(index), y.place(ratio(point.value))));
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
        series.changes.iter().map(|change: &SeriesChange| words::change_line(series, change)).collect();
    let unit = if series.is_counted { "commits" } else { "nights" };
    format!("{} {unit} from {first} to {last}. {}", series.points.len(), said.join("; "))
}

fn day(point: &Point) -> &str {
    point.at.get(..10).unwrap_or(&point.at)
}

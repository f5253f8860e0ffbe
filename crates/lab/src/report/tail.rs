//! The result of `stillgate-lab tail`: the overview of a sweep, its cells, and their origin.
//!
//! `tail_cell` draws a single cell.

use super::axis::Axis;
use super::compare::{ReportInput, Section, Tone, chip};
use super::markup::{Facet, Point, ShortText, Target, Text, write};
use super::tables::{self, Cell as TableCell, figures, words};
use super::tail_cell::{self, CellView, interval, name, tone_of};
use super::{number, provenance};
use crate::error::{Error, Result};
use crate::result::tail::{Cell, CellAnalysis, Effect, TailDesign, TailResult, Verdict};
use crate::tail::verdict::{ShownVerdict, shown_over_all};
use crate::tail::{readable, summary};

/// Up to this many cells are shown unfolded.
const UNFOLDED_CELLS_MAX: usize = 2;

/// The measures of the overview.
const OVERVIEW: [(&str, &str); 2] = [("p99.9", "the 99.9th percentile"), ("max", "the slowest request")];

pub(crate) fn section(prefix: &str, source: &ReportInput, result: &TailResult) -> Result<Section> {
    let (cells, analyses) = (&result.cells, &result.analysis.cells);
    if cells.len() != analyses.len() {
        let (cells, analyses) = (cells.len(), analyses.len());
        return Err(Error::new(format!("it has {cells} cells but the analysis of {analyses}; was it edited by hand?")));
    }
    let (tone, word) = overall(analyses, &result.design);
    let mut section = Section {
        tone,
        word,
        sentence: summary::headline_of(result),
        details: sentence(result),
        title: title(cells),
        entries: Vec::new(),
        body: String::new(),
    };
    if cells.len() > 1 {
        let markup =
            overview(prefix, cells, analyses) + &slopes(result)? + &cell_table(prefix, result) + &caveats(result);
        section.part(&format!("{prefix}-all"), "All cells", &markup);
    }
    let mut markup = String::new();
    let heading = if cells.len() > 1 { "Each cell" } else { "The cell" };
    section.enter(&format!("{prefix}-each"), heading, 1, Tone::Plain);
    for (number, (cell, analysis)) in cells.iter().zip(analyses).enumerate() {
        let id = format!("{prefix}-c{number}");
        if cells.len() > 1 {
            section.enter(&id, name(cell), 2, tone_of(ShownVerdict::of(analysis, &result.design)).0);
        }
        let shown = match cells.len() {
            1 if result.design.plan.len() <= 1 => CellView::Alone,
            some if some <= UNFOLDED_CELLS_MAX => CellView::Unfolded,
            _ => CellView::Folded,
        };
        let drawn = tail_cell::draw(&id, cell, analysis, &result.design, shown);
        markup.push_str(&drawn.map_err(|error| error.context(name(cell)))?);
    }
    write(
        &mut section.body,
        format_args!(
            "<section class=\"part\" aria-labelledby=\"{prefix}-each\"><h3 id=\"{prefix}-each\">{heading}</h3>\n{markup}</section>\n"
        ),
    );
    if !result.failures.is_empty() {
        let items: String = result.failures.iter().map(|why| format!("<li>{}</li>", Text(why))).collect();
        section.part(
            &format!("{prefix}-failed"),
            "Cells that could not be run",
            &format!("<ul class=\"errors\">{items}</ul>"),
        );
    }
    let mut rows = design_rows(&result.design);
    rows.push(("priority of the generator", priority(result)));
    provenance::parts(&mut section, prefix, source, &rows);
    Ok(section)
}

/// For a single cell, its own sentence with the figures.
fn sentence(result: &TailResult) -> String {
    match result.analysis.cells.as_slice() {
        [only] if result.design.plan.len() <= 1 => only.sentence.clone(),
        _ => shown_over_all(result),
    }
}

/// For all cells: mixed if some are slower and some are not.
fn overall(cells: &[CellAnalysis], design: &TailDesign) -> (Tone, &'static str) {
    let count = |verdict| cells.iter().filter(|cell| ShownVerdict::of(cell, design) == verdict).count();
    let (slower, void) = (count(ShownVerdict::Slower), count(ShownVerdict::Void));
    let failing = count(ShownVerdict::Failing);
    match () {
        () if cells.is_empty() || void == cells.len() => (Tone::Void, "void"),
        () if failing > 0 => (Tone::Worse, "more requests fail"),
        () if slower > 0 && slower + void < cells.len() => (Tone::Worse, "slower in some cells"),
        () if slower > 0 => (Tone::Worse, "slower"),
        () if count(ShownVerdict::Faster) > 0 => (Tone::Better, "faster in some cells"),
        () if count(ShownVerdict::CannotSay) > 0 => (Tone::Undecided, "cannot say"),
        () => (Tone::Same, "no difference"),
    }
}

fn title(cells: &[Cell]) -> String {
    let names = targets(cells);
    match names.len() {
        0 => "Scrapes and the tail".to_owned(),
        1..=5 => format!("Scrapes and the tail of {}", names.join(", ")),
        more => format!("Scrapes and the tail of {more} targets"),
    }
}

/// In the order they first appear.
fn targets(cells: &[Cell]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for cell in cells {
        if !names.contains(&cell.subject.name) {
            names.push(cell.subject.name.clone());
        }
    }
    names
}

/// A picture for each measure and scrape interval.
fn overview(prefix: &str, cells: &[Cell], analyses: &[CellAnalysis]) -> String {
    let mut intervals: Vec<f64> = cells.iter().map(|cell| cell.scrape_every_s).collect();
    intervals.sort_by(|a, b| b.total_cmp(a));
    intervals.dedup();
    let names = targets(cells);
    let x = Axis::count(cells.iter().map(|cell| cell.series_shown as f64));
    let mut out = String::from("<div class=\"facets\">");
    for (measure, called) in OVERVIEW {
        let sound = analyses.iter().filter(|cell| cell.verdict != Verdict::Void);
        let all = sound.flat_map(|cell| effect(cell, measure));
        let y = Axis::difference(
            all.flat_map(|effect| [effect.low, effect.difference, effect.high]),
            number::round_time_difference,
        );
        for (at, every_s) in intervals.iter().enumerate() {
            let of = |name: &String| points(prefix, cells, analyses, (name, *every_s, measure));
            let targets =
                names.iter().enumerate().map(|(style, name)| Target { name: name.clone(), style, points: of(name) });
            let targets: Vec<Target> = targets.filter(|target| !target.points.is_empty()).collect();
            let id = format!("{prefix}-o{at}-{}", measure.replace('.', ""));
            let title = format!("Effect of a scrape every {} on {called}", number::seconds(*every_s));
            out.push_str(&Facet { id: &id, title, targets: &targets, y: &y, x: &x }.draw());
        }
    }
    out + "</div>\n"
}

fn points(
    prefix: &str,
    cells: &[Cell],
    analyses: &[CellAnalysis],
    (name, every_s, measure): (&str, f64, &str),
) -> Vec<Point> {
    let mut points = Vec::new();
    for (number, (cell, analysis)) in cells.iter().zip(analyses).enumerate() {
        // Void cells do not belong among results.
        let Some(effect) = effect(analysis, measure).filter(|_| analysis.verdict != Verdict::Void) else { continue };
        if cell.subject.name == name && cell.scrape_every_s == every_s {
            points.push(Point {
                series: cell.series_shown,
                difference: effect.difference,
                low: effect.low,
                high: effect.high,
                cell: format!("{prefix}-c{number}"),
            });
        }
    }
    points.sort_by_key(|point| point.series);
    points
}

fn effect<'a>(analysis: &'a CellAnalysis, measure: &str) -> Option<&'a Effect> {
    analysis.effects.iter().find(|effect| effect.measure == measure)
}

fn cell_table(prefix: &str, result: &TailResult) -> String {
    let heads = [
        words("target"),
        figures("series"),
        figures("scrape every"),
        figures("99.9% without"),
        figures("99.9% with"),
        figures("slowest without"),
        figures("slowest with"),
        figures("effect on 99.9%"),
        words("verdict"),
    ];
    let rows = result.cells.iter().zip(&result.analysis.cells).enumerate().map(|(number, (cell, analysis))| {
        let link = format!("<a href=\"#{prefix}-c{number}\">{}</a>", ShortText(&cell.subject.name));
        let (tone, word) = tone_of(ShownVerdict::of(analysis, &result.design));
        let sound = analysis.verdict != Verdict::Void;
        let none = || number::NONE.to_owned();
        let time = |us: f64| TableCell::Figure(if sound { number::time(us) } else { none() });
        vec![
            TableCell::Markup(link),
            TableCell::Figure(number::count(cell.series_shown)),
            TableCell::Figure(number::seconds(cell.scrape_every_s)),
            time(analysis.without.p99_9),
            time(analysis.with.p99_9),
            time(analysis.without.max),
            time(analysis.with.max),
            match effect(analysis, "p99.9").filter(|_| sound) {
                Some(effect) => TableCell::Interval(interval(effect)),
                None => TableCell::Figure(none()),
            },
            TableCell::Markup(chip(tone, word)),
        ]
    });
    let rows: Vec<_> = rows.collect();
    tables::draw(
        &format!("{prefix}-cells"),
        "All cells; latencies of all blocks together, effects paired",
        &heads,
        &rows,
    ) + &format!("<p class=\"note\">{}</p>\n", Text(readable::PAIRED_NOTE))
}

/// Growth of the slowest request with the number of series.
fn slopes(result: &TailResult) -> Result<String> {
    let sentences = summary::growth_sentences(result)?;
    Ok(sentences.iter().map(|sentence| format!("<p>{}</p>\n", Text(sentence))).collect())
}

/// Remarks that matter when targets are compared with each other.
fn caveats(result: &TailResult) -> String {
    let notes = summary::fairness_notes(result);
    let items: String = notes.iter().map(|note| format!("<li>{}</li>", Text(note))).collect();
    if items.is_empty() {
        return String::new();
    }
    format!("<p class=\"note\">Targets differ in more than their scrapes:</p><ul class=\"note\">{items}</ul>\n")
}

/// Whether the generator had priority over other programs, from its runs.
fn priority(result: &TailResult) -> Option<String> {
    let known: Vec<bool> =
        result.cells.iter().flat_map(|cell| &cell.blocks).filter_map(|block| block.run.generator_realtime).collect();
    let granted = known.iter().filter(|granted| **granted).count();
    match known.len() {
        0 => None,
        all if granted == all => Some("real-time".to_owned()),
        _ if granted == 0 => {
            Some("that of other programs: latencies may hold delays of the system's scheduler".to_owned())
        }
        all => Some(format!("real-time in {granted} of {all} blocks")),
    }
}

fn design_rows(design: &TailDesign) -> Vec<(&'static str, Option<String>)> {
    let some = |text: String| Some(text);
    let mut rows = vec![
        ("rate", some(format!("{}/s, open loop", number::plain(design.rate)))),
        ("connections", some(number::count(design.connections as u64))),
        ("block", some(number::seconds(design.block_s))),
        ("load before each block", some(number::seconds(design.lead_in_s))),
        ("pairs of blocks per cell", some(number::count(design.pairs as u64))),
        ("spare pairs per cell, at most", some(number::count(design.spares as u64))),
        ("cells planned", (!design.plan.is_empty()).then(|| number::count(design.plan.len() as u64))),
        ("confidence of a cell's intervals together", some(number::round_percent(design.confidence))),
        ("power of detectable differences", some(number::round_percent(design.power))),
        ("margin", some(format!("{} of the value without scrapes", number::round_percent(design.margin)))),
        ("scrapes request gzip", some(if design.gzip { "yes" } else { "no" }.to_owned())),
        ("series the load touches", some(format!("{}%", number::short_count(design.touched_percent)))),
        ("seed", some(design.seed.to_string())),
    ];
    rows.extend(provenance::placement_rows(&design.placement));
    rows
}

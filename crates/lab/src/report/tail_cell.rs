//! One cell of a tail experiment: verdict, percentiles, effects, every block over time, and the command that started
//! the target.
//!
//! Figures of verdicts are those of the file's analysis; curves come from its histograms.

use super::axis::Axis;
use super::compare::{Tone, chip, folded};
use super::effect_plot::{Forest, Group, Row};
use super::markup::Text;
use super::percentile_plot::{self, Curve};
use super::tables::{self, Cell as TableCell, figures, words};
use super::time_series::{self, Stretch};
use super::{number, provenance};
use crate::error::Result;
use crate::result::tail::{Arm, Cell, CellAnalysis, Effect, TailDesign, Verdict};
use crate::tail::analysis::{FAILED, pooled, void_reasons};
use crate::tail::readable;
use crate::tail::verdict::ShownVerdict;
use hdrhistogram::Histogram;

/// How a cell is shown.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum CellView {
    Folded,
    Unfolded,
    /// Its verdict is that of the page.
    Alone,
}

/// Styles of the two arms.
const WITHOUT: usize = 0;
const WITH: usize = 1;

pub(crate) fn draw(
    id: &str,
    cell: &Cell,
    analysis: &CellAnalysis,
    design: &TailDesign,
    shown: CellView,
) -> Result<String> {
    let (tone, word) = tone_of(ShownVerdict::of(analysis, design));
    let of = |arm: Arm| pooled(cell, arm, |run| &run.corrected);
    let (without, with) = (of(Arm::Without)?, of(Arm::With)?);
    let curves = [
        Curve { name: "without scrapes", style: WITHOUT, histogram: &without },
        Curve { name: "with scrapes", style: WITH, histogram: &with },
    ];
    let title = format!("Latency by percentile{}", void_mark(analysis));
    let percentiles = percentile_plot::draw(&format!("{id}-p"), title, &curves);
    let (open, name) = (if shown == CellView::Folded { "" } else { " open" }, name(cell));
    let sentence = match shown {
        CellView::Alone => String::new(),
        _ => format!("<p class=\"sentence\">{}</p>\n", Text(&analysis.sentence)),
    };
    let title = "Latency over time, block after block".to_owned();
    let series = time_series::draw(&format!("{id}-s"), title, &stretches(cell));
    Ok(format!(
        "<details class=\"cell {}\"{open}><summary><h4>{}</h4>{}</summary>\n<div class=\"inside\" id=\"{id}\">\n\
         {sentence}{percentiles}{}{series}{}{}{}</div></details>\n",
        tone.class(),
        Text(&name),
        chip(tone, word),
        forest(id, analysis, design),
        distribution(id, analysis, &without, &with),
        folded("Blocks", &block_table(id, cell)),
        folded("How the target was started", &provenance::subject(&format!("{id}-start"), &cell.subject)),
    ))
}

/// As text.
pub(crate) fn name(cell: &Cell) -> String {
    let series = number::short_count(cell.series_asked.unwrap_or(cell.series_shown) as f64);
    format!("{}, {series} series, every {}", cell.subject.name, number::seconds(cell.scrape_every_s))
}

/// A verdict in a word.
pub(crate) fn tone_of(verdict: ShownVerdict) -> (Tone, &'static str) {
    match verdict {
        ShownVerdict::Slower => (Tone::Worse, "slower"),
        ShownVerdict::Failing => (Tone::Worse, "more fail"),
        ShownVerdict::Faster => (Tone::Better, "faster"),
        ShownVerdict::NoDifference => (Tone::Same, "no difference"),
        ShownVerdict::CannotSay => (Tone::Undecided, "cannot say"),
        ShownVerdict::Void => (Tone::Void, "void"),
    }
}

/// As a time: for CPU, the measure's name already has "per request".
pub(crate) fn interval(effect: &Effect) -> String {
    number::interval(effect.difference, (effect.low, effect.high), number::time_difference)
}

/// Added to the titles of pictures of both arms, so that a void cell is not mistaken for a finding.
fn void_mark(analysis: &CellAnalysis) -> &'static str {
    if analysis.verdict == Verdict::Void { " (void: no finding)" } else { "" }
}

fn forest(id: &str, analysis: &CellAnalysis, design: &TailDesign) -> String {
    if analysis.verdict == Verdict::Void {
        let why = Text(&analysis.sentence);
        return format!("<p class=\"absent\">The cell is void, so no effect is drawn. {why}</p>\n");
    }
    let timed = || analysis.effects.iter().filter(|effect| effect.measure != FAILED);
    if timed().next().is_none() {
        let failed = failed(analysis);
        return format!("<p class=\"absent\">Too many requests failed to compare latencies. {}</p>\n", Text(&failed));
    }
    let mut units: Vec<&str> = timed().map(|effect| effect.unit.as_str()).collect();
    units.dedup();
    let groups = units.iter().map(|unit| {
        let effects: Vec<&Effect> = timed().filter(|effect| effect.unit == *unit).collect();
        let reach = effects.iter().flat_map(|effect| {
            [effect.low, effect.difference, effect.high, -effect.minimum_detectable, effect.minimum_detectable]
        });
        let axis = Axis::difference(reach, number::round_time_difference);
        Group { axis, lines: Vec::new(), rows: effects.iter().copied().map(row).collect() }
    });
    let strip = format!("difference, simultaneous {} interval", number::round_percent(design.confidence));
    let pairs = analysis.pairs;
    Forest {
        id: &format!("{id}-e"),
        caption: "What scrapes change: paired differences, with less without".to_owned(),
        before: &["without", "with"],
        strip: &strip,
        after: &["difference", "p"],
        groups: groups.collect(),
        note: format!(
            "{pairs} pairs of blocks. All intervals together hold with {}. Grey: true differences that would not have been detected with a power of {}, by the test or, for the 99%, the 99.9% and the slowest, by the margin of {}. p after Holm's \
             correction. The scale is linear around zero and logarithmic beyond. {} {}",
            number::round_percent(design.confidence),
            number::round_percent(design.power),
            number::round_percent(design.margin),
            readable::PAIRED_NOTE,
            failed(analysis)
        ),
    }
    .draw()
}

/// Failed requests as text: they are not times.
fn failed(analysis: &CellAnalysis) -> String {
    let effect = analysis.effects.iter().find(|effect| effect.measure == FAILED);
    effect.map_or_else(String::new, |effect| {
        format!(
            "Requests that failed or could not be started: {} without scrapes, {} with; p {}.",
            number::percent(effect.without),
            number::percent(effect.with),
            number::p_value(effect.p_adjusted)
        )
    })
}

fn row(effect: &Effect) -> Row {
    let name = match effect.measure.as_str() {
        "p50" => "median",
        "p99" => "99%",
        "p99.9" => "99.9%",
        "max" => "slowest",
        "cpu" => "CPU per request",
        other => other,
    };
    let sure = effect.low > 0.0 || effect.high < 0.0;
    Row {
        name: name.to_owned(),
        before: vec![number::time(effect.without), number::time(effect.with)],
        value: effect.difference,
        low: effect.low,
        high: effect.high,
        missed: (-effect.minimum_detectable, effect.minimum_detectable),
        style: match (sure, effect.difference > 0.0) {
            (false, _) => 5,
            (true, true) => WITH,
            (true, false) => WITHOUT,
        },
        after: vec![interval(effect), number::p_value(effect.p_adjusted)],
    }
}

fn distribution(id: &str, analysis: &CellAnalysis, without: &Histogram<u64>, with: &Histogram<u64>) -> String {
    let (a, b) = (number::count(without.len()), number::count(with.len()));
    let void = void_mark(analysis);
    let caption =
        format!("Latency from the intended start, all blocks together ({a} requests without, {b} with){void}");
    percentile_plot::table(&format!("{id}-d"), &caption, &[("without", without), ("with", with)])
}

fn stretches(cell: &Cell) -> Vec<Stretch<'_>> {
    let all = cell.blocks.iter().map(|block| {
        let arm = if block.arm == Arm::With { "with" } else { "without" };
        let mut remarks = Vec::new();
        for scrape in block.scrapes.iter().take(2) {
            remarks.push(format!(
                "scrape {}, {}",
                number::time(scrape.took_s * 1e6),
                number::bytes(scrape.bytes as f64)
            ));
        }
        if !void_reasons(block).is_empty() {
            remarks.push("void, left out".to_owned());
        }
        Stretch {
            name: format!("pair {}, {arm} scrapes", block.pair + 1),
            length_s: block.run.elapsed_s,
            scraped: block.arm == Arm::With,
            remarks,
            scrapes: &block.scrapes,
            points: &block.points,
        }
    });
    all.collect()
}

fn block_table(id: &str, cell: &Cell) -> String {
    let heads = [
        words("block"),
        words("scrapes"),
        figures("requests"),
        figures("rate"),
        figures("failed"),
        figures("CPU per request"),
        figures("slowest"),
        figures("scrape took"),
        figures("bytes"),
        figures("stolen"),
        words("remarks"),
    ];
    let rows = cell.blocks.iter().map(|block| {
        let run = &block.run;
        let slowest = block.points.iter().map(|point| point.max_us).fold(0.0, f64::max);
        let took: Vec<f64> = block.scrapes.iter().map(|scrape| scrape.took_s).collect();
        let bytes: u64 = block.scrapes.iter().map(|scrape| scrape.bytes).max().unwrap_or(0);
        let failed = block.scrapes.iter().filter_map(|scrape| scrape.error.clone());
        let remarks: Vec<String> =
            void_reasons(block).into_iter().map(|why| format!("void: {why}")).chain(failed).collect();
        let none = || TableCell::Figure(number::NONE.to_owned());
        vec![
            TableCell::Words(format!("pair {}", block.pair + 1)),
            TableCell::Words(if block.arm == Arm::With {
                format!("with ({})", took.len())
            } else {
                "without".to_owned()
            }),
            TableCell::Figure(number::count(run.requests)),
            TableCell::Figure(format!("{}/s", number::plain(run.rate_achieved))),
            TableCell::Figure(number::count(run.failed())),
            TableCell::Figure(number::time(block.cpu_us_per_request)),
            TableCell::Figure(number::time(slowest)),
            if took.is_empty() {
                none()
            } else {
                TableCell::Figure(number::time(took.iter().copied().fold(0.0, f64::max) * 1e6))
            },
            if took.is_empty() { none() } else { TableCell::Figure(number::bytes(bytes as f64)) },
            TableCell::Figure(number::time(block.stolen_ms * 1e3)),
            TableCell::Words(remarks.join("; ")),
        ]
    });
    let rows: Vec<_> = rows.collect();
    tables::draw(
        &format!("{id}-b"),
        "Blocks in the order they were run; of several scrapes the slowest and the largest",
        &heads,
        &rows,
    )
}

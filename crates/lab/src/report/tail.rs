//! The result of `stillgate-lab tail`: the overview of a sweep, its cells, and their origin.
//!
//! A cell has its verdict, percentiles, effects, every block over time, and the command that started the target. Figures of
//! verdicts are those of the file's analysis; curves come from its histograms.

use super::axis::Axis;
use super::compare::{ReportInput, Section, Tone, chip, folded_section};
use super::markup::{Facet, Point, ShortText, Target, Text, write};
use super::plots::{self, Curve, EffectGroup, EffectRow, Forest};
use super::tables::{self, Cell as TableCell, figures, words};
use super::time_series::{self, PlotSegment};
use super::{number, provenance};
use crate::error::{Error, Result};
use crate::result::tail::{Arm, Cell, CellAnalysis, Effect, TailDesign, TailResult, Verdict};
use crate::tail::analysis::{FAILED, pooled, void_reasons};
use crate::tail::verdict::{ShownVerdict, shown_over_all};
use crate::tail::{readable, summary};
use hdrhistogram::Histogram;

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
            section.enter(&id, cell_name(cell), 2, tone_of(ShownVerdict::of(analysis, &result.design)).0);
        }
        let shown = match cells.len() {
            1 if result.design.plan.len() <= 1 => CellView::Alone,
            some if some <= UNFOLDED_CELLS_MAX => CellView::Unfolded,
            _ => CellView::Folded,
        };
        let drawn = draw_cell(&id, cell, analysis, &result.design, shown);
        markup.push_str(&drawn.map_err(|error| error.context(cell_name(cell)))?);
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
                Some(effect) => TableCell::Interval(effect_interval(effect)),
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

/// How a cell is shown.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CellView {
    Folded,
    Unfolded,
    /// Its verdict is that of the page.
    Alone,
}

/// Styles of the two arms.
const WITHOUT: usize = 0;
const WITH: usize = 1;

fn draw_cell(id: &str, cell: &Cell, analysis: &CellAnalysis, design: &TailDesign, shown: CellView) -> Result<String> {
    let (tone, word) = tone_of(ShownVerdict::of(analysis, design));
    let of = |arm: Arm| pooled(cell, arm, |run| &run.corrected);
    let (without, with) = (of(Arm::Without)?, of(Arm::With)?);
    let curves = [
        Curve { name: "without scrapes", style: WITHOUT, histogram: &without },
        Curve { name: "with scrapes", style: WITH, histogram: &with },
    ];
    let title = format!("Latency by percentile{}", void_mark(analysis));
    let percentiles = plots::draw_percentiles(&format!("{id}-p"), title, &curves);
    let (open, name) = (if shown == CellView::Folded { "" } else { " open" }, cell_name(cell));
    let sentence = match shown {
        CellView::Alone => String::new(),
        _ => format!("<p class=\"sentence\">{}</p>\n", Text(&analysis.sentence)),
    };
    let title = "Latency over time, block after block".to_owned();
    let series = time_series::draw(&format!("{id}-s"), title, &plot_segments(cell));
    Ok(format!(
        "<details class=\"cell {}\"{open}><summary><h4>{}</h4>{}</summary>\n<div class=\"inside\" id=\"{id}\">\n\
         {sentence}{percentiles}{}{series}{}{}{}</div></details>\n",
        tone.class(),
        Text(&name),
        chip(tone, word),
        forest(id, analysis, design),
        distribution(id, analysis, &without, &with),
        folded_section("Blocks", &block_table(id, cell)),
        folded_section("How the target was started", &provenance::subject(&format!("{id}-start"), &cell.subject)),
    ))
}

/// As text.
fn cell_name(cell: &Cell) -> String {
    let series = number::short_count(cell.series_asked.unwrap_or(cell.series_shown) as f64);
    format!("{}, {series} series, every {}", cell.subject.name, number::seconds(cell.scrape_every_s))
}

/// A verdict in a word.
fn tone_of(verdict: ShownVerdict) -> (Tone, &'static str) {
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
fn effect_interval(effect: &Effect) -> String {
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
        EffectGroup { axis, lines: Vec::new(), rows: effects.iter().copied().map(effect_row).collect() }
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

fn effect_row(effect: &Effect) -> EffectRow {
    let name = match effect.measure.as_str() {
        "p50" => "median",
        "p99" => "99%",
        "p99.9" => "99.9%",
        "max" => "slowest",
        "cpu" => "CPU per request",
        other => other,
    };
    let sure = effect.low > 0.0 || effect.high < 0.0;
    EffectRow {
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
        after: vec![effect_interval(effect), number::p_value(effect.p_adjusted)],
    }
}

fn distribution(id: &str, analysis: &CellAnalysis, without: &Histogram<u64>, with: &Histogram<u64>) -> String {
    let (a, b) = (number::count(without.len()), number::count(with.len()));
    let void = void_mark(analysis);
    let caption =
        format!("Latency from the intended start, all blocks together ({a} requests without, {b} with){void}");
    plots::percentile_table(&format!("{id}-d"), &caption, &[("without", without), ("with", with)])
}

fn plot_segments(cell: &Cell) -> Vec<PlotSegment<'_>> {
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
        PlotSegment {
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

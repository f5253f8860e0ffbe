//! The result of `stillgate-lab compare`: each measure's ratio with its interval and its smallest detectable
//! difference, in one chart for all comparisons, then latencies, pairs and programs.
//!
//! Figures of verdicts are those of the file's analysis; pairs and curves come from its raw data. Of the pairs there is
//! a picture of each measure's ratios, and a table of all starts; pairs left out of the analysis are marked.

use super::axis::Axis;
use super::markup::{ShortText, Text};
use super::plots::{self, Curve, EffectGroup, EffectRow, Forest, PairDot, PairsPlot, RatioEstimate};
use super::tables::{self, Cell, figures, words};
use super::{number, provenance};
use crate::compare::measures::{self, Duel};
use crate::compare::words::{headline, paired_note};
use crate::error::{Error, Result};
use crate::result::compare::{
    BuildPair, CompareAnalysis, CompareDesign, CompareResult, Decision, MeasureAnalysis, MeasureVerdict, Pair, Side,
    SideRecord,
};
use crate::result::run::Subject;
use crate::result::{ResultFile, histogram};
use hdrhistogram::Histogram;

/// In place of [`paired_note`] where several comparisons are in one chart.
const SEVERAL_NOTE: &str = "Each difference is the median of the ratios within rounds (Hodges-Lehmann), less one. It is not the \
    ratio of the columns before it, which are separate medians.";

pub(crate) fn section(prefix: &str, source: &ReportInput, result: &CompareResult) -> Result<Section> {
    let (tone, word) = decided(result.analysis.decision);
    let (verdict, more) = headline(&result.analysis.sentence);
    let others: Vec<String> =
        result.subjects().skip(1).map(|(side, subject)| format!("{} ({side:?})", subject.name)).collect();
    let mut section = Section {
        tone,
        word,
        sentence: verdict.to_owned(),
        details: more.to_owned(),
        title: format!("{} (A) against {}", result.a.name, others.join(", ")),
        entries: Vec::new(),
        body: String::new(),
    };
    let judged = result.judged();
    let measures = match is_void(result) {
        true => nothing_judged(result),
        false => forest(prefix, result, &judged) + &of_all(prefix, result, &judged),
    };
    section.part(&format!("{prefix}-all"), "Every measure", &measures);
    section.part(&format!("{prefix}-latency"), "Latency at the fixed rate", &latency(prefix, result)?);
    let mut pairs = String::new();
    for (number, (between, analysis)) in judged.iter().enumerate() {
        let drawn = pairs_of(&format!("{prefix}-r{number}"), result, *between, analysis)?;
        match judged.len() {
            1 => pairs.push_str(&drawn),
            _ => pairs.push_str(&folded_section(&against(*between), &drawn)),
        }
    }
    pairs.push_str(&folded_section("Starts", &starts(prefix, result)?));
    section.part(&format!("{prefix}-pairs"), "Pair by pair", &pairs);
    let programs: String = result.subjects().map(|(side, subject)| program(prefix, side, subject)).collect();
    section.part(&format!("{prefix}-programs"), "Programs", &programs);
    provenance::parts(&mut section, prefix, source, &design_rows(&result.design));
    Ok(section)
}

fn decided(decision: Decision) -> (Tone, &'static str) {
    match decision {
        Decision::NotWorse => (Tone::Same, "not worse"),
        Decision::Worse => (Tone::Worse, "worse"),
        Decision::Undecided => (Tone::Undecided, "undecided"),
        Decision::Void => (Tone::Void, "void"),
    }
}

/// The sentences on all measures, for each comparison if there are several.
fn of_all(prefix: &str, result: &CompareResult, judged: &[(BuildPair, &CompareAnalysis)]) -> String {
    let of = |(number, (between, analysis)): (usize, &(BuildPair, &CompareAnalysis))| {
        let said = sentences(analysis, result.design.margin)
            + &measure_table(&format!("{prefix}-m{number}"), *between, analysis);
        if judged.len() == 1 {
            return said;
        }
        let (tone, word) = decided(analysis.decision);
        let verdict = Text(&analysis.sentence);
        format!("<h4>{}</h4>\n<p>{} {verdict}</p>\n{said}", Text(&against(*between)), chip(tone, word))
    };
    judged.iter().enumerate().map(of).collect::<String>() + &of_the_run(result)
}

fn against(between: BuildPair) -> String {
    format!("{:?} against {:?}", between.other, between.one)
}

fn program(prefix: &str, side: Side, subject: &Subject) -> String {
    let title = match side {
        Side::A => "A, the baseline".to_owned(),
        other => format!("{other:?}, compared with it"),
    };
    let id = format!("{prefix}-{}", side.name().to_lowercase());
    provenance::subject(&id, subject).replacen("The program under measure", &title, 1)
}

fn is_void(result: &CompareResult) -> bool {
    result.analysis.decision == Decision::Void
}

/// The figures of a void comparison must not look like a finding.
fn nothing_judged(result: &CompareResult) -> String {
    let why = Text(&result.analysis.sentence);
    format!("<p class=\"absent\">The comparison is void, so no effect is drawn and no measure judged. {why}</p>\n")
}

/// Added to the titles of pictures of both sides.
pub(super) fn void_mark(result: &CompareResult) -> &'static str {
    if is_void(result) { " (void: no finding)" } else { "" }
}

/// With several comparisons, the rows of a measure are next to each other.
fn forest(prefix: &str, result: &CompareResult, judged: &[(BuildPair, &CompareAnalysis)]) -> String {
    let is_single = judged.len() == 1;
    let all =
        judged.iter().flat_map(|(between, analysis)| analysis.measures.iter().map(move |found| (*between, found)));
    let mut all: Vec<(BuildPair, &MeasureAnalysis)> = all.collect();
    if all.is_empty() {
        return "<p class=\"absent\">No measure could be judged, so there is nothing to draw.</p>\n".to_owned();
    }
    all.sort_by_key(|(_, found)| measures::place(&found.measure));
    let margin = result.design.margin;
    let reach = reach(all.iter().map(|(_, measure)| *measure), margin);
    let named = |(between, measure): &(BuildPair, &MeasureAnalysis)| match is_single {
        true => row(measure_title(&measure.measure).to_owned(), measure),
        false => row(
            format!("{}, {} to {}", measure_title(&measure.measure), between.other.name(), between.one.name()),
            measure,
        ),
    };
    let axis = Axis::ratio_around_zero([reach]);
    let group = EffectGroup { axis, lines: vec![-margin, margin], rows: all.iter().map(named).collect() };
    let clipped = match group.clipped() {
        0 => String::new(),
        1 => " \u{25c2} \u{25b8}: one row reaches beyond the axis.".to_owned(),
        rows => format!(" \u{25c2} \u{25b8}: {rows} rows reach beyond the axis."),
    };
    let level = number::round_percent(1.0 - result.design.alpha);
    let (caption, before, note) = match (is_single, judged) {
        (true, [(between, _), ..]) => {
            ("How much more or less of it B has than A".to_owned(), ["A", "B"], paired_note(*between))
        }
        _ => (
            "How much more or less of it a build has than the one it is compared with".to_owned(),
            ["of that", "of it"],
            SEVERAL_NOTE.to_owned(),
        ),
    };
    Forest {
        id: &format!("{prefix}-e"),
        caption,
        before: &before,
        strip: "difference, with its interval",
        after: &["difference", "detectable", "p"],
        groups: vec![group],
        note: format!(
            "All intervals together hold with {level}.{clipped} Grey: effects too small for this number of pairs (power {}). Dotted: the margin \
             of {}. p corrected for the number of measures{}{}. The scale is logarithmic in the ratio. {note}",
            number::round_percent(result.design.power),
            number::round_percent(margin),
            if is_single { "" } else { ", comparisons" },
            if result.design.looks.is_empty() { "" } else { " and looks" },
        ),
    }
    .draw()
}

/// How far the axis reaches, as a ratio less one: to the margin and to the changes that were found. A measure that
/// scatters far more than the others does not make it longer, or no change would be visible.
fn reach<'a>(all: impl Iterator<Item = &'a MeasureAnalysis>, margin: f64) -> f64 {
    let size = |share: f64| share.max(-1.0).ln_1p().abs();
    let end = |measure: &MeasureAnalysis| size(measure.low).max(size(measure.high)).max(size(measure.effect));
    let all: Vec<(f64, bool)> =
        all.map(|measure| (end(measure), measure.verdict != MeasureVerdict::NoDifference)).collect();
    let ends: Vec<f64> = all.iter().map(|(end, _)| *end).collect();
    let found: Vec<f64> = all.iter().filter(|(_, is_found)| *is_found).map(|(end, _)| *end).collect();
    let wanted = (size(margin) * 2.0).max(lower_median(ends.clone()) * 1.25).max(lower_median(found) * 1.5);
    wanted.min(ends.into_iter().fold(size(margin), f64::max)).exp_m1()
}

/// The lower one of the finite values; 0 if there are none.
fn lower_median(mut values: Vec<f64>) -> f64 {
    values.retain(|value| value.is_finite());
    values.sort_by(f64::total_cmp);
    values.get(values.len().saturating_sub(1) / 2).copied().unwrap_or(0.0)
}

/// The ratios, less one, that would have been missed.
fn missed(minimum_detectable: f64) -> (f64, f64) {
    (1.0 / (1.0 + minimum_detectable) - 1.0, minimum_detectable)
}

fn row(name: String, measure: &MeasureAnalysis) -> EffectRow {
    let detectable = measure.minimum_detectable;
    EffectRow {
        name,
        before: vec![number::quantity(measure.a, &measure.unit), number::quantity(measure.b, &measure.unit)],
        value: measure.effect,
        low: measure.low,
        high: measure.high,
        missed: missed(detectable),
        style: match measure.verdict {
            MeasureVerdict::Slower => 1,
            MeasureVerdict::Faster => 0,
            MeasureVerdict::NoDifference => 5,
        },
        after: vec![
            number::interval(measure.effect, (measure.low, measure.high), number::percent_difference),
            if detectable.is_finite() { number::percent(detectable) } else { number::NONE.to_owned() },
            number::p_value(measure.p_adjusted),
        ],
    }
}

pub(super) fn measure_title(measure: &str) -> &str {
    match measure {
        "cpu" => "CPU per request",
        "p50" => "median",
        "p99" => "99%",
        "p99.9" => "99.9%",
        "rss" => "memory",
        other => other,
    }
}

fn sentences(analysis: &CompareAnalysis, margin: f64) -> String {
    let items = analysis.measures.iter().map(|measure| {
        let (tone, word) = match measure.verdict {
            MeasureVerdict::NoDifference if !measure.is_within(margin) => (Tone::Undecided, "cannot say"),
            other => verdict(other, "no difference"),
        };
        format!("<li>{} {}</li>", chip(tone, word), Text(&measure.sentence))
    });
    let void = match analysis.void_pairs {
        0 => String::new(),
        pairs => format!(
            "<li>{} {pairs} pairs were left out because a run of theirs was void.</li>",
            chip(Tone::Void, "void")
        ),
    };
    let failures = analysis.failures.sentence.iter().map(|sentence| {
        let (tone, word) = verdict(analysis.failures.verdict, "no certain difference");
        format!("<li>{} {}</li>", chip(tone, word), Text(sentence))
    });
    let not_judged = analysis.not_judged.iter();
    let not_judged = not_judged.map(|why| format!("<li>{} {}</li>", chip(Tone::Plain, "not judged"), Text(why)));
    let items: String = items.chain(failures).chain(not_judged).collect();
    format!("<ul class=\"sentences\">{items}{void}</ul>\n")
}

/// Remarks on the run as a whole.
fn of_the_run(result: &CompareResult) -> String {
    let crash = result.crash.iter().map(|crash| {
        let (chip, side) = (chip(Tone::Worse, "worse"), crash.side.name());
        format!("<li>{chip} {side} ended under load:<pre>{}</pre></li>", Text(&crash.words))
    });
    let missing = result.instructions_missing.iter().map(|why| {
        format!("<li>{} Instructions were not counted: {}</li>", chip(Tone::Plain, "not counted"), in_short(why))
    });
    let items: String = crash.chain(missing).collect();
    if items.is_empty() { items } else { format!("<ul class=\"sentences\">{items}</ul>\n") }
}

fn verdict(verdict: MeasureVerdict, neither: &'static str) -> (Tone, &'static str) {
    match verdict {
        MeasureVerdict::Slower => (Tone::Worse, "worse"),
        MeasureVerdict::Faster => (Tone::Better, "better"),
        MeasureVerdict::NoDifference => (Tone::Same, neither),
    }
}

fn measure_table(id: &str, between: BuildPair, analysis: &CompareAnalysis) -> String {
    let heads = [
        words("measure"),
        words("better is"),
        figures(between.one.name()),
        figures(between.other.name()),
        figures("difference"),
        figures("p"),
        figures("p, corrected"),
        figures("p, Mann-Whitney"),
    ];
    let rows = analysis.measures.iter().map(|measure| {
        vec![
            Cell::Words(measure_title(&measure.measure).to_owned()),
            Cell::Words(if measure.higher_is_better { "more" } else { "less" }.to_owned()),
            Cell::Figure(number::quantity(measure.a, &measure.unit)),
            Cell::Figure(number::quantity(measure.b, &measure.unit)),
            Cell::Figure(number::percent_difference(measure.effect)),
            Cell::Figure(number::p_value(measure.p_value)),
            Cell::Figure(number::p_value(measure.p_adjusted)),
            Cell::Figure(number::p_value(measure.p_mann_whitney)),
        ]
    });
    let rows: Vec<_> = rows.collect();
    folded_section("All tests", &tables::draw(id, "Medians over the pairs, and every test's p", &heads, &rows))
}

fn latency(prefix: &str, result: &CompareResult) -> Result<String> {
    let counts = |side: Side, pair: &Pair| {
        pair.record(side).filter(|record| !is_out(&crate::compare::measures::Duel::alone(side, record), true)).cloned()
    };
    let mut all = Vec::new();
    for (side, subject) in result.subjects() {
        let records: Vec<_> = result.pairs.iter().filter_map(|pair| counts(side, pair)).collect();
        let merged = together(side.name(), records.iter().map(|record| &record.rated.corrected))?;
        all.push((side, format!("{side:?}, {}", subject.name), merged));
    }
    let curves: Vec<Curve<'_>> =
        all.iter().map(|(side, name, histogram)| Curve { name, style: *side as usize, histogram }).collect();
    let rate = number::plain(result.design.rate);
    let void = void_mark(result);
    let title = format!("Latency by percentile at {rate} requests/s{void}");
    let plot = plots::draw_percentiles(&format!("{prefix}-p"), title, &curves);
    let caption = format!("Latency from the intended start, all pairs together, at {rate} requests/s{void}");
    let named: Vec<_> = all.iter().map(|(side, _, histogram)| (side.name(), histogram)).collect();
    Ok(plot + &plots::percentile_table(&format!("{prefix}-d"), &caption, &named))
}

fn design_rows(design: &CompareDesign) -> provenance::Rows {
    let looks: Vec<String> = design.looks.iter().map(ToString::to_string).collect();
    let mut rows = vec![
        ("builds", Some(number::count(design.builds as u64))),
        ("pairs", Some(number::count(design.pairs as u64))),
        ("looks after pairs", (!looks.is_empty()).then(|| looks.join(", "))),
        ("false alarms at most", Some(number::round_percent(design.alpha))),
        ("power of detectable differences", Some(number::round_percent(design.power))),
        ("margin", Some(number::round_percent(design.margin))),
        ("deciding measures", Some(design.deciding.join(", "))),
        ("warm-up", Some(number::seconds(design.warm_up_s))),
        ("closed loop", Some(number::seconds(design.saturation_s))),
        ("open loop", Some(format!("{} at {}/s", number::seconds(design.rate_s), number::plain(design.rate)))),
        ("connections", Some(number::count(design.connections as u64))),
        ("seed", Some(design.seed.to_string())),
    ];
    rows.extend(provenance::placement_rows(&design.placement));
    rows
}

// The part of the page of each kind of experiment: its verdict, its entries in the contents, its body.
//
// A verdict has a word and a mark as well as its colour, for readers who do not see colours.

/// A result file as it was given.
pub(crate) struct ReportInput {
    /// Its name, without folders.
    pub(crate) name: String,
    /// SHA-256 of its bytes, if they can be read again.
    pub(crate) sha256: Option<String>,
    /// Figures in it that do not follow from its raw data.
    pub(crate) differences: usize,
    /// Whether sentences were compared, too; those of another version are not.
    pub(crate) words_compared: bool,
    /// With the analysis that its raw data give: headlines of a page never come from figures typed into the file.
    pub(crate) result: ResultFile,
}

/// The style of a verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tone {
    Worse,
    Better,
    Same,
    Undecided,
    Void,
    /// Nothing to judge.
    Plain,
}

impl Tone {
    pub(crate) fn class(self) -> &'static str {
        match self {
            Tone::Worse => "worse",
            Tone::Better => "better",
            Tone::Same => "same",
            Tone::Undecided => "undecided",
            Tone::Void => "void",
            Tone::Plain => "plain",
        }
    }

    fn mark(self) -> &'static str {
        match self {
            Tone::Worse => "▲",
            Tone::Better => "▼",
            Tone::Same => "=",
            Tone::Undecided => "?",
            Tone::Void => "✕",
            Tone::Plain => "•",
        }
    }
}

/// A word on a coloured ground, with its mark.
pub(crate) fn chip(tone: Tone, word: &str) -> String {
    let (class, mark) = (tone.class(), tone.mark());
    format!("<span class=\"chip {class}\"><span aria-hidden=\"true\">{mark}</span> {}</span>", ShortText(word))
}

/// A line of the contents.
pub(crate) struct Entry {
    pub(crate) id: String,
    pub(crate) name: String,
    /// 0 is a result file.
    pub(crate) level: usize,
    pub(crate) tone: Tone,
}

/// One result file's part of the page.
pub(crate) struct Section {
    pub(crate) tone: Tone,
    /// The verdict in a word.
    pub(crate) word: &'static str,
    /// The verdict in one sentence.
    pub(crate) sentence: String,
    /// Further sentences of the verdict.
    pub(crate) details: String,
    /// The kind of the experiment and its subjects.
    pub(crate) title: String,
    pub(crate) entries: Vec<Entry>,
    /// Below a heading of the second level.
    pub(crate) body: String,
}

impl Section {
    /// Adds to the contents.
    pub(crate) fn enter(&mut self, id: &str, name: impl Into<String>, level: usize, tone: Tone) {
        self.entries.push(Entry { id: id.to_owned(), name: name.into(), level, tone });
    }

    /// Adds a heading of the third level with what is under it.
    pub(crate) fn part(&mut self, id: &str, name: &str, markup: &str) {
        self.enter(id, name, 1, Tone::Plain);
        let name = Text(name);
        self.body.push_str(&format!(
            "<section class=\"part\" aria-labelledby=\"{id}\"><h3 id=\"{id}\">{name}</h3>\n{markup}</section>\n"
        ));
    }
}

/// Folded on screen and open on paper.
pub(crate) fn folded_section(summary: &str, markup: &str) -> String {
    format!("<details class=\"more\"><summary>{}</summary>\n{markup}</details>\n", Text(summary))
}

/// The first line of a text; the full text, which may be the log of a program, is folded.
pub(crate) fn in_short(text: &str) -> String {
    match text.trim_end().split_once('\n') {
        None => Text(text.trim_end()).to_string(),
        Some((first, _)) => {
            format!("{}{}", Text(first), folded_section("Its output", &format!("<pre>{}</pre>", Text(text.trim_end()))))
        }
    }
}

/// All requests of several runs together, in nanoseconds.
pub(crate) fn together<'a>(what: &str, encoded: impl IntoIterator<Item = &'a String>) -> Result<Histogram<u64>> {
    let decoded: Result<Vec<_>> = encoded.into_iter().map(|text| histogram::decode(text)).collect();
    decoded.and_then(|all| histogram::merge(&all)).map_err(|error| Error::context(error, what))
}

/// The pictures of one comparison.
fn pairs_of(id: &str, result: &CompareResult, between: BuildPair, analysis: &CompareAnalysis) -> Result<String> {
    let duels = result.duels(between)?;
    let some_void = duels.iter().any(|duel| is_out(duel, true));
    let looks = &result.design.looks;
    let mut out = plots::pairs_legend(between, !is_void(result), looks.len() > 1, some_void) + "<div class=\"facets\">";
    for (number, measure) in analysis.measures.iter().enumerate() {
        let mut dots = Vec::with_capacity(duels.len());
        for duel in &duels {
            let (Some(a), Some(b)) = (value(duel.a, &measure.measure)?, value(duel.b, &measure.measure)?) else {
                break;
            };
            let void = is_out(duel, measure.unit == measures::LATENCY_UNIT);
            dots.push(PairDot { first: duel.first, ratio: b / a - 1.0, void });
        }
        if dots.is_empty() {
            continue;
        }
        let drawn = PairsPlot {
            id: &format!("{id}-{number}"),
            between,
            name: format!("{}{}", measure_title(&measure.measure), void_mark(result)),
            dots: &dots,
            estimate: (!is_void(result)).then_some(RatioEstimate {
                effect: measure.effect,
                low: measure.low,
                high: measure.high,
            }),
            looks,
        };
        out.push_str(&drawn.draw());
    }
    out.push_str("</div>\n");
    Ok(out)
}

/// Whether a pair is used for nothing except its failed requests, if for those; or for no latency, if `latency` is set.
fn is_out(duel: &Duel<'_>, latency: bool) -> bool {
    let late = || measures::late(duel).filter(|_| latency);
    measures::void(duel).or_else(|| measures::failing(duel)).or_else(late).is_some()
}

/// The value of one side of a pair; `None` for measures that are not taken in pairs.
fn value(side: &SideRecord, measure: &str) -> Result<Option<f64>> {
    let latency = |share: f64| {
        let decoded = histogram::decode(&side.rated.corrected).map_err(|error| error.context("a pair"));
        decoded.map(|histogram| histogram::quantile_us(&histogram, share))
    };
    Ok(match measure {
        "throughput" => Some(side.saturation.rate_achieved),
        "cpu" => Some(side.cpu_us_per_request),
        "p50" => Some(latency(0.5)?),
        "p99" => Some(latency(0.99)?),
        "p99.9" => Some(latency(0.999)?),
        "rss" => Some(side.rss_kib as f64),
        _ => None,
    })
}

/// All starts, in the order in which they were measured.
pub(super) fn starts(prefix: &str, result: &CompareResult) -> Result<String> {
    let heads = [
        words("pair"),
        words("build"),
        figures("requests/s"),
        figures("CPU per request"),
        figures("99%"),
        figures("memory"),
        words("remarks"),
    ];
    let mut rows = Vec::new();
    for (number, pair) in result.pairs.iter().enumerate() {
        let mut records: Vec<_> = pair.records().collect();
        let place = |side| pair.order.iter().position(|at| *at == side).unwrap_or(usize::from(pair.first != side));
        records.sort_by_key(|(side, _)| place(*side));
        for (side, record) in records {
            rows.push(vec![
                Cell::Words((number + 1).to_string()),
                Cell::Words(side.name().to_owned()),
                Cell::Figure(number::plain(record.saturation.rate_achieved)),
                Cell::Figure(number::time(record.cpu_us_per_request)),
                Cell::Figure(number::time(value(record, "p99")?.unwrap_or(f64::NAN))),
                Cell::Figure(number::bytes(record.rss_kib as f64 * 1024.0)),
                Cell::Words(remark(&crate::compare::measures::Duel::alone(side, record))),
            ]);
        }
    }
    Ok(tables::draw(&format!("{prefix}-pt"), "Starts in the order in which they were measured", &heads, &rows))
}

fn remark(start: &Duel<'_>) -> String {
    if let Some(why) = measures::void(start) {
        return format!("void: {why}");
    }
    let late = || Some(format!("latencies not judged: {}", measures::late(start)?));
    measures::failing(start).or_else(late).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_axis_is_that_of_the_changes_and_not_of_what_scatters() {
        let measure = |low: f64, effect: f64, high: f64, verdict| MeasureAnalysis {
            low,
            effect,
            high,
            verdict,
            ..crate::compare::analysis::blank_p99()
        };
        let none = MeasureVerdict::NoDifference;
        let check = |all: &[MeasureAnalysis], expected: f64| {
            let reach = reach(all.iter(), 0.05);
            assert!((reach - expected).abs() < 0.005, "{reach}");
        };
        let quiet = measure(-0.01, 0.0, 0.01, none);
        check(&[quiet.clone(), quiet.clone(), measure(-0.9, 0.1, 30.0, none)], 0.1025);
        check(&[quiet.clone(), quiet.clone()], 0.05);
        check(&[quiet.clone(), quiet, measure(0.2, 0.3, 0.4, MeasureVerdict::Slower)], 0.4);
        check(&[measure(f64::NEG_INFINITY, 0.1, f64::INFINITY, none)], 0.1025);
    }

    #[test]
    fn of_a_log_the_first_line_is_shown() {
        assert_eq!(in_short("no valgrind <here>\n"), "no valgrind &lt;here&gt;");
        let log = format!("it ended:\n{}", "==7== Illegal instruction\n".repeat(60));
        let shown = in_short(&log);
        let (first, folded) = shown.split_once("<details").unwrap();
        assert_eq!((first, folded.matches("==7==").count()), ("it ended:", 60));
    }
}
